"""EP-2, EP-3: where tokens were sent, from a record of routes; a replay that has no routes is not checkable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.operators.dispatched import all_dispatched
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import Table


def top_k(reading: Reading) -> Finding:
    """EP-2: in each step and MoE layer every token of the step reaches the top-k experts of its gate, and each once."""
    routes, k = reading.history.routes, reading.declared.top_k
    if routes is None:
        return NOTHING
    names = ("replica", "step", "layer", "request", "token", "expert")
    replica, step, layer, request, token, expert = (routes[name].astype(np.int64) for name in names)
    selected = _selected(routes)
    if k is None and (selected < 0).all():
        return NOTHING
    _, key = np.unique(np.stack((replica, step, layer, request, token)), axis=1, return_inverse=True)
    key = key.reshape(-1)
    tokens = Groups(key)
    distinct = np.zeros(len(tokens), np.int64)
    np.add.at(distinct, np.unique(np.stack((key, expert)), axis=1)[0], 1)
    some, counts = tokens.some, tokens.counts

    def where(i: int) -> str:
        return (
            f"replica {replica[some[i]]}, step {step[some[i]]}, layer {layer[some[i]]}, request {request[some[i]]}, "
            f"token {token[some[i]]}"
        )

    odd = (distinct != counts) if k is None else (counts != k) | (distinct != k)
    each = judged(
        len(tokens), odd, where,
        "is sent to {distinct} {experts}{times}" + ("" if k is None else ", instead of {k} once each"),
        "send each token to its top-k experts, once to each", distinct=distinct, k=k,
        experts=Rows(("experts", "expert"), distinct == 1),
        times=lambda i: "" if distinct[i] == counts[i] else f" ({counts[i]} times in all)",
    )  # fmt: skip
    if k is None:
        each = merged(each, lacking("how many experts a token visits (top_k was not declared)"))
    misled = _misled(tokens, key, expert, selected, odd, where)
    return merged(
        each, misled, all_dispatched(reading, *(column[some] for column in (replica, step, layer, request, token)))
    )


def _selected(routes: Table) -> Int64Array:
    """Return the expert that the gate selected for each row, −1 where that was not said."""
    selected = routes.get("selected")
    return np.full(len(routes["expert"]), -1, np.int64) if selected is None else selected.astype(np.int64)


def _misled(
    tokens: Groups,
    key: Int64Array,
    expert: Int64Array,
    selected: Int64Array,
    odd: BoolArray,
    where: Callable[[int], str],
) -> Finding:
    """Judge whether each token reached the experts that its gate selected; those sent too rarely or often aside."""
    if not len(tokens) or (selected < 0).all():
        return lacking("whether tokens went where their gate sent them (no selected was recorded)")
    sent, wanted = expert[np.lexsort((expert, key))], selected[np.lexsort((selected, key))]
    said = tokens.least(selected) >= 0
    differs = np.logical_or.reduceat(sent != wanted, tokens.firsts)

    def of(values: Int64Array, i: int) -> str:
        return _listed(tuple(values[tokens.firsts[i] : tokens.firsts[i] + tokens.counts[i]].tolist()))

    return judged(
        int(said.sum()), said & differs & ~odd, where,
        "is sent to experts {sent}, its gate selected {wanted}",
        "send each token to the experts that its gate selected", sent=partial(of, sent), wanted=partial(of, wanted),
    )  # fmt: skip


def by_token(reading: Reading) -> Finding:
    """EP-3: a token of a layer goes to the same experts whenever and wherever it is computed."""
    routes = reading.history.routes
    if routes is None:
        return NOTHING
    columns = [routes[name].astype(np.int64) for name in ("request", "token", "layer", "replica", "step")]
    selected = _selected(routes)  # where a token was sent elsewhere than its gate said, that is EP-2's
    columns.append(np.where(selected >= 0, selected, routes["expert"].astype(np.int64)))
    order = np.lexsort(columns[::-1])
    request, token, layer, replica, step, expert = (column[order] for column in columns)
    _, visit = np.unique(np.stack((request, token, layer, replica, step)), axis=1, return_inverse=True)
    visits = Groups(visit.reshape(-1))
    chosen = [tuple(part.tolist()) for part in np.split(expert[visits.order], visits.firsts[1:])]
    some = visits.some
    same = (request[some][1:] == request[some][:-1]) & (token[some][1:] == token[some][:-1])
    same &= layer[some][1:] == layer[some][:-1]
    differs = np.array([a != b for a, b in zip(chosen[1:], chosen[:-1], strict=True)], bool)
    return judged(
        int(same.sum()), same & differs, "request {request}, token {token}, layer {layer}",
        "goes to experts {experts} in step {step}, and to {others} in step {later}", "route by the token alone",
        request=Rows(request, some), token=Rows(token, some), layer=Rows(layer, some), step=Rows(step, some),
        later=Rows(step, some[1:]), experts=lambda i: _listed(chosen[i]), others=lambda i: _listed(chosen[i + 1]),
    )  # fmt: skip


def _listed(experts: tuple[int, ...]) -> str:
    return ", ".join(map(str, experts))
