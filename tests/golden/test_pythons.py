"""The same bytes on every Python: ``sum`` adds floats otherwise since 3.12, so floats are summed by ``math.fsum``."""

from __future__ import annotations

import ast
import builtins
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import clustersim
from clustersim.cli import main
from tests.architecture.documents import ROOT
from tests.effort import is_whole

PACKAGE: Final = Path(clustersim.__file__).parent
SMALL: Final = {
    "deepseek-v3-pools": ("workload.requests=2", "model={name: deepseek-v3, config: {num_hidden_layers: 4}}"),
    "splitwise-h100-a100": ("workload.trace.requests=3",),
    "quickstart": ("workload.trace.requests=3", "plan={dp: 2, tp: 2, pp: 2}"),
}
METRICS: Final = ("report", "cost", "collective")
"""Packages whose numbers are read by people; what they add with ``sum`` is listed, and whole."""
WHOLE: Final = {
    "cost/points.py": 1,
    "report/comparison/comparison.py": 1,  # ns
    "report/comparison/entries.py": 2,  # folders, bytes
    "report/words/explain.py": 2,  # stages, boundaries
    "report/graph_page/page.py": 1,  # ns
    "report/graph_page/rows.py": 1,  # ns
    "report/metrics/measures.py": 2,  # FLOPs of a model, devices
    "report/metrics/latencies.py": 1,  # requests
    "report/metrics/model_work.py": 3,  # FLOPs of a model
    "report/figures/arrivals.py": 1,  # requests
    "report/figures/topology.py": 2,  # devices
    "report/traces/protobuf.py": 1,  # bytes
    "report/traces/requests.py": 2,  # slices
    "report/folded/whole.py": 1,  # bytes
    "report/metrics/gauges.py": 1,  # blocks
    "report/words/run.py": 1,  # requests
    "report/metrics/faults.py": 3,  # ns
    "collective/measurements.py": 1,  # steps
    "cost/grid_fit.py": 1,  # points
}
PROGRAM: Final = "import sys; sys.path.insert(0, {root!r}); from clustersim.cli import main; main({words!r})"
usual_sum = builtins.sum


def words(name: str, out: Path) -> list[str]:
    changes = [word for change in (*SMALL[name], "expect={}") for word in ("--set", change)]
    return ["run", name, "--quiet", "--no-dashboard", "--out", str(out), *changes]


def summary(name: str, out: Path) -> bytes:
    result = CliRunner().invoke(main, words(name, out))
    assert result.exit_code == 0, result.output
    return (out / "summary.json").read_bytes()


def compensated(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Add as Python 3.12 does: floats after Neumaier, all else from left to right."""
    total, lost, floats = start, 0.0, type(start) is float
    for item in items:
        if not floats and type(item) is float and isinstance(total, int):
            total, floats = float(total), True
        if floats and type(item) in (float, int):
            after = total + item
            lost += (total - after) + item if abs(total) >= abs(item) else (item - after) + total
            total = after
        else:
            total = total + item  # not in place: what is started from may be an array of somebody's
    return total + lost if floats else total


def test_the_other_way_to_add_is_another_one() -> None:
    assert compensated([0.1] * 10) == 1.0
    assert usual_sum([1, 2, True]) == compensated([1, 2, True]) == 4
    if sys.version_info < (3, 12):
        assert usual_sum([0.1] * 10) != 1.0
    else:
        assert usual_sum([0.1] * 10) == 1.0


@pytest.mark.parametrize("name", [*SMALL][:: 1 if is_whole() else 2])
def test_no_float_is_added_by_sum(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = summary(name, tmp_path / "before")
    places: set[str] = set()

    def spy(items: Iterable[Any], /, start: Any = 0) -> Any:
        found = list(items)
        code = sys._getframe(1).f_code
        if any(type(item) is float for item in found) and Path(code.co_filename).is_relative_to(PACKAGE):
            places.add(f"{Path(code.co_filename).name}: {code.co_qualname}")
        return compensated(found, start)

    monkeypatch.setattr(builtins, "sum", spy)
    assert summary(name, tmp_path / "after") == before
    assert places == set()


def test_no_sum_of_floats_is_written_where_people_read_numbers() -> None:
    found: dict[str, int] = {}
    for package in METRICS:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum":
                    place = path.relative_to(PACKAGE).as_posix()
                    found[place] = found.get(place, 0) + 1
    assert found == WHOLE, "a new sum adds whole numbers, and is counted here; floats are added by math.fsum"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_that_is_installed_writes_the_same_bytes(version: str, tmp_path: Path) -> None:
    folders = os.environ.get("CLUSTERSIM_PYTHONS", "")  # of environments that have what clustersim needs
    python = shutil.which(f"python{version}", path=os.pathsep.join(filter(None, [folders, os.environ["PATH"]])))
    if python is None or sys.version.startswith(f"{version}."):
        pytest.skip(f"no other Python {version} on PATH")
    asked = "import numpy, simpy, pydantic, yaml, click, pyarrow, networkx, plotly, rich; print(numpy.__version__)"
    numpy = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    if numpy.stdout.strip() != sys.modules["numpy"].__version__:
        pytest.skip(f"Python {version} lacks the libraries of this one")
    program = PROGRAM.format(root=str(ROOT), words=words("quickstart", tmp_path / "other"))
    subprocess.run([python, "-c", program], check=True, cwd=tmp_path)
    other = (tmp_path / "other" / "summary.json").read_bytes()
    assert json.loads(other)["requests"]["finished"] == 3
    assert other == summary("quickstart", tmp_path / "this")
