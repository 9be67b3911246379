"""What the message of a broken rule looks like: violations that tested cases yield, in ``examples.json``.

``tests/legality/test_rule_examples.py`` holds the file to those cases; ``pytest --update-golden`` rewrites it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from clustersim.legality.rule import Violation

FILE = "examples.json"


def examples_of(rule: str) -> tuple[Violation, ...]:
    """Return a violation of a rule at each level that tells its place: P, G and T, of those where it is checked."""
    return tuple(Violation(rule=rule, **one) for one in _examples().get(rule, ()))


@cache
def _examples() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        files("clustersim.legality.rulebook").joinpath(FILE).read_text(encoding="utf-8")
    )
    return found
