"""What one pool of replicas was there for, and what it did: the parts that the measures of a run add up.

A request whose prompt one pool computes and whose output another one decodes is split where it changes pools: its
prompt and its first token belong to the first, what comes after to the second, as if it had begun there with one token
more of prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.cluster.device import Device
from clustersim.column import parts
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.memory import let_go
from clustersim.plan.memory import kv_elements_per_rank
from clustersim.plan.mesh import Mesh
from clustersim.replay.input import PoolInput
from clustersim.replay.programs import programs_of
from clustersim.report.metrics import efficiency
from clustersim.report.metrics.link_traffic import Programs, step_bytes
from clustersim.report.metrics.model_work import Computed, cache_reads, computed_positions, model_flops
from clustersim.report.metrics.step_features import StepFeatures, lockstep_features, step_features, tells_features
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.parts import as_a_run, as_one_replica
from clustersim.timeline.tables import Table, Tables
from clustersim.timeline.tokens import token_times
from clustersim.timeline.usage import Usage, usage_of
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolUse:
    """What one pool did.

    Parameters
    ----------
    devices : int
    device : Device
        What each of them is.
    flops : int
        That the model needs for what was computed here (``model_work.model_flops``).
    peak_flops : float or None
        Per second, of all its devices; None where the format of weights has no peak.
    read_bytes : float or None
        Weights and K/V cache that its steps had to read; None where that is not known.
    memory_bytes_per_s : float
        Of all its devices.
    usage : Usage
    carried : float array of shape (links,) or None
        Bytes of capacity that its steps took of each link; None where that is not known.
    """

    devices: int
    device: Device
    flops: int
    peak_flops: float | None
    read_bytes: float | None
    memory_bytes_per_s: float
    usage: Usage
    carried: FloatArray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Share:
    """Of every request, by its number, what a pool had to do.

    Parameters
    ----------
    prompts, generated : int64 array
        Its prompt as the pool sees it, and the tokens generated there.
    received : bool
        Whether all of the prompt but its last token was computed elsewhere.
    """

    prompts: Int64Array
    generated: Int64Array
    received: bool = False

    def computed(self, chunks: Table) -> Computed:
        """Return what the pool computed, once each."""
        if not self.received:
            return computed_positions(self.prompts, self.generated, chunks)
        first = self.prompts - 1
        return Computed(first=first, prompt=first, last=first + self.generated, generated=self.generated)


def pool_uses(result: RunResult) -> list[PoolUse]:
    """Return what each pool of a run did, in order of replicas."""
    let_go()
    shares = _shares(result)
    return [
        _use(result, pool, as_a_run(result.timeline, number), shares[number])
        for number, pool in enumerate(result.input.pools)
    ]


def _shares(result: RunResult) -> list[_Share]:
    prompts = np.asarray(result.input.requests.prompt_tokens, np.int64)
    if len(result.input.pools) > 1:
        sampled = token_times(result.timeline, len(prompts)).count  # also what no client got
        here = np.minimum(sampled, 1)
        return [
            _Share(prompts=prompts, generated=here),
            _Share(prompts=prompts + 1, generated=sampled - here, received=True),
        ]
    generated = np.asarray(result.requests["generated_tokens"], np.int64)
    if len(generated) < len(prompts):  # some never arrived
        generated = np.zeros(len(prompts), np.int64)
        generated[result.requests["request"]] = result.requests["generated_tokens"]
    return [_Share(prompts=prompts, generated=generated)]


def _use(result: RunResult, pool: PoolInput, tables: Tables, share: _Share) -> PoolUse:
    precision = result.scenario.precision
    plan = pool.plan.lockstep  # replicas that share experts are counted as one that has the ranks of all
    mesh = Mesh(plan=plan)
    device = result.input.topology.seen_from(mesh.device(0)).device
    # What a step must read and send is that of the whole step, be it run as two halves that read weights twice.
    programs: Programs = {
        at: {kind: kinds[kind] for kind in STEP_KINDS} for at, kinds in programs_of(pool, result.input.comm).items()
    }
    known = plan.sp.whole or tells_features(plan.sp)
    features: Mapping[tuple[int, str], StepFeatures]
    if plan.sp.whole:
        features, tables = lockstep_features(tables), as_one_replica(tables)
    else:
        features = step_features(tables, plan.sp) if known else {}
    weights = efficiency.weight_reads(programs, features, _steps_by_kind(tables), precision)
    let_go()
    peak = device.flops.get(precision.multiply_dtype(device.flops))
    return PoolUse(
        devices=plan.world,
        device=device,
        flops=model_flops(result.scenario.model, share.computed(tables.chunks)),
        peak_flops=None if peak is None else peak * plan.world,
        read_bytes=None if weights is None else weights + _cache_bytes(result, plan.tp, tables, share),
        memory_bytes_per_s=device.memory_bytes_per_s * plan.world,
        usage=usage_of(tables, plan.dp),
        carried=step_bytes(programs, features, mesh, result.input.comm) if known else None,
    )


def _cache_bytes(result: RunResult, tp: int, tables: Tables, share: _Share) -> float:
    """Return the bytes of the K/V cache that all ranks read; what TP cannot split, every rank of a group reads."""
    model = result.scenario.model
    elements = 0.0
    reads = cache_reads(model, tables.chunks, share.prompts, share.generated)
    for layer, read in zip(model.layers, reads, strict=True):
        elements += read * tp * kv_elements_per_rank(layer.attention, tp)
    return elements * result.scenario.precision.kv_bytes


def _steps_by_kind(tables: Tables) -> Mapping[tuple[int, str], int]:
    steps, width = tables.steps, (int(tables.steps["replica"].max(initial=-1)) + 1) * len(STEP_KINDS)
    rows, counts = np.zeros((2, width), np.int64)
    for some in parts(len(steps["kind"]), 8):
        code = steps["replica"][some].astype(np.int64) * len(STEP_KINDS) + steps["kind"][some]
        rows += np.bincount(code, minlength=width)
        counts += np.bincount(code, weights=steps["count"][some], minlength=width).astype(np.int64)
    kinds = np.flatnonzero(rows)
    total = counts[kinds]
    return {
        (place // len(STEP_KINDS), STEP_KINDS[place % len(STEP_KINDS)]): count
        for place, count in zip(kinds.tolist(), total.tolist(), strict=True)
    }
