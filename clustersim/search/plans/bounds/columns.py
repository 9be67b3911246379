"""The least time of a step by what it carries, on a grid: what bounds on capacity are made of.

A *column* stands for all steps with at most so many prompt tokens and decodes. Its time is that of the step with the
fewest of both in its cell, in which prompts attend to nothing and are one chunk; more tokens, keys, sequences or bytes
never cost less (:mod:`clustersim.cost.roofline`, and the cheapest of several algorithms of a collective). What keys and
pairs add is linear: the roofline of attention is convex in them, so no tangent of it lies above.

With several coordinates (SP ranks, replicas in lockstep) the time is that of the rank with most tokens, which has at
least the mean of them; which part are prompts is not known, so that what depends on one part alone is left out. Experts
of replicas in lockstep compute the tokens of all: a column has R (n − 1) + 1 of them, the fewest of which R ranks have
n each when rounded up.

Where these only decode, keys count, too. A step waits for each rank r, for one operator after the other on the same
path (:mod:`~clustersim.search.plans.bounds.short_programs`): for exchanges, which take the same for all, for what
experts do with the tokens of all, and for what r does by itself, at least g(n_r) + c·k_r with n_r sequences and k_r
keys. So it takes at least the mean of that over the ranks that decode, which with a convex function h ≤ g is
h(n) + c·k/R or more, of the mean n of all R ranks and all their keys k (Jensen).

A captured graph computes the next larger size (:meth:`~clustersim.cost.engine.Engine.padded`), a column its own tokens:
padded, one of decodes could be longer than a step of the same and a prompt, which runs without a graph.

Measured points may fall: where operators have any, their roofline at the least measured ratio stands for them
(:class:`~clustersim.cost.table.LeastCost`).

Not bounded: two-batch overlap. It has no columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.cost.protocol import CostModel
from clustersim.cost.table import LeastCost, TableCost
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.bounds.stage_prices import stage_prices
from clustersim.search.plans.bounds.stage_times import RATIO, Asked, StageTimes, cells
from clustersim.simulation.priced import Priced
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Steps of one replica, or of all that share experts: float arrays of shape (columns,) or (stages, columns).

    Parameters
    ----------
    prompt, decodes : array of shape (columns,)
        At most so many prompt tokens, and sequences that decode …
    least_prompt, least_decodes : array of shape (columns,)
        … and at least so many.
    stage_ns : array of shape (stages, columns)
        Least time on each of some stages.
    latency_ns : array of shape (columns,)
        Least time through all stages.
    key_ns : array of shape (stages, columns)
        What each key that decodes attend to adds at least.
    pair_ns : array of shape (stages,)
        What each pair that prompts attend to adds at least.
    """

    prompt: FloatArray
    decodes: FloatArray
    least_prompt: FloatArray
    least_decodes: FloatArray
    stage_ns: FloatArray
    latency_ns: FloatArray
    key_ns: FloatArray
    pair_ns: FloatArray


Duty = Literal["both", "prefill", "decode"]
_BY_COLUMN: Final = ("prompt", "decodes", "least_prompt", "least_decodes", "stage_ns", "latency_ns", "key_ns")


def least_cost(cost: CostModel) -> CostModel:
    """Return a model that costs nowhere more, and more with more work."""
    return LeastCost(cost) if isinstance(cost, TableCost) else cost


def columns_of(
    plan: ParallelPlan,
    found: Priced,
    *,
    tokens: int,
    requests: int,
    context: float,
    apart: bool = False,
    own: bool = False,
    duty: Duty = "both",
    ratio: float = RATIO,
) -> Columns | None:
    """Return the columns of a plan with one replica, or of replicas in lockstep; None where nothing is proven.

    Parameters
    ----------
    plan : ParallelPlan
        At sp 1: what SP ranks do is bounded by what one of them does (:func:`spread`).
    found : Priced
        What prices it.
    tokens, requests : int
        Most tokens in a step, and most sequences that decode, of each coordinate.
    context : float
        Keys of a decode where tangents are taken.
    apart : bool
        Whether it is one of several SP ranks that is looked at: the one with most tokens.
    own : bool
        Whether columns are of what one of several replicas in lockstep does by itself, without experts, and not of the
        one with most tokens.
    duty : str
        Of a pool: ``prefill`` leaves out steps that decode, ``decode`` those with prompts.
    ratio : float
        Of neighbours on the grid.
    """
    plan = plan.lockstep
    if plan.is_two_batch:
        return None
    axes = cells(0 if duty == "decode" else tokens, ratio), cells(0 if duty == "prefill" else requests, ratio)
    low, high = ([part.ravel() for part in np.meshgrid(*ends, indexing="ij")] for ends in zip(*axes, strict=True))
    kept = (low[0] + low[1] > 0) & (low[0] + low[1] <= tokens)
    points = low[0][kept], low[1][kept]
    most = float(high[1].max(initial=0.0))
    stages = stages_of(plan, found, points, context, apart=apart, own=own, most=most)
    ends = [stages[stage] for stage in sorted({0, plan.pp - 1})]
    return Columns(
        prompt=high[0][kept],
        decodes=high[1][kept],
        least_prompt=points[0],
        least_decodes=points[1],
        stage_ns=np.array([stage.ns for stage in ends]),
        latency_ns=np.sum([stage.ns + stage.send_ns - (stage.shared_ns if own else 0.0) for stage in stages], axis=0),
        key_ns=np.array([stage.key_ns for stage in ends]),
        pair_ns=np.array([stage.pair_ns for stage in ends]),
    )


def stages_of(
    plan: ParallelPlan,
    found: Priced,
    points: tuple[FloatArray, FloatArray],
    context: float,
    *,
    apart: bool = False,
    own: bool = False,
    most: float = 0.0,
) -> list[StageTimes]:
    """Return the least times of each stage, where steps carry at least so many prompt tokens and decodes.

    Parameters
    ----------
    plan, found, context, apart, own
        See :func:`columns_of`.
    points : (array, array)
    most
        See :class:`~clustersim.search.plans.bounds.stage_times.Asked`.
    """
    ((blueprints, pricer),) = found.pools
    asked = Asked(
        *points,
        context,
        several=apart or (plan.sp.degree > 1 and not own),
        ranks=1 if own else plan.sp.degree,
        whole=plan.sp.whole,
        most=most,
    )
    return stage_prices(found.comm).stages(
        Mesh(plan=plan), replace(pricer, cost=least_cost(pricer.cost)), blueprints, asked
    )


def of_duty(columns: Columns, duty: Duty) -> Columns:
    """Return the columns that a pool needs: of steps without decodes, or without prompts; all where it does both."""
    if duty == "both":
        return columns
    return _only(columns, (columns.decodes if duty == "prefill" else columns.prompt) == 0)


def most_tokens(tokens: int, ranks: int, decodes: int) -> int:
    """Return the most tokens of a column that a step of several ranks can fall into: where the first of them decodes
    alone (so many sequences; else 0), beside its share of the prompts. Shares of both are rounded up."""
    return tokens if ranks == 1 else tokens // ranks + decodes + 1


def within(columns: Columns, *, prompt: float, tokens: float, requests: float) -> Columns:
    """Return the columns that steps of so many prompt tokens, tokens and decodes at most can fall into.

    Of SP ranks they are what is to each in the mean, above which one of them has the next whole number.
    """
    least, most, longest = columns.least_decodes, np.ceil(requests), np.ceil(prompt)
    kept = (columns.least_prompt + least <= tokens) & (least <= most) & (columns.least_prompt <= longest)
    cut = _only(columns, kept)
    return replace(cut, decodes=np.minimum(cut.decodes, requests), prompt=np.minimum(cut.prompt, prompt))


def _only(columns: Columns, kept: npt.NDArray[np.bool_]) -> Columns:
    return replace(columns, **{name: getattr(columns, name)[..., kept] for name in _BY_COLUMN})


def spread(columns: Columns, ranks: int, *, decodes: bool) -> Columns:
    """Return what SP ranks do together where the one with most tokens does what these columns say.

    With ``decodes`` they keep whole sequences each; else the first of them decodes, and a step takes at least what its
    prompts or its decodes would take by themselves.
    """
    prompt, count = columns.prompt * ranks, columns.decodes
    if decodes:
        return replace(columns, prompt=prompt, decodes=count * ranks, pair_ns=np.zeros_like(columns.pair_ns))
    by_prompt, by_decodes = (_lone(own, other) for own, other in ((columns.prompt, count), (count, columns.prompt)))

    def larger(values: FloatArray) -> FloatArray:
        each = (np.where(at < 0, 0.0, values[..., at]) for at in (by_prompt, by_decodes))
        return np.maximum(*each)

    return replace(
        columns,
        prompt=prompt,
        stage_ns=larger(columns.stage_ns),
        latency_ns=larger(columns.latency_ns),
        pair_ns=np.zeros_like(columns.pair_ns),
    )


def _lone(own: FloatArray, other: FloatArray) -> Int64Array:
    """Return for each column the one with as much of one kind and nothing of the other; −1 where there is none."""
    lone = np.flatnonzero(other == 0)
    lone = lone[np.argsort(own[lone], kind="stable")]
    if not len(lone):
        return np.full(len(own), -1)
    at = np.minimum(np.searchsorted(own[lone], own), len(lone) - 1)
    found: Int64Array = np.where(own[lone[at]] == own, lone[at], -1)
    return found
