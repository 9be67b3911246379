"""Whatever one thing is changed in a legal graph: it is caught, or is proven to do nothing (``harmless.py``).

``pytest tests/legality/test_single_changes.py --long=140`` tries more of them, of other places.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from executing import executed
from formats import TEXTS
from harmless import graph_of_file, proof_of
from single_changes import GRAPHS, WRITTEN, Change, document, of_file, of_view, verdict_of
from test_graph_omissions import is_legal

from tests.effort import times

CHANGES: Final = max(1, times(140) // (2 * len(GRAPHS)))
"""Changes of each graph, of columns and of its file."""
FORMATTED: Final = max(1, times(6) // 2)
"""Changes of each graph that are written in every format."""


def survives(change: Change) -> bool:
    """Whether a changed graph is called legal; a file that contradicts itself is refused."""
    made = change.make()
    return verdict_of(made) == "legal" if isinstance(made, dict) else is_legal(made)


def unproven(found: Iterator[Change], share: int, random: Random) -> list[str]:
    """Return which of some of the changes are called legal, and are not proven to be."""
    drawn = list(found)
    drawn = random.sample(drawn, min(share, len(drawn)))
    return [str(change) for change in drawn if survives(change) and proof_of(change) is None]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_change_of_columns_is_caught_or_does_nothing(name: str) -> None:
    random = Random(name)
    assert unproven(of_view(name, random), CHANGES, random) == []


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in WRITTEN))
def test_a_change_of_a_file_is_caught_or_does_nothing(name: str) -> None:
    random = Random(name)
    kind = random.choice([kind for graph, kind in WRITTEN if graph == name])
    assert verdict_of(document(name, kind)) == "legal"
    assert unproven(of_file(name, kind, random), CHANGES, random) == []


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in WRITTEN))
def test_a_change_has_one_verdict_in_every_format(name: str) -> None:
    random = Random(f"{name} in every format")
    kind = random.choice([kind for graph, kind in WRITTEN if graph == name])
    found = [change for change in of_file(name, kind, random) if "none" not in change.label]  # null is of JSON alone
    for change in random.sample(found, min(FORMATTED, len(found))):
        made = change.make()
        assert len({verdict_of(made, suffix) for suffix in TEXTS}) == 1, str(change)


def with_edge(source: str, target: str, kind: str, *, without: str = "") -> bool:
    """Whether execution proves a prefill over gathered heads with an edge more on rank 2, and perhaps one less."""
    found = document("gathered heads", "prefill")
    nodes = [node for node in found["nodes"] if 2 in node["ranks"]]
    ids = {(node["name"], node.get("layer")): node["id"] for node in nodes}
    end = ids[target, 0]
    if source:
        found["edges"].append({"source": ids[source, 0], "target": end, "kind": kind})
    found["edges"] = [
        edge for edge in found["edges"] if not without or (edge["source"], edge["target"]) != (ids[without, 0], end)
    ]
    return executed("gathered heads", "prefill", graph_of_file(found))


@pytest.mark.parametrize(
    ("proven", "source", "target", "kind", "changes"),
    [
        (True, "kv_write", "kv_all_gather", "kv", {}),  # what the rotation brings it, too
        (True, "kv_write", "kv_all_gather", "kv", {"without": "rope"}),
        (False, "attention_norm", "kv_all_gather", "data", {}),  # which it does not read
        (False, "attention_norm", "rope", "data", {}),  # likewise
        (False, "attention_norm", "ffn_norm", "data", {}),  # which is another value than it has
        (False, "kv_write", "o_proj", "kv", {}),  # which it does not read
        (False, "", "kv_all_gather", "", {"without": "rope"}),  # new keys that others need
    ],
)
def test_execution_proves_an_edge_that_is_read_and_brings_what_is_there(
    proven: bool, source: str, target: str, kind: str, changes: dict[str, str]
) -> None:
    assert with_edge(source, target, kind, **changes) is proven  # type: ignore[arg-type]


def test_execution_is_proven_of_no_write_that_the_move_does_not_wait_for() -> None:
    found = document("gathered heads", "prefill")
    names = {node["id"]: node["name"] for node in found["nodes"]}
    ends = [(names[edge["source"]], names[edge["target"]]) for edge in found["edges"]]
    assert ("ffn_add", "kv_move") in ends
    found["edges"].pop(ends.index(("ffn_add", "kv_move")))
    assert not executed("gathered heads", "prefill", graph_of_file(found))
