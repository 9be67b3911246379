"""From a scenario to what starts it: commands, a benchmark, manifests, and what of it they cannot say."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.interop import sglang, vllm
from clustersim.interop.command import read_command
from clustersim.interop.launch import manifest
from clustersim.interop.launch.account import Account, Unsaid
from clustersim.interop.launch.asked import Asked, asked_of_model
from clustersim.interop.launch.benchmark import benchmark_of
from clustersim.interop.launch.refusals import refused, values_named
from clustersim.interop.launch.server import HEAD, PORT, Options, Server, Started, words_of
from clustersim.interop.launch.sglang import BOOTSTRAP_PORT, POLICIES, sglang_server
from clustersim.interop.launch.trtllm import trtllm_server
from clustersim.interop.launch.versions import SPANS, Version, numbers, outdated, version_of
from clustersim.interop.launch.vllm import vllm_server
from clustersim.model.hub import ON_THE_HUB
from clustersim.scenario.scenario import Scenario

ENGINES: Final[Mapping[str, str]] = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
GRAMMARS: Final = {"vllm": vllm.GRAMMAR, "sglang": sglang.GRAMMAR}
"""Engines whose options are known."""
TARGETS: Final = (*ENGINES, "dynamo", "llm-d", "k8s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starts a scenario.

    Parameters
    ----------
    target, engine : str
        What it was written for, and the engine that runs.
    servers : tuple of Started
    commands : tuple of dict
        ``name``, ``node`` and ``command`` of each command, one-line.
    router : tuple of str
        The words of a router between two pools; empty without one.
    files : Mapping of str to mapping
        YAML files that commands name.
    manifest : tuple of dict
        Of Kubernetes; empty for plain commands.
    benchmark : tuple of str
        Words; empty where none can send the workload.
    unsaid : tuple of Unsaid
    notes : tuple of str
    """

    target: str
    engine: str
    servers: tuple[Started, ...]
    commands: tuple[dict[str, Any], ...]
    router: tuple[str, ...]
    files: Mapping[str, Mapping[str, Any]]
    manifest: tuple[dict[str, Any], ...]
    benchmark: tuple[tuple[str, ...], ...]
    unsaid: tuple[Unsaid, ...]
    notes: tuple[str, ...]


def launch_of(
    scenario: Scenario, target: str, *, model: str | None = None, image: str | None = None, add: Sequence[str] = ()
) -> Launch:
    """Return what starts a scenario.

    Parameters
    ----------
    scenario : Scenario
        A legal one.
    target : str
        One of :data:`TARGETS`. The engine of ``dynamo`` and ``k8s`` is the scenario's, that of ``llm-d`` is vLLM.
    model : str or None
        What the server loads: a name on the hub, or a folder.
    image : str or None
        Of containers.
    add : sequence of str
        Options that every server is given besides; held to the engine's rules like the others.

    Raises
    ------
    InputError
        When nothing says what a server is to load, or an option that is added is none.
    IllegalPlanError
        With all that the engine refuses.
    """
    family = scenario.engine.family
    engine = target if target in ENGINES else "vllm" if target == "llm-d" or family not in ENGINES else family
    account = Account(document=scenario.portable, engine=ENGINES[engine])
    if model is not None and not model.strip():
        raise InputError(Problem(path="--model", message="is empty; expected such as meta-llama/Llama-3.1-8B"))
    name = model or _published(scenario)
    asked = str(scenario.document["serving"]["engine"].get("asked", scenario.engine.name))
    version = version_of(asked, engine)
    makers: Mapping[str, Callable[[Server], Started]] = {
        "vllm": lambda server: vllm_server(server, account, version),
        "sglang": lambda server: sglang_server(server, account, version),
        "trtllm": lambda server: trtllm_server(server, account, version),
    }
    servers = [
        makers[engine](Server(scenario=one, model_name=name, named=model is not None)) for one in scenario.each_pool()
    ]
    for started in servers:
        _add(started, add, engine, account)
        if started.before and target not in ENGINES:
            account.refuse("TensorRT-LLM before 1.0 takes several commands, which no manifest has; take --for trtllm")
    _transfer(scenario, account)
    _tell_version(scenario, engine, version, account)
    benchmark = benchmark_of(scenario, name, account)
    written = _manifest(scenario, target, engine, servers, _image(target, engine, version, image, account), account)
    account.leave_the_rest()
    _refuse(servers, written, target, engine, account)
    split = target in ENGINES and len(servers) > 1
    router, of_router = _router(scenario, engine, servers, account) if split else ((), {})
    plain = [one for one in servers if one.config and not one.before] if target in ENGINES else []
    files = {f"{one.server.name}.yaml": one.config for one in plain}
    return Launch(
        target=target,
        engine=engine,
        servers=tuple(servers),
        commands=tuple(_commands(servers)) if target in ENGINES else (),
        router=router,
        files={**files, **of_router},
        manifest=tuple(written),
        benchmark=() if benchmark is None else (("vllm", "bench", "serve"), *words_of(benchmark)),
        unsaid=tuple(account.unsaid),
        notes=tuple(account.notes),
    )


def _published(scenario: Scenario) -> str:
    """Return what a server is told to load, by the scenario alone."""
    written = scenario.origin.data["model"]
    named = written.get("name") if isinstance(written, Mapping) else written
    if named in catalog.names("scenarios/models") and named in ON_THE_HUB:
        return ON_THE_HUB[named]
    if isinstance(named, str) and Path(named).name == "config.json":
        return str(Path(named).parent)
    raise InputError(
        scenario.problem("model", "no checkpoint is known for it; say what servers load, with --model NAME")
    )


def _add(started: Started, add: Sequence[str], engine: str, account: Account) -> None:
    """Add options to a server's, and refuse what its release does not take."""
    if add and started.before:
        message = "before 1.0 several commands start TensorRT-LLM; write it behind the one that takes it"
        raise InputError(Problem(path="--add", message=message))
    started.options |= _added(add, engine)
    if engine in GRAMMARS:
        newest = list(SPANS[engine])[-1]
        if started.version > numbers(newest):
            account.note(f"options are those of {ENGINES[engine]} {newest}, the newest that was read.")
        words = f"{ENGINES[engine]} {'.'.join(map(str, started.version))}"
        written: Options = {**started.environment, **started.options}
        for own in started.per_node or ({},):
            for line in outdated(engine, words, written | own, started.version):
                account.refuse(line)


def _added(add: Sequence[str], engine: str) -> Options:
    """Read options that are added: of vLLM and SGLang by their grammar, of others as they stand."""
    text = " ".join(add)
    if not add:
        return {}
    if engine in GRAMMARS:
        grammar = GRAMMARS[engine]
        command = read_command(f"{grammar.name} {text}", "--add", grammar)
        if command.positional:
            raise InputError(command.positional[0].problem("belongs to no option"))
        return {
            choice.name: None if choice.flag.takes == "switch" else tuple(value.text for value in choice.values)
            if len(choice.values) > 1 else choice.text for choice in command.choices.values()
        }  # fmt: skip
    found: Options = {}
    last = None
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(Problem(path="--add", message=f"a quote in {text!r:.60} is not closed")) from None
    for word in words:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            found[last] = value or None
        elif last is None or found[last] is not None:
            raise InputError(
                Problem(path="--add", message=f"{word!r} belongs to no option; expected such as '--name value'")
            )
        else:
            found[last] = word
    return found


def _transfer(scenario: Scenario, account: Account) -> None:
    if scenario.document["serving"].get("transfer") == "layerwise":
        account.leaves(None, "serving.transfer", "the connector decides when K/V is sent")


def _tell_version(scenario: Scenario, engine: str, version: Version | None, account: Account) -> None:
    asked = str(scenario.document["serving"]["engine"].get("asked", scenario.engine.name))
    if version is None:
        account.leaves(
            None, "serving.engine", f"{ENGINES[engine]} is started, and what was simulated is {asked}", asked
        )
    else:
        release = ".".join(map(str, version))
        account.note(
            f"install {ENGINES[engine]} {release}, which the scenario simulates: options do not say a version."
        )


def _image(target: str, engine: str, version: Version | None, image: str | None, account: Account) -> str:
    if image is not None or target in ENGINES:
        return image or ""
    key = engine if target == "k8s" else "llm-d" if target == "llm-d" else f"dynamo-{engine}"
    if key == "vllm" and version is not None:
        return f"{manifest.IMAGES[key]}:v{'.'.join(map(str, (*version, 0)[:3]))}"
    account.note(f"the image {manifest.IMAGES[key]} has no tag: the scenario tells none; name one with --image.")
    return manifest.IMAGES[key]


def _manifest(
    scenario: Scenario, target: str, engine: str, servers: Sequence[Started], image: str, account: Account
) -> list[dict[str, Any]]:
    if target == "llm-d":
        return manifest.llm_d(scenario.name, servers, image, account)
    if target == "dynamo":
        return manifest.dynamo(scenario.name, servers, image)
    return manifest.kubernetes(scenario.name, servers, image, account) if target == "k8s" else []


def asked_of(started: Started) -> Asked:
    """Return what a server is asked for, as the engine's rules see it."""
    server = started.server
    options: dict[str, str] = {}
    for name, value in {**started.options, **(started.per_node[0] if started.per_node else {})}.items():
        name, told, given = name.partition("=")
        off = value is None and (name.startswith("--no-") or (bool(told) and given.lower() == "false"))
        text = value if isinstance(value, str) else " ".join(value or ())
        options[f"--{name.removeprefix('--').removeprefix('no-')}" if off else name] = (
            "false" if off else text if value is not None else "true"
        )
    if "--enable-dp-attention" in options:  # what SGLang before 0.5.23 calls it
        options |= {"--attn-dp-size": options["--dp-size"], "--dp-size": "1"}
    if "--ntasks" in started.wrapped:
        options["--ntasks"] = started.wrapped[started.wrapped.index("--ntasks") + 1]
    return asked_of_model(
        server.model,
        engine=started.engine,
        options=options,
        config=started.config,
        devices_per_node=server.devices_per_node,
    )


def _refuse(servers: Sequence[Started], written: Sequence[Any], target: str, engine: str, account: Account) -> None:
    lines = list(account.refused)
    asked = [(f"{one.server.pool}: " if one.server.pool else "", asked_of(one)) for one in servers]
    if target == "llm-d":
        asked.append(("", Asked(engine="llm-d", config=written[0])))
    for pool, one in asked:
        try:
            broken = refused(one)
        except ValueError as error:
            raise InputError(Problem(path="--add", message=str(error))) from None
        for rule in broken:
            fix = f"; {rule.fix}" if rule.fix else ""
            lines.append(f"{pool}{rule.message}{values_named(one, rule.message)} ({rule.source}){fix}")
    if lines:
        unique = "\n".join(f"  {line}" for line in dict.fromkeys(lines))
        raise IllegalPlanError(f"{ENGINES[engine]} does not start this scenario:\n{unique}")


def _commands(servers: Sequence[Started]) -> list[dict[str, Any]]:
    found = []
    for started in servers:
        head = f"${{{started.server.name.upper()}_ADDRESS}}" if started.server.pool else HEAD
        for made, words in started.before:
            found.append(_command(started, [*words], name=f"{started.server.name}: {made}", copies=1))
        for node, own in enumerate(started.per_node or ({},)):
            groups = [
                *([started.wrapped] if started.wrapped else []),
                started.program,
                *words_of(started.options | own),
            ]
            groups = [tuple(word.replace(HEAD, head) for word in group) for group in groups]
            variables = [f"{name}={quoted(text.replace(HEAD, head))}" for name, text in started.environment.items()]
            found.append(_command(started, groups, variables, node=node, copies=started.copies))
    return found


def _command(
    started: Started,
    groups: Sequence[Sequence[str]],
    variables: Sequence[str] = (),
    *,
    name: str = "",
    node: int = 0,
    copies: int,
) -> dict[str, Any]:
    texts = [[quoted(word) for word in group] for group in groups]
    return {
        "name": name or started.server.name,
        "node": node,
        "devices": started.devices,
        "copies": copies,
        "command": " ".join([*variables, *(word for group in texts for word in group)]),
        "groups": [[*variables, *texts[0]], *texts[1:]],
    }


def quoted(word: str) -> str:
    """Quote a word for a shell, which puts in addresses itself."""
    return f'"{word}"' if "${" in word and '"' not in word else shlex.quote(word)


def _router(
    scenario: Scenario, engine: str, servers: Sequence[Started], account: Account
) -> tuple[tuple[str, ...], dict[str, Mapping[str, Any]]]:
    """Return the words of what stands between two pools, and its file."""
    routers = [str(started.server.serving.router) for started in servers]
    if engine == "sglang":
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        words += ["--prefill", f"http://${{PREFILL_ADDRESS}}:{PORT}", str(BOOTSTRAP_PORT)]
        words += ["--decode", f"http://${{DECODE_ADDRESS}}:{PORT + 100}"]
        for started, router in zip(servers, routers, strict=True):
            if router in POLICIES:
                words += [f"--{started.server.name}-policy", POLICIES[router]]
                account.says(started.server, "serving.router")
            else:
                account.leaves(
                    started.server, "serving.router", "SGLang's router has no such policy; it takes its default"
                )
        return tuple(words), {}
    if engine == "vllm":
        script = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
        account.note(f"{script} is vLLM's example of a proxy; it sends requests in turn.")
        hosts = (
            "--prefiller-hosts",
            "${PREFILL_ADDRESS}",
            "--prefiller-ports",
            str(PORT),
            "--decoder-hosts",
            "${DECODE_ADDRESS}",
            "--decoder-ports",
            str(PORT + 100),
        )
        return ("python", script, "--port", "8192", *hosts), {}
    ports = {"context_servers": (PORT, "PREFILL_ADDRESS"), "generation_servers": (PORT + 100, "DECODE_ADDRESS")}
    file: dict[str, Any] = {"hostname": "0.0.0.0", "port": 8192, "backend": "pytorch"}
    for (pool, (port, host)), started in zip(ports.items(), servers, strict=True):
        urls = [f"{host}_{copy}:{port}" for copy in range(started.copies)]
        file[pool] = {"num_instances": started.copies, "urls": urls, "router": {"type": "round_robin"}}
    return ("trtllm-serve", "disaggregated", "-c", "pools.yaml"), {"pools.yaml": file}
