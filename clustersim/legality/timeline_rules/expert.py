"""EP-2, EP-3: where tokens were sent, from a record of routes; a replay that has no routes is not checkable."""

from __future__ import annotations

import numpy as np

from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.grouping import Groups
from clustersim.legality.timeline_rules.reading import Reading


def top_k(reading: Reading) -> Finding:
    """EP-2: in each step and MoE layer every token of the step reaches top-k experts, and each once."""
    routes, k = reading.history.routes, reading.given.top_k
    if routes is None or k is None:
        return NOTHING
    replica, step, layer, request, token, expert = (
        routes[name].astype(np.int64) for name in ("replica", "step", "layer", "request", "token", "expert")
    )
    _, key = np.unique(np.stack((replica, step, layer, request, token)), axis=1, return_inverse=True)
    key = key.reshape(-1)
    tokens = Groups(key)
    distinct = np.zeros(len(tokens), np.int64)
    np.add.at(distinct, np.unique(np.stack((key, expert)), axis=1)[0], 1)
    some, counts = tokens.some, tokens.counts
    each = judged(
        len(tokens),
        (counts != k) | (distinct != k),
        lambda i: (
            f"replica {replica[some[i]]}, step {step[some[i]]}, layer {layer[some[i]]}, request {request[some[i]]}, "
            f"token {token[some[i]]}"
        ),
        lambda i: f"is sent to {counts[i]} experts, {distinct[i]} of them different, instead of {k}",
        "send each token to its top-k experts, once to each",
    )
    runs = reading.runs
    if runs is None:
        return each
    prefills, decodes = runs.column("prefill_tokens"), runs.column("decode_tokens")
    if prefills is None or decodes is None:
        return each
    _, place = np.unique(np.stack((replica[some], step[some], layer[some])), axis=1, return_inverse=True)
    layers = Groups(place.reshape(-1))
    first = some[layers.some]
    run = runs.at(replica[first], step[first])
    wanted = np.append(prefills + decodes, 0)[run]  # a step that is not in the record has none
    all_of_them = judged(
        len(layers),
        layers.counts != wanted,
        lambda i: f"replica {replica[first[i]]}, step {step[first[i]]}, layer {layer[first[i]]}",
        lambda i: f"{layers.counts[i]} tokens are dispatched, the step has {wanted[i]}",
        "dispatch every token of the step",
    )
    return merged(each, all_of_them)


def by_token(reading: Reading) -> Finding:
    """EP-3: a token of a layer goes to the same experts whenever and wherever it is computed."""
    routes = reading.history.routes
    if routes is None:
        return NOTHING
    columns = [routes[name].astype(np.int64) for name in ("request", "token", "layer", "replica", "step", "expert")]
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
        int(same.sum()),
        same & differs,
        lambda i: f"request {request[some[i]]}, token {token[some[i]]}, layer {layer[some[i]]}",
        lambda i: (
            f"goes to experts {_listed(chosen[i])} in step {step[some[i]]}, and to {_listed(chosen[i + 1])} in step "
            f"{step[some[i + 1]]}"
        ),
        "route by the token alone",
    )


def _listed(experts: tuple[int, ...]) -> str:
    return ", ".join(map(str, experts))
