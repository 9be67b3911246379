"""What a run made of its devices: MFU, MBU, busy fractions, bubble, exposed communication, energy and cost.

Each metric is defined once, in the function that computes it. All are over the same time, *elapsed*: from the first
arrival to the end of the last step (the makespan, where every request finishes), and over the devices of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.cluster.device import Device
from clustersim.cost.precision import Precision
from clustersim.graph.prices.pricer import active_experts
from clustersim.graph.program import StageProgram
from clustersim.report.metrics.link_traffic import Programs
from clustersim.report.metrics.step_features import StepFeatures
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.usage import Usage

IDLE_SHARE: Final = 0.1
"""Idle power over board power where a device's file has none. Assumed: data-centre GPUs with a model loaded and nothing
to do draw 60 to 120 W of 400 to 1,000 W (general knowledge, not measured here)."""
_COMMUNICATION: Final = ("comm", "send", "recv", "kv_out", "kv_in")


def mfu(flops: float, peak_flops: float, elapsed_ns: int) -> float:
    """Return model FLOPs utilisation: what the model needs for the computed tokens over what the devices could do.

    PaLM's definition [1]_ for inference: ``flops`` as :func:`clustersim.report.metrics.model_work.model_flops` counts
    them (forward pass only, each token once, no recomputation), ``peak_flops`` per second the sum over devices of the
    dense peak in the format in which weights are multiplied.

    .. [1] Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B.
    """
    return flops / (peak_flops * elapsed_ns / NS_PER_S)


def mbu(must_read_bytes: float, memory_bytes_per_s: float, elapsed_ns: int) -> float:
    """Return model bandwidth utilisation: weights and K/V cache that steps must read over what memory could give.

    The definition of Databricks [1]_ (parameters and K/V cache per step over its time, by the peak bandwidth), summed
    over steps, ranks and prefill too; ``memory_bytes_per_s`` is the sum over devices. Activations and writes are not
    counted.

    .. [1] Agarwal et al., "LLM Inference Performance Engineering: Best Practices", Databricks, 2023.
    """
    return must_read_bytes / (memory_bytes_per_s * elapsed_ns / NS_PER_S)


def weight_reads(
    programs: Programs, features: Mapping[tuple[int, str], StepFeatures], num_steps: Mapping[tuple[int, str], int],
    precision: Precision,
) -> float | None:  # fmt: skip
    """Return the bytes of weights that all steps read on all ranks together.

    Every product of a rank reads its weights once per step. Experts are read when they get a token: as many as are
    expected to when tokens choose theirs evenly. None where there are experts and it is not known what ranks carried.

    Parameters
    ----------
    programs : Programs
    features : mapping
        (replica, kind) → what steps carried; empty where that is not known.
    num_steps : mapping
        (replica, kind) → steps.
    precision : Precision
        Number formats.
    """
    total = 0.0
    for (replica, stage), kinds in programs.items():
        del stage
        for kind, program in kinds.items():
            count = num_steps.get((replica, kind), 0)
            if not count:
                continue
            elements, experts = program.product_weights
            total += count * math.fsum(size * precision.bytes_of(name) for name, size in elements.items())
            for cls, size in experts.items():
                if (replica, kind) not in features:
                    return None
                each = size * precision.bytes_of(program.classes[cls].node.weights)
                total += each * _active(program, cls, features[replica, kind])
    return total


def _active(program: StageProgram, cls: int, steps: StepFeatures) -> float:
    """Return the experts of one rank that get a token, summed over steps."""
    chosen = program.classes[cls]
    rows, of = np.unique(steps.amount(chosen.node.amount, chosen.s), return_inverse=True)
    often = np.bincount(of, steps.counts, len(rows))
    active = np.array([active_experts(chosen.node, row) for row in rows.tolist()])
    return float((active * often).sum())  # as in ``service.time_mean``


def busy_fractions(usages: Sequence[Usage], elapsed_ns: int) -> dict[str, float]:
    """Return the share of the elapsed time that streams are busy, the mean over the devices of all pools.

    ``compute``, ``communication`` (collectives, sends, receives and moves of K/V; at one instant a device may do
    several, and each counts) and ``host`` (the engine schedules and samples); ``exposed_communication``: the device
    communicates while its compute and host streams are idle, each instant once.
    """
    mean = np.concatenate([usage.busy_ns for usage in usages]).mean(axis=0) / elapsed_ns
    exposed_ns = np.concatenate([usage.exposed_ns for usage in usages])
    communication = math.fsum(mean[STREAMS.index(stream)] for stream in _COMMUNICATION)
    return {
        "compute": float(mean[STREAMS.index("compute")]),
        "communication": float(communication),
        "exposed_communication": float(exposed_ns.mean() / elapsed_ns),
        "host": float(mean[STREAMS.index("host")]),
    }


def bubbles(usage: Usage) -> FloatArray:
    """Return the bubble of each stage: the share of the time with a step in flight in which the stage has none of it.

    It is what filling, draining and unequal stages of a pipeline cost: (p − 1) / (m + p − 1) of m micro-batches on p
    equal stages [1]_. Time without any step in flight (no requests) is nobody's bubble. Shape (replicas, stages); 0
    where a replica had no step.

    .. [1] Huang et al., "GPipe", NeurIPS 2019, section 2.
    """
    in_flight = usage.in_flight_ns[:, None].astype(np.float64)
    held = np.divide(usage.held_ns, in_flight, out=np.ones(usage.held_ns.shape), where=in_flight > 0)
    return np.maximum(0.0, 1.0 - held)


def stage_rows(usage: Usage, elapsed_ns: int) -> list[dict[str, float]]:
    """Return a row per stage, the mean over replicas: what its ranks did, its bubble, and what is left, idle.

    ``compute``, ``exposed_communication`` and ``host`` are shares of the elapsed time, means over the stage's ranks;
    ``bubble`` is a share of the time with a step in flight.
    """
    replicas, stages = usage.held_ns.shape
    busy = usage.busy_ns.reshape(replicas, stages, -1, len(STREAMS)).mean(axis=(0, 2)) / elapsed_ns
    exposed = usage.exposed_ns.reshape(replicas, stages, -1).mean(axis=(0, 2)) / elapsed_ns
    bubble = bubbles(usage).mean(axis=0)
    return [
        {
            "stage": stage,
            "compute": float(busy[stage, STREAMS.index("compute")]),
            "exposed_communication": float(exposed[stage]),
            "host": float(busy[stage, STREAMS.index("host")]),
            "bubble": float(bubble[stage]),
        }
        for stage in range(stages)
    ]


def energy_j(device: Device, busy_ns: Int64Array, elapsed_ns: int) -> float | None:
    """Return the energy of the run's devices in J; None where the device's file has no board power.

    Linear in how busy a device is [1]_: idle power + (board power − idle power) × the share of the time in which its
    compute stream is busy. Hosts, switches and cooling are not counted, nor that a memory-bound operator draws less
    than the board's power: an upper estimate for decoding.

    Parameters
    ----------
    device : Device
    busy_ns : int64 array of shape (devices,)
        Of the compute streams.
    elapsed_ns : int

    References
    ----------
    .. [1] Fan, Weber, Barroso, "Power provisioning for a warehouse-sized computer", ISCA 2007, section 3.
    """
    if device.power_w is None:
        return None
    idle = idle_power_w(device)
    return (idle * elapsed_ns * len(busy_ns) + (device.power_w - idle) * float(busy_ns.sum())) / NS_PER_S


def idle_power_w(device: Device) -> float:
    """Return the idle power of a device in W: that of its file, or the assumed share of its board power."""
    assert device.power_w is not None
    return IDLE_SHARE * device.power_w if device.idle_power_w is None else device.idle_power_w


def cost_usd(device: Device, devices: int, elapsed_ns: int) -> float | None:
    """Return what so many devices cost for the elapsed time in USD; None where the device has no price."""
    return None if device.price_per_hour is None else device.price_per_hour * devices * elapsed_ns / NS_PER_S / 3600


def per_output(total: float | None, output_tokens: int, scale: float = 1.0) -> float | None:
    """Return a total per output token × ``scale``; None without a total or tokens."""
    return None if total is None or not output_tokens else total * scale / output_tokens


def efficiency_rates(output_tokens: int, devices: int, elapsed_ns: int) -> dict[str, Any]:
    """Return all output tokens, of unfinished requests too, per second of the elapsed time; and per device."""
    rate = output_tokens * NS_PER_S / elapsed_ns
    return {"generated_tokens_per_s": rate, "generated_tokens_per_s_per_device": rate / devices}
