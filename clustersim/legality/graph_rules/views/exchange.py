"""How many copies of tokens an exchange between experts sends, of the rows that experts take in the same graph."""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.prices.exchange import copies_of
from clustersim.model.architecture import Moe
from clustersim.plan.parallel import ParallelPlan


def copies_sent(
    view: GraphView, plan: ParallelPlan, nodes: Int64Array, tokens: Int64Array
) -> tuple[FloatArray, FloatArray]:
    """Return how many copies of one token go to all EP ranks, and how many of all tokens go to one of them at most.

    Parameters
    ----------
    view, plan
    nodes : array of int
        Dispatches and combines.
    tokens : array of int
        Of the step of each of them, on all ranks.

    Returns
    -------
    (array of float, array of float)
        NaN where a graph does not tell what it would take to know.
    """
    assert view.model is not None
    uneven = plan.ep.routing is not None or plan.ep.redundant > 0
    moes = [layer.ffn for layer in view.model.layers]
    copies, most = np.zeros(len(nodes)), np.zeros(len(nodes))
    rows = _rows(view, plan, nodes) if uneven else None
    known: dict[tuple[Moe, tuple[float, ...]], tuple[float, float]] = {}
    for at, layer in enumerate(view.layer[nodes].tolist()):
        moe = moes[layer]
        if not isinstance(moe, Moe):
            continue
        loads = (1.0,) * plan.ep.degree
        if rows is not None:
            mean = max(tokens[at] * moe.top_k / plan.ep.degree, 1e-9)
            if plan.ep.exchange == "deepep_normal" and np.isnan(rows[at]).any():
                copies[at] = np.nan
                continue
            loads = tuple(np.nan_to_num(rows[at] / mean).tolist())
        if (moe, loads) not in known:
            known[moe, loads] = copies_of(moe, plan.ep, loads)
        copies[at], most[at] = known[moe, loads]
    return copies, most * tokens


def _rows(view: GraphView, plan: ParallelPlan, nodes: Int64Array) -> FloatArray:
    """Return the rows that the experts of each EP rank take, in the layer, step and replica of some nodes.

    NaN where a graph does not tell.
    """
    ep = plan.ep.degree
    cell = np.stack([view.step, view.layer, view.replica_of(view.rank)])
    which = np.unique(cell, axis=1, return_inverse=True)[1].ravel()
    rows = np.full((which.max(initial=0) + 1, ep), -1.0)
    experts = np.flatnonzero(view.named("expert_up") & ~np.isnan(view.amount))
    owner = view.rank[experts] % plan.stage_ranks // plan.expert_tp
    np.maximum.at(rows, (which[experts], np.minimum(owner, ep - 1)), view.amount[experts])
    found: FloatArray = np.where(rows < 0, np.nan, rows)[which[nodes]]
    return found
