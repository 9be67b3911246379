"""A launch as text, a script or a manifest with what it leaves unsaid at its head, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustersim import catalog
from clustersim.interop.launch.commands import quoted
from clustersim.interop.launch.launch import Launch
from clustersim.interop.launch.server import ENGINES
from clustersim.interop.launch.versions import version_of
from clustersim.scenario.resolve import to_yaml
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.text.flow import flow
from clustersim.units import plural


def launch_text(scenario: Scenario, launch: Launch) -> str:
    """Return a script or a manifest, with what it leaves unsaid at its head."""
    plans = " and ".join(
        plural(one.copies * one.devices, "device") + (f" for {one.server.pool}" if one.server.pool else "")
        for one in launch.servers
    )
    head = [f"{scenario.name}: {ENGINES[launch.engine]} on {scenario.topology.name}, {plans}."]
    if launch.simulated_as:
        head.insert(0, f"SIMULATED AS ANOTHER ENGINE: {simulated_words(launch)}.")
    head += [f"NOT SAID {line}" for line in unsaid_lines(launch)]
    head += [f"NOTE {note}" for note in launch.notes]
    lines = [f"# {line}" for line in head]
    if launch.manifest:
        return "\n".join(lines) + "\n" + "---\n".join(to_yaml(one) for one in launch.manifest)
    for name, data in launch.files.items():
        lines += ["", f"cat >{name} <<'YAML'", to_yaml(data).rstrip("\n"), "YAML"]
    for command in launch.commands:
        nodes = sum(other["name"] == command["name"] for other in launch.commands)
        times = f", {command['copies']} times" if command["copies"] > 1 else ""
        placed = nodes > 1 or (len(launch.servers) > 1 and command["copies"] == 1)
        where = f", on node {command['node']}" if placed else ""
        lines += ["", f"# {command['name']}{where}{times}"]
        lines.append(_wrapped(command["groups"]))
    if launch.router:
        lines += ["", "# router", " ".join(map(quoted, launch.router))]
    if launch.benchmark:
        lines += ["", "# benchmark", _wrapped([[quoted(word) for word in group] for group in launch.benchmark])]
    return "\n".join(lines) + "\n"


def unsaid_lines(launch: Launch) -> list[str]:
    """Return what is left unsaid, a line each: the key, what the scenario has there, and what happens instead."""
    return [f"{one.path}: {_short(one.value)}; {one.why}" for one in launch.unsaid]


def simulated_words(launch: Launch) -> str:
    """Return that the scenario has the times of another engine, and how to simulate it with those of this one."""
    own = [name for name in catalog.names("scenarios/engines") if version_of(name, launch.engine)]
    newest = max(own, key=lambda name: version_of(name, launch.engine) or ())
    return (
        f"figures of this scenario are those of {launch.simulated_as}, and {ENGINES[launch.engine]} is started; "
        f"for its own: --set serving.engine={newest}"
    )


def _wrapped(groups: Sequence[Sequence[str]]) -> str:
    return " \\\n  ".join(" ".join(group) for group in groups)


def _short(value: Any) -> str:
    text = flow(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def launch_json(launch: Launch) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "for": launch.target,
        "engine": launch.engine,
        "simulated_as": launch.simulated_as or None,
        "commands": [
            {key: one[key] for key in ("name", "node", "devices", "copies", "command")} for one in launch.commands
        ],
        "router": " ".join(map(quoted, launch.router)) or None,
        "benchmark": " ".join(quoted(word) for group in launch.benchmark for word in group) or None,
        "files": dict(launch.files),
        "manifest": list(launch.manifest),
        "unsaid": [{"path": one.path, "value": one.value, "why": one.why} for one in launch.unsaid],
        "notes": list(launch.notes),
    }
