"""Plain commands, for a shell: those that start servers, and what stands between two pools."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import HEAD, PORT, Started, words_of
from clustersim.interop.launch.sglang import BOOTSTRAP_PORT, POLICIES
from clustersim.scenario.scenario import Scenario

ROUTER_PORT: Final = "8192"
"""Where what stands between two pools listens; servers have 8000 and 8100."""


def commands_of(servers: Sequence[Started]) -> list[dict[str, Any]]:
    """Return ``name``, ``node``, ``devices``, ``copies``, ``command`` and its ``groups`` of words of each command."""
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
            shown = {"CUDA_VISIBLE_DEVICES": started.visible[node]} if started.visible else {}
            environment = started.environment | shown
            own_head = head if node == 0 else f"${{{started.server.name.upper()}_NODE_{node}_ADDRESS}}"
            variables = [f"{name}={quoted(text.replace(HEAD, own_head))}" for name, text in environment.items()]
            home = started.server.where()[node] if started.server.pool and started.copies == 1 else node
            found.append(_command(started, groups, variables, node=home, copies=started.copies))
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


def router_of(
    scenario: Scenario, engine: str, servers: Sequence[Started], account: Account
) -> tuple[tuple[str, ...], dict[str, Mapping[str, Any]]]:
    """Return the words of what stands between two pools, and its file."""
    routers = [str(started.server.serving.router) for started in servers]
    if engine == "sglang":
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation", "--port", ROUTER_PORT]
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
        return ("python", script, "--port", ROUTER_PORT, *hosts), {}
    ports = {"context_servers": (PORT, "PREFILL_ADDRESS"), "generation_servers": (PORT + 100, "DECODE_ADDRESS")}
    file: dict[str, Any] = {"hostname": "0.0.0.0", "port": int(ROUTER_PORT), "backend": "pytorch"}
    for (pool, (port, host)), started in zip(ports.items(), servers, strict=True):
        urls = [f"{host}_{copy}:{port}" for copy in range(started.copies)]
        file[pool] = {"num_instances": started.copies, "urls": urls, "router": {"type": "round_robin"}}
    return ("trtllm-serve", "disaggregated", "-c", "pools.yaml"), {"pools.yaml": file}
