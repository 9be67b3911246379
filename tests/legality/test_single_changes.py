"""Whatever one thing is changed in a legal graph: it is caught, or changes nothing, and it is said here why.

``pytest tests/legality/test_single_changes.py --long=140`` tries more of them, of other places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from single_changes import GRAPHS, WRITTEN, Change, Label, document, of_file, of_view
from test_graph_omissions import is_legal

from clustersim.errors import InputError
from clustersim.run.foreign_graph import check_read
from clustersim.run.graph_file import graph_in
from tests.effort import times

CHANGES: Final = times(140)
"""Changes in all, half of columns and half of files."""

FOR_READERS: Final = {
    "rule": "how the simulator's own passes split it; its shape on the rank says what is done",
    "unit": "which part of a listing it is of",
    "where": "which SP ranks it is on, which its ranks say",
    "fused": "whether it has a launch of its own: a matter of its price",
    "included": "whether a neighbour's constants hold its cost: a matter of its price",
    "duration_ns": "what it was priced at, which is written for readers",
    "stream": "engines launch collectives, transfers and host work on the compute stream as well",
    "position": "a rank may run operators that do not need each other in any order (RUN-1, TP-5, PP-5, KV-2 judge it)",
    "bytes": "of what does not count in bytes they depend on what one counts",
    "flops": "of what is no product they depend on what one counts",
}
"""Field → why another value of it does nothing, where no rule finds a fault."""

ELSEWHERE: Final = {
    "precision": "other formats of what no operator of a graph says the bytes of",
    "plan": "what a step of one replica does not show: other replicas, thresholds of serving, a placement",
    "step": "another step, as legal: amounts are forms of what it carries",
    "model": "tables and vectors that are added, and no operators of their own",
    "chunk.request": "another sequence, of which nothing else is told",
    "chunk.owner": "another rank decodes it, of which nothing else is told",
    "decode.request": "another sequence, of which nothing else is told",
    "step.lane": "a micro-batch that has nothing in common with the others",
    "terms": "another feature that has the same value in this step",
    "amount": "a multiple of nothing: the rank has no token in this step",
    "value": "a multiple of nothing: the rank has no token in this step",
}
"""What a change may say of another step, plan or model that is as legal; by the first words of its field."""

IN_A_RING: Final = "the first part of attention waits for the cache and for the write, and each part for the one before"
WAITS_MORE: Final = "waits for more than it has to, and takes nothing from it"


def harmless(label: Label) -> str | None:
    """Return why a change does nothing; None where it does something, and must be caught."""
    padded = (*label, "", "")
    field, what, ends = padded[0], padded[1], padded[2]
    if field in FOR_READERS:
        return FOR_READERS[field]
    if field.startswith("plan.split."):
        return None  # the shapes of products show it
    if field in ELSEWHERE or field.partition(".")[0] in ("precision", "plan", "step", "model"):
        return ELSEWHERE.get(field) or ELSEWHERE[field.partition(".")[0]]
    joins = any(word in ends for word in ("_all_", "_reduce_scatter", "kv_ring", "kv_move"))
    match field, what:
        case "name", _ if joins or "attention_prefill" in ends:
            return "a collective is what its kind, ranks and ends say; a part of attention, what its variant says"
        case "module", _ if joins:
            return "the module of one of its ends: it stands between two"
        case "width", _ if joins:
            return "elements per token of K/V, which its bytes say (SP-4, SP-8)"
        case "copies", _ if "_act" in ends:
            return "whether a slice or the whole is repeated, which its amount says (TP-9)"
        case "node", "moved":
            return FOR_READERS["position"]
        case "edge", "doubled":
            return "the same edge once more"
        case (("edge" | "more edges"), _) if "order" in what and "→" not in ends:
            return WAITS_MORE
        case "edge", _ if "attention_prefill_" in ends and ("kv_" in ends or "attention_prefill_0" in ends):
            return IN_A_RING
        case "edge", "of kind data" | "of kind kv" if joins:
            return "keys and values, be they called entries of the cache or data: both kinds bring them"
        case "edge", _ if "kv_move" in ends or "boundary→kv_read" in ends:
            return "another value of its rank that is as late: rules SP-8 and KV-2 judge what it waits for"
        case "more edges", _ if ends in ("kv_move", "boundary") or what.startswith("boundary"):
            return WAITS_MORE
        case "more edges", _ if what.startswith(("data", "kv")):
            return "an end of the phase or a move, which waits for more, or a value that is taken already"
        case ("edge", _) if "order" in what:
            return IN_A_RING if "attention_prefill" in ends else None
    return None


def survives(change: Change) -> bool:
    """Whether a changed graph is called legal; a file that contradicts itself is refused."""
    made = change.make()
    if not isinstance(made, dict):
        return is_legal(made)
    try:
        return check_read(graph_in(json.dumps(made), "graph.json")).verdict == "legal"
    except InputError:
        return False


def drawn(found: Iterator[Change], share: int, random: Random) -> list[Change]:
    """Return some of the changes, of those that are not for readers only."""
    told = [change for change in found if change.label[change.label[0] == "file"] not in FOR_READERS]
    return random.sample(told, min(share, len(told)))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_change_of_columns_is_caught_or_does_nothing(name: str) -> None:
    random = Random(name)
    changes = drawn(of_view(name, random), CHANGES // (2 * len(GRAPHS)), random)
    unseen = [str(change) for change in changes if survives(change) and harmless(change.label) is None]
    assert unseen == []


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in WRITTEN))
def test_a_change_of_a_file_is_caught_or_does_nothing(name: str) -> None:
    random = Random(name)
    kind = random.choice([kind for graph, kind in WRITTEN if graph == name])
    assert check_read(graph_in(json.dumps(document(name, kind)), "graph.json")).verdict == "legal"
    changes = drawn(of_file(name, kind, random), CHANGES // (2 * len(GRAPHS)), random)
    unseen = [str(change) for change in changes if survives(change) and harmless(change.label[1:]) is None]
    assert unseen == []
