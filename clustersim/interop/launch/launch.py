"""From a scenario to what starts it: commands, a benchmark, manifests, and what of it they cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.interop.launch import manifest
from clustersim.interop.launch.account import Account, Unsaid
from clustersim.interop.launch.added import add_options
from clustersim.interop.launch.asked import Asked, asked_of
from clustersim.interop.launch.benchmark import benchmark_of
from clustersim.interop.launch.commands import ROUTER_PORT, commands_of, router_of
from clustersim.interop.launch.refusals import refused, values_named
from clustersim.interop.launch.server import ENGINES, Server, Started, words_of
from clustersim.interop.launch.sglang import sglang_server
from clustersim.interop.launch.trtllm import trtllm_server
from clustersim.interop.launch.versions import Version, version_of
from clustersim.interop.launch.vllm import vllm_server
from clustersim.model.hub import ON_THE_HUB
from clustersim.scenario.scenario import Scenario
from clustersim.values import dataclass

TARGETS: Final = (*ENGINES, "dynamo", "llm-d", "k8s")
NOT_STARTED: Final = "does not start it"


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
    simulated_as : str
        The engine whose host times and policy the scenario has, where that is another one; empty otherwise.
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
    simulated_as: str


def launch_of(
    scenario: Scenario,
    target: str,
    *,
    model: str | None = None,
    image: str | None = None,
    add: Sequence[str] = (),
    beside: bool = False,
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
    beside : bool
        Whether a pool by itself shares a node with another one.

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
    asked = str(scenario.document["serving"]["engine"].get("asked", scenario.engine.kernels or scenario.engine.name))
    version = version_of(asked, engine)
    makers: Mapping[str, Callable[[Server], Started]] = {
        "vllm": lambda server: vllm_server(server, account, version),
        "sglang": lambda server: sglang_server(server, account, version),
        "trtllm": lambda server: trtllm_server(server, account, version),
    }
    shell = target in ENGINES
    alone = [Server(scenario=one, model_name=name, named=model is not None) for one in scenario.each_pool()]
    beside = beside or (len(alone) > 1 and not set(alone[0].where()).isdisjoint(alone[1].where()))
    servers = [makers[engine](replace(one, shell=shell, beside=shell and beside)) for one in alone]
    for started in servers:
        add_options(started, add, engine, account)
        if started.before and target not in ENGINES:
            account.refuse("TensorRT-LLM before 1.0 takes several commands, which no manifest has; take --for trtllm")
    _transfer(scenario, account)
    if scenario.precision.modules:
        why = f"no option of {ENGINES[engine]} names a format by module: the checkpoint decides"
        account.leaves(None, "precision.weights", why)
    account.says(None, "serving.engine")
    if version is not None:
        release = ".".join(map(str, version))
        account.note(
            f"install {ENGINES[engine]} {release}, which the scenario simulates: options do not say a version."
        )
    for what in scenario.left_out:
        account.note(f"add yourself what the scenario leaves out: {what}.")
    benchmark = benchmark_of(scenario, name, account)
    written = _manifest(scenario, target, engine, servers, _image(target, engine, version, image, account), account)
    account.leave_the_rest()
    _refuse(servers, written, target, engine, account)
    split = target in ENGINES and len(servers) > 1
    router, of_router = router_of(scenario, engine, servers, account) if split else ((), {})
    if split and benchmark is not None:
        benchmark["--port"] = ROUTER_PORT
    plain = [one for one in servers if one.config and not one.before] if target in ENGINES else []
    files = {f"{one.server.name}.yaml": one.config for one in plain}
    return Launch(
        target=target,
        engine=engine,
        servers=tuple(servers),
        commands=tuple(commands_of(servers)) if target in ENGINES else (),
        router=router,
        files={**files, **of_router},
        manifest=tuple(written),
        benchmark=() if benchmark is None else (("vllm", "bench", "serve"), *words_of(benchmark)),
        unsaid=tuple(account.unsaid),
        notes=tuple(account.notes),
        simulated_as=asked if version is None else "",
    )


def refusal_of(scenario: Scenario, target: str, *, beside: bool = False) -> str | None:
    """Return the first thing that an engine refuses of a legal scenario, whatever checkpoint it loads; None: nothing.

    Parameters
    ----------
    scenario : Scenario
        Of all pools, or of one by itself.
    target : str
        One of :data:`TARGETS`.
    beside : bool
        Whether a pool by itself shares a node with another one.
    """
    try:
        launch_of(scenario, target, model=scenario.model.name, beside=beside)
    except IllegalPlanError as error:
        first, second = str(error).splitlines()[:2]
        return f"{first.partition(' does not')[0]} {NOT_STARTED}: {second.strip()}"
    except InputError as error:
        return str(error)
    return None


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


def _transfer(scenario: Scenario, account: Account) -> None:
    if scenario.document["serving"].get("transfer") == "layerwise":
        account.leaves(None, "serving.transfer", "the connector decides when K/V is sent")


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
