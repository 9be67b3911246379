"""Operators of a mixture of experts: which pairs of token and expert go where, and what the experts make of them."""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.model.architecture import Moe
from clustersim.plan.exchange import SUMMED
from clustersim.plan.experts import Hosts, expert_hosts
from clustersim.proof.operators.dense import activated
from clustersim.proof.operators.values import ALL, Arrival, Columns, Routed, routed
from clustersim.proof.place import Place, part_of
from clustersim.proof.tokens import BoolArray


def homes(at: Place, token: Int64Array, expert: Int64Array) -> Int64Array:
    """Return the EP rank to which pairs of token and expert go: tokens take turns with the copies of an expert."""
    hosts = _hosts(at)
    many = np.array([len(ranks) for ranks in hosts])
    table = np.array([[*ranks, *[-1] * (int(many.max()) - len(ranks))] for ranks in hosts])
    found: Int64Array = table[expert, token % many[expert]]
    return found


def _hosts(at: Place) -> Hosts:
    moe, model = at.moe, at.setting.model
    moe_layer = sum(isinstance(layer.ffn, Moe) for layer in model.layers[: at.layer])
    return expert_hosts(moe.num_experts, moe.top_k, at.setting.plan.ep, moe_layer)


def chosen_pairs(at: Place, arrived: list[Arrival], rows: Int64Array) -> Routed:
    """Return the pairs of some rows: each token's top-k experts by the router's logits, with their softmax."""
    hidden, moe = at.setting.model.hidden, at.moe
    x = at.dense(arrived, hidden)[rows]
    logits = at.dense(arrived, moe.num_experts, "router")[rows]
    if np.isnan(logits).any():  # tokens whose router is silent go nowhere
        known = ~np.isnan(logits).any(axis=1)
        rows, x, logits = rows[known], x[known], logits[known]
    order = np.argsort(-np.where(_open(moe, logits), logits, -np.inf), axis=1, kind="stable")[:, : moe.top_k]
    top = np.take_along_axis(logits, order, axis=1)
    shares = np.exp(top - top.max(axis=1, keepdims=True)) if len(top) else top
    shares = shares / shares.sum(axis=1, keepdims=True)
    return Routed(
        token=np.repeat(rows, moe.top_k), expert=order.ravel(), share=shares.ravel(), data=np.repeat(x, moe.top_k, 0)
    )


def _open(moe: Moe, logits: FloatArray) -> BoolArray:
    """Return which experts a token may choose: those of the groups whose two best together are the best."""
    grouped = logits.reshape(len(logits), moe.groups, moe.num_experts // moe.groups)
    best = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    rank = np.argsort(np.argsort(-best, axis=1, kind="stable"), axis=1)
    found: BoolArray = np.repeat(rank < moe.groups_per_token, grouped.shape[2], axis=1)
    return found


def permute(at: Place, arrived: list[Arrival]) -> Routed:
    """Sort the rank's own tokens by expert, and keep those whose experts (or its part of them) it has."""
    pairs = chosen_pairs(at, arrived, at.rows)
    if at.setting.plan.ep.degree > 1:
        pairs = pairs.chosen(homes(at, pairs.token, pairs.expert) == at.expert_group[0])
    at.memory.counts["dispatched"] += len(pairs.token)
    return pairs


def dispatch(ats: list[Place], arrived: list[list[Arrival]]) -> list[Routed]:
    """Send each rank's share of its tokens to every rank of the chosen experts' groups.

    DeepEP's normal kernels send one copy to each of these ranks, however many of its experts are chosen; an all-gather
    sends one to every rank, which takes those that it has an expert of.
    """
    width = ats[0].setting.model.hidden
    sent = [chosen_pairs(at, inputs, at.share) for at, inputs in zip(ats, arrived, strict=True)]
    everything = routed(sent, width)
    ats[0].memory.counts["dispatched"] += len(everything.token)
    home = homes(ats[0], everything.token, everything.expert)
    arriving = [everything.chosen(home == at.expert_group[0]) for at in ats]
    if ats[0].setting.plan.ep.exchange in SUMMED:
        return [_from_copies(pairs) for pairs in arriving]
    return arriving


def _from_copies(pairs: Routed) -> Routed:
    """Return the pairs that a rank makes of the one copy of each token that it got."""
    _, first, of = np.unique(pairs.token, return_index=True, return_inverse=True)
    copies = pairs.data[first]
    return Routed(token=pairs.token, expert=pairs.expert, share=pairs.share, data=copies[of.reshape(-1)])


def expert_linear(at: Place, arrived: list[Arrival]) -> Routed:
    """Multiply each pair with its expert's matrix, if the rank has that expert."""
    shard = at.shard()
    pairs = _pairs(arrived, shard.whole[0])
    data = np.full((len(pairs.token), shard.whole[1]), np.nan)
    mine = [at.expert_group[0] in ranks for ranks in _hosts(at)]
    for expert in np.unique(pairs.expert).tolist():
        if not mine[expert]:
            continue
        rows = np.flatnonzero(pairs.expert == expert)
        block = pairs.data[rows][:, shard.inputs] @ shard.matrix[expert]
        if shard.bias is not None:
            block = block + shard.bias[expert]
        if isinstance(shard.outputs, slice):
            data[rows] = block
        else:
            data[np.ix_(rows, shard.outputs)] = block
    if at.node.name == "expert_up":
        at.memory.counts["computed"] += len(pairs.token)
    return _like(pairs, data, shard.outputs, shard.partial)


def expert_act(at: Place, arrived: list[Arrival]) -> Routed:
    """Activate the features of each pair that the rank has."""
    _, place, parts = at.expert_group
    inner, halves = at.node.width, 2 if at.gated else 1
    pairs = _pairs(arrived, halves * inner)
    columns: Columns = ALL
    up = pairs.data
    if parts > 1:
        columns = part_of(inner, place, parts)
        up = up[:, part_of(halves * inner, place, parts, halves)]
    data = np.full((len(pairs.token), inner), np.nan)
    data[:, columns] = activated(up, at.gated)
    return _like(pairs, data, columns, partial=False)


def bring_back(at: Place, arrived: list[Arrival]) -> Routed:
    """Hand on the pairs, where they never left."""
    found = [one.value for one in arrived if isinstance(one.value, Routed)]
    return found[0] if len(found) == 1 else routed(found, at.node.width)


def combine(ats: list[Place], arrived: list[list[Arrival]]) -> list[Routed]:
    """Send each pair back to the rank that sent it; the ranks that share an expert take turns in sending.

    DeepEP's normal kernels and a reduce-scatter send the sum of what a rank's experts made of a token, which has the
    number of that EP rank in place of an expert's.
    """
    width = ats[0].node.width
    returned = []
    for at, inputs in zip(ats, arrived, strict=True):
        pairs = _pairs(inputs, width)
        _, place, parts = at.expert_group
        pairs = pairs.chosen(pairs.token % parts == place)
        summed = at.setting.plan.ep.exchange in SUMMED
        returned.append(_summed(pairs, at.expert_group[0]) if summed else pairs)
    everything = routed(returned, width)
    return [everything.chosen(np.isin(everything.token, at.share)) for at in ats]


def _summed(pairs: Routed, rank: int) -> Routed:
    """Return one row for each token: the sum of its pairs by the router's shares."""
    token, of = np.unique(pairs.token, return_inverse=True)
    total = np.zeros((len(token), pairs.data.shape[1]))
    np.add.at(total, of.reshape(-1), pairs.share[:, None] * pairs.data)
    return Routed(token=token, expert=np.full(len(token), rank), share=np.ones(len(token)), data=total)


def _pairs(arrived: list[Arrival], width: int) -> Routed:
    found = [one.value for one in arrived if isinstance(one.value, Routed) and one.value.data.shape[1] == width]
    return found[0] if len(found) == 1 else routed(found, width)


def _like(pairs: Routed, data: FloatArray, columns: Columns, partial: bool) -> Routed:
    return Routed(
        token=pairs.token, expert=pairs.expert, share=pairs.share, data=data, columns=columns, partial=partial
    )
