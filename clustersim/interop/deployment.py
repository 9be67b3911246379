"""Which devices a ``vllm serve`` command takes, and how its ranks share the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem
from clustersim.interop.keys import PLACES, STAGE_LAYERS, VLLM
from clustersim.interop.options import Options, choice_of, count, whole
from clustersim.interop.served_model import ServedModel
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.scenario.parts import load_topology
from clustersim.units import plural

TOPOLOGY: Final = "dgx-h100"
Lines = tuple[tuple[str, Any, str], ...]
"""(path, value, origin) of entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Devices and plan of a server, as entries of a scenario."""

    device: Device
    topology: Lines
    plan: Lines
    router: Lines


def deploy(options: Options, served: ServedModel | None, topology: str | None) -> Deployed | None:
    """Read devices and plan; problems go to the options.

    Parameters
    ----------
    options : Options
    served : ServedModel or None
    topology : str or None
        A name or a path; ``dgx-h100`` without it.
    """
    tp, tp_origin = options.value(VLLM["plan.tp"], count, 1)
    pp, pp_origin = options.value(VLLM["plan.pp"], count, 1)
    dp, dp_origin = options.value(VLLM["plan.dp"], count, 1)
    nodes = options.value("--nnodes", count, 1)[0] if options.given("--nnodes") is not None else None
    plan = [("plan.tp", tp, tp_origin), ("plan.pp", pp, pp_origin), ("plan.dp", dp, dp_origin)]
    if served is not None:
        plan += [*_stages(options, served.spec, pp), *_experts(options, served.spec, tp=tp, dp=dp, pp=pp)]
    found = _devices(options, topology, tp * pp * dp, nodes)
    if found is None or options.problems:
        return None
    built, lines = found
    placed = _placed(options, built, tp * pp * dp, nodes)
    return Deployed(device=built.device, topology=lines, plan=(*plan, *placed), router=_router(options, dp))


def _stages(options: Options, model: ModelSpec, pp: int) -> list[tuple[str, Any, str]]:
    """Return where stages begin, if the environment says how many layers each has."""
    word = options.command.environment.get(STAGE_LAYERS)
    if word is None:
        return []
    layers = [int(part) for part in re.findall(r"\d+", word.text)]
    if word.expands or not re.fullmatch(rf"{STAGE_LAYERS}=\d+(,\d+)*", word.text.removeprefix("--env=")):
        options.problems.append(word.problem("expected how many layers each stage has, such as 40,40"))
    elif len(layers) != pp or sum(layers) != len(model.layers) or not all(layers):
        have = f"expected {plural(pp, 'stage')} with {len(model.layers)} layers in all"
        options.problems.append(word.problem(f"vLLM refuses it: {have}"))
    elif pp > 1:
        return [("plan.stages.cuts", list(accumulate(layers))[:-1], STAGE_LAYERS)]
    return []


def _experts(options: Options, model: ModelSpec, *, tp: int, dp: int, pp: int) -> list[tuple[str, Any, str]]:
    """Return the entries of expert parallelism: vLLM spreads experts over TP × DP, or splits each over them."""
    on, origin = options.on(VLLM["plan.ep"], False)
    switch = options.given(VLLM["plan.ep"])
    data = options.given(VLLM["plan.dp"])
    moe = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    if on and switch is not None and not moe:
        options.wrong(switch, "vLLM refuses it for a model without experts")
    if not moe:
        return []
    if not on and dp > 1 and data is not None:
        options.wrong(data, "vLLM splits each expert over the ranks of all replicas, which is not simulated; "
                      "add --enable-expert-parallel, or take one replica")  # fmt: skip
    lines: list[tuple[str, Any, str]] = [("plan.ep.degree", tp * dp if on else 1, origin)]
    if on and dp > 1:
        lines.append(("plan.ep.scope", "global", "vLLM spreads experts over the ranks of all replicas"))
    place, origin = options.value(VLLM["plan.ep.placement"], choice_of(*PLACES), "linear")
    if not on:
        return lines
    return [*lines, ("plan.ep.placement", PLACES[place], origin), *_two_batches(options, ranks=tp * dp, pp=pp)]


def _two_batches(options: Options, *, ranks: int, pp: int) -> list[tuple[str, Any, str]]:
    """Return the entries of dual-batch overlap, with the thresholds from which on vLLM splits a step."""
    on, origin = options.on(VLLM["plan.ep.overlap"], False)
    switch = options.given(VLLM["plan.ep.overlap"])
    decode, of_decode = options.value(VLLM["plan.ep.overlap_decode_tokens"], whole, 32)
    prefill, of_prefill = options.value(VLLM["plan.ep.overlap_prefill_tokens"], whole, 512)
    if not on or switch is None or ranks == 1:
        return []
    if pp > 1:
        options.wrong(switch, "two batches that overlap are simulated at --pipeline-parallel-size 1 only")
    return [
        ("plan.ep.overlap", "two_batch", origin),
        ("plan.ep.overlap_decode_tokens", decode, of_decode),
        ("plan.ep.overlap_prefill_tokens", prefill, of_prefill),
    ]


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
    """Return where ranks are when nodes are not filled: vLLM spreads them evenly."""
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


def _router(options: Options, dp: int) -> Lines:
    """Return the router of several replicas; with an external balancer, the plainest one."""
    if dp == 1:
        return ()
    for name in ("--data-parallel-external-lb", "--data-parallel-hybrid-lb"):
        if options.on(name, False)[0]:
            return (("serving.router", "round_robin", f"{name}: the balancer is outside of vLLM; assumed"),)
    if options.given("--data-parallel-rank") is not None:
        return (("serving.router", "round_robin", "--data-parallel-rank: an external balancer; assumed"),)
    return (("serving.router", "fewest_waiting", "how vLLM balances its replicas"),)
