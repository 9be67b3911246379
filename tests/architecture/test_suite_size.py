"""How large the suite is: counts that are the same on any machine, which whoever adds to it raises on purpose.

What a plain ``pytest`` may take is 300 s on two cores. No test fails by a time; these fail by what time goes with.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.documents import ROOT
from tests.conftest import ALL_FILES
from tests.effort import is_whole

MOST_TESTS: Final = 11_800
"""Of a plain pytest. A mutation needs one case in which it is caught, a kind of input one that shows it."""
MOST_STARTS: Final = 29
"""Places in tests that start a process, each of which takes as long as fifty tests: most can call what it would run."""
STARTS: Final = {"run", "Popen", "call", "check_call", "check_output", "runpytest_subprocess"}


def starts(text: str) -> int:
    """Return how many calls of a module start a process."""
    if "subprocess" not in text:  # which all of them name
        return 0
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [one for one in calls if isinstance(one, ast.Attribute) and one.attr in STARTS]
    return sum(ast.unparse(one.value) == "subprocess" or one.attr == "runpytest_subprocess" for one in named)


def test_no_more_places_start_a_process_than_are_needed() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        if "benchmarks" not in path.parts:
            found[str(path.relative_to(ROOT))] = starts(path.read_text(encoding="utf-8"))
    assert found.total() <= MOST_STARTS, f"call what they would run, or raise MOST_STARTS: {found.most_common(9)}"


def test_a_place_that_starts_a_process_is_seen() -> None:
    assert starts("subprocess.run(['a'])\nsubprocess.Popen(['b'])\nproject.runpytest_subprocess()\nrun()\n") == 3


@pytest.mark.skipif(is_whole(), reason="for a plain pytest")
def test_a_plain_pytest_has_no_more_tests_than_it_has_time_for(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if len({item.path for item in items}) < ALL_FILES:
        pytest.skip("not all files are run")
    found = Counter(str(Path(item.path).relative_to(ROOT)) for item in items)
    assert len(items) <= MOST_TESTS, f"thin a table, or raise MOST_TESTS: {found.most_common(9)}"
