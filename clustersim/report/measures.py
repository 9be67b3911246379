"""The metrics of devices, links, energy and cost of a run: gathers what they are functions of, and names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.plan.memory import kv_elements_per_rank
from clustersim.plan.mesh import Mesh
from clustersim.replay.compile import compile_programs
from clustersim.report import efficiency
from clustersim.report.model_work import cache_reads, computed_positions, model_flops
from clustersim.report.step_features import step_features, tells_features
from clustersim.report.traffic import link_bytes, link_summary
from clustersim.run.simulate import RunResult
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.tables import Tables
from clustersim.timeline.usage import usage_of


def elapsed_ns(result: RunResult) -> int:
    """Return the time from the first arrival to the end of the last step or move of K/V entries, ns; 0 without any."""
    arrived = result.requests["arrived_ns"]
    return max(0, result.timeline.end_ns - int(arrived.min())) if len(arrived) else 0


def measures(result: RunResult) -> dict[str, Any]:
    """Return ``utilisation``, ``links``, ``energy`` and ``cost`` of ``summary.json``.

    None where no step ran, and where pools have plans of their own or replicas share experts: what these do is not
    added up yet.
    """
    elapsed, plan = elapsed_ns(result), result.given.plan
    shared = plan.ep.scope == "global" and plan.ep.degree > 1 and plan.dp > 1
    if not elapsed or not result.timeline.num_steps or len(result.given.pools) > 1 or shared:
        return dict.fromkeys(("utilisation", "links", "energy", "cost"))
    given, tables = result.given, result.timeline
    device = given.topology.device
    devices = plan.world
    output_tokens = int(np.asarray(result.requests["generated_tokens"]).sum())
    mesh = Mesh(plan=plan)
    programs = compile_programs(mesh, given.blueprints, given.comm)
    features = step_features(tables, plan.sp) if tells_features(plan.sp) else {}
    usage = usage_of(tables, plan.dp)
    flops = _model_flops(result)
    peak = device.flops.get(result.scenario.precision.multiply_dtype(device.flops))
    weights = efficiency.weight_reads(
        programs, features, _steps_by_kind(tables), result.scenario.precision.weight_bytes
    )
    read = None if weights is None else weights + _cache_bytes(result)
    utilisation: dict[str, Any] = {
        "mfu": None if peak is None else efficiency.mfu(flops, peak, devices, elapsed),
        "mbu": None if read is None else efficiency.mbu(read, device.memory_bytes_per_s, devices, elapsed),
        **efficiency.busy_fractions(usage, elapsed),
        "bubble": float(efficiency.bubbles(usage).mean()),
        **efficiency.efficiency_rates(output_tokens, devices, elapsed),
        "stages": efficiency.stage_rows(usage, elapsed),
        "devices": (usage.busy_ns[:, STREAMS.index("compute")] / elapsed).tolist(),
    }
    links = None
    if tells_features(plan.sp):
        carried = link_bytes(tables, programs, features, mesh, given.comm)
        links = link_summary(given.topology, carried, elapsed)
    energy = efficiency.energy_j(device, usage.busy_ns[:, STREAMS.index("compute")], elapsed)
    cost = efficiency.cost_usd(device, devices, elapsed)
    return {
        "utilisation": utilisation,
        "links": links,
        "energy": None
        if energy is None
        else {
            "joules": energy,
            "joules_per_output_token": efficiency.per_output(energy, output_tokens),
            "mean_device_w": energy / (devices * elapsed / 1e9),
            "idle_device_w": efficiency.idle_power_w(device),
            "idle_assumed": device.idle_power_w is None,
        },
        "cost": None
        if cost is None
        else {"usd": cost, "usd_per_million_output_tokens": efficiency.per_output(cost, output_tokens, 1e6)},
    }


def _by_number(result: RunResult, column: str) -> Int64Array:
    """Return a column of requests by number of request; 0 for those that did not arrive."""
    found = np.zeros(len(result.given.requests.prompt_tokens), np.int64)
    found[result.requests["request"]] = result.requests[column]
    return found


def _model_flops(result: RunResult) -> int:
    prompts = np.asarray(result.given.requests.prompt_tokens, np.int64)
    computed = computed_positions(prompts, _by_number(result, "generated_tokens"), result.timeline.chunks)
    return model_flops(result.scenario.model, computed)


def _cache_bytes(result: RunResult) -> float:
    """Return the bytes of the K/V cache that all ranks read; what TP cannot split, every rank of a group reads."""
    model, tp = result.scenario.model, result.given.plan.tp
    prompts = np.asarray(result.given.requests.prompt_tokens, np.int64)
    reads = cache_reads(model, result.timeline.chunks, prompts, _by_number(result, "generated_tokens"))
    elements = 0.0
    for layer, read in zip(model.layers, reads, strict=True):
        elements += read * tp * kv_elements_per_rank(layer.attention, tp)
    return elements * result.scenario.precision.kv_bytes


def _steps_by_kind(tables: Tables) -> Mapping[tuple[int, str], int]:
    steps = tables.steps
    code = steps["replica"].astype(np.int64) * len(STEP_KINDS) + steps["kind"]
    kinds, of = np.unique(code, return_inverse=True)
    total = np.zeros(len(kinds), np.int64)
    np.add.at(total, of, steps["count"])
    return {
        (place // len(STEP_KINDS), STEP_KINDS[place % len(STEP_KINDS)]): count
        for place, count in zip(kinds.tolist(), total.tolist(), strict=True)
    }
