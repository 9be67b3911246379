"""Which devices the command of a server takes, and how its ranks share the model."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final

from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem
from clustersim.interop.options import Options, count
from clustersim.model.architecture import ModelSpec
from clustersim.scenario.parts import load_topology
from clustersim.units import plural
from clustersim.values import dataclass

TOPOLOGY: Final = "dgx-h100"
Lines = tuple[tuple[str, Any, str], ...]
"""(path, value, origin) of entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees of a plan with their origins, and how experts and requests are spread over its ranks."""

    tp: tuple[int, str]
    pp: tuple[int, str]
    dp: tuple[int, str]
    experts: Lines = ()
    router: Lines = ()

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp[0] * self.pp[0] * self.dp[0]

    @property
    def plan(self) -> Lines:
        """The degrees as entries."""
        return (("plan.tp", *self.tp), ("plan.pp", *self.pp), ("plan.dp", *self.dp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Devices and plan of a server, as entries of a scenario."""

    device: Device
    topology: Lines
    plan: Lines


def deploy(options: Options, degrees: Degrees, model: ModelSpec | None, topology: str | None) -> Deployed | None:
    """Find devices, and where ranks and stages are on them; problems go to the options.

    Parameters
    ----------
    options : Options
    degrees : Degrees
        What the engine makes of the degrees of the command.
    model : ModelSpec or None
    topology : str or None
        A name or a path; ``dgx-h100`` without it.
    """
    nodes = options.value("--nnodes", count, 1)[0] if options.given("--nnodes") is not None else None
    stages = _stages(options, model, degrees.pp[0]) if model is not None else []
    found = _devices(options, topology, degrees.world, nodes)
    if found is None or options.problems:
        return None
    built, lines = found
    placed = _placed(options, built, degrees.world, nodes)
    return Deployed(device=built.device, topology=lines, plan=(*degrees.plan, *stages, *degrees.experts, *placed))


def _stages(options: Options, model: ModelSpec, pp: int) -> list[tuple[str, Any, str]]:
    """Return where stages begin, if the environment says how many layers each has."""
    variable = options.keys["plan.stages"]
    word = options.command.environment.get(variable)
    if word is None:
        return []
    layers = [int(part) for part in re.findall(r"[0-9]+", word.text)]
    if word.expands or not re.fullmatch(rf"{variable}=[0-9]+(,[0-9]+)*", word.text.removeprefix("--env=")):
        options.problems.append(word.problem("expected how many layers each stage has, such as 40,40"))
    elif len(layers) != pp or sum(layers) != len(model.layers) or not all(layers):
        have = f"expected {plural(pp, 'stage')} with {len(model.layers)} layers in all"
        options.problems.append(word.problem(f"{options.command.grammar.engine} refuses it: {have}"))
    elif pp > 1:
        return [("plan.stages.cuts", list(accumulate(layers))[:-1], variable)]
    return []


def _devices(options: Options, chosen: str | None, world: int, nodes: int | None) -> tuple[Topology, Lines] | None:
    """Return the topology with as many nodes as it takes, and its entries."""
    name = chosen or TOPOLOGY
    try:
        whole = load_topology(name)
    except InputError as error:
        options.problems.extend(Problem(message=problem.message, path="--topology") for problem in error.problems)
        return None
    origin = "--topology" if chosen is not None else "assumed"
    try:
        per_node = len(load_topology(name, ["nodes=1"]).devices)
    except InputError:  # a fabric without nodes, such as a torus
        if world > len(whole.devices) or nodes not in (None, 1):
            options.problems.append(_too_few(whole, world))
            return None
        return whole, (("topology", name, origin),)
    needed = max(-(-world // per_node), nodes or 1)
    try:
        built = load_topology(name, [f"nodes={needed}"])
    except InputError:
        options.problems.append(_too_few(whole, world))
        return None
    why = f"{world} device{'s' if world > 1 else ''}, {per_node} in a node" + (", --nnodes" if nodes else "")
    return built, (("topology.name", name, origin), ("topology.nodes", needed, why))


def _too_few(topology: Topology, world: int) -> Problem:
    message = (
        f"{topology.name} has {plural(len(topology.devices), 'device')} in one domain, and the command asks for {world}"
    )
    return Problem(path="--topology", message=f"{message}; choose another")


def _placed(options: Options, topology: Topology, world: int, nodes: int | None) -> Lines:
    """Return where ranks are when nodes are not filled: engines spread them evenly."""
    per_node = len(topology.devices) // (int(topology.node_of.max()) + 1)
    choice = options.given("--nnodes")
    if nodes is None or choice is None or world == nodes * per_node or nodes == 1:
        return ()
    if world % nodes or world // nodes > per_node:
        options.wrong(choice, f"{world} ranks cannot be spread evenly over {nodes} nodes of {per_node} devices")
        return ()
    each = world // nodes
    names = [topology.devices[node * per_node + rank] for node in range(nodes) for rank in range(each)]
    return (("plan.placement", names, f"--nnodes: {each} ranks in a node"),)
