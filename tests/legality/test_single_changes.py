"""Whatever one thing is changed in a legal graph: it is caught, or is proven to do nothing (``harmless.py``).

``pytest tests/legality/test_single_changes.py --long=140`` tries more of them, of other places.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from harmless import proof_of
from single_changes import GRAPHS, WRITTEN, Change, document, of_file, of_view, verdict_of
from test_graph_omissions import is_legal

from tests.effort import times

CHANGES: Final = times(140)
"""Changes in all, half of columns and half of files."""


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
    assert unproven(of_view(name, random), CHANGES // (2 * len(GRAPHS)), random) == []


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in WRITTEN))
def test_a_change_of_a_file_is_caught_or_does_nothing(name: str) -> None:
    random = Random(name)
    kind = random.choice([kind for graph, kind in WRITTEN if graph == name])
    assert verdict_of(document(name, kind)) == "legal"
    assert unproven(of_file(name, kind, random), CHANGES // (2 * len(GRAPHS)), random) == []
