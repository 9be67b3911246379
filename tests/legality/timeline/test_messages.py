"""Messages of rules of level T are templates over columns: each names what there is, and can be made of any place."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clustersim
from clustersim.legality import finding
from clustersim.legality.audit import check_history
from clustersim.simulation.audit import history_of_run
from tests.legality.timeline.adversary import RUNS, run_of

RULES = Path(clustersim.__file__).parent / "legality" / "timeline_rules"
FIELD = re.compile(r"\{(\w+)")
NOTHING_THERE = (IndexError, ValueError)
"""What a message of a place that is not broken may raise: a group of none has no first, and none no least."""


def test_templates_name_columns_and_columns_are_named() -> None:
    odd, calls = [], 0
    for path in sorted(RULES.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        named = {name for text in texts for name in FIELD.findall(text)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "judged":
                calls += 1
                where, columns = f"{path.name}:{call.lineno}", {one.arg for one in call.keywords if one.arg}
                odd += [f"{where}: no template names {name}" for name in sorted(columns - named)]
                templates = [one.value for one in call.args[2:4] if isinstance(one, ast.Constant)]
                if len(templates) == 2:
                    lacks = {name for text in templates for name in FIELD.findall(text)} - columns - {"at"}
                    odd += [f"{where}: {name} is no column" for name in sorted(lacks)]
    assert calls > 150
    assert odd == []


@pytest.mark.parametrize("name", RUNS)
def test_message_of_any_place_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, judged = set(), finding.judged

    def any_place(looked_at: int, broken: Any, where: Any, message: Any, fix: str, /, **columns: Any) -> Any:
        code = sys._getframe(1).f_code
        for place in {0, len(broken) // 2, len(broken) - 1} if len(broken) else ():
            try:
                (fault,) = judged(0, np.arange(len(broken)) == place, where, message, fix, **columns).faults
            except NOTHING_THERE:
                continue
            assert fault.where
            assert not {"{", "}"} & {*fault.where, *fault.message}
            made.add((code.co_filename, code.co_name))
        return judged(looked_at, broken, where, message, fix, **columns)

    for module in [one for name, one in sys.modules.items() if name.startswith("clustersim.legality.timeline_rules")]:
        if getattr(module, "judged", None) is judged:
            monkeypatch.setattr(module, "judged", any_place)
    assert check_history(history_of_run(run_of(name))).violations == ()
    assert len(made) > 25
