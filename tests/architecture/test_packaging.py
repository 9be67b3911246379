"""What is installed works like a checkout: data is found, assets and types are there, commands are the README's."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final

import pytest

import clustersim
from clustersim import catalog
from tests.architecture.documents import ROOT, blocks
from tests.effort import is_whole

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS: Final[dict[str, Any]] = PROJECT["tool"]["hatch"]["build"]["targets"]
FOLDERS: Final = (
    "topologies",
    "topologies/devices",
    "scenarios",
    "scenarios/models",
    "scenarios/engines",
    "dashboards",
    "names",
)
COMMANDS: Final = (
    "pip install -e . && clustersim run scenarios/quickstart.yaml",
    "pip install -e '.[dev]' && pytest",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay the files out as the wheel does, and return the folder to import from."""
    site = tmp_path_factory.mktemp("site")
    sources = TARGETS["wheel"]["sources"]
    for folder in TARGETS["wheel"]["only-include"]:
        shutil.copytree(ROOT / folder, site / sources.get(folder, folder), ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "clustersim").rglob("*.py"):  # what is compiled already, for two processes that only read it
        known, copied = (Path(cache_from_source(str(root / path.relative_to(ROOT)))) for root in (ROOT, site))
        if known.is_file():
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, copied)
    return site


def python(site: Path, folder: Path, *arguments: str) -> str:
    """Run Python with packages from ``site``, in ``folder``, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_catalog_finds_all_data_in_an_installed_package(installed: Path, tmp_path: Path) -> None:
    code = f"from clustersim import catalog\nfor f in {FOLDERS!r}: print(catalog.data_root(), catalog.names(f))"
    root = installed / "clustersim" / "data"
    expected = "".join(f"{root} {catalog.names(folder)}\n" for folder in FOLDERS)
    assert python(installed, tmp_path, "-c", code) == expected


@pytest.mark.skipif(not is_whole(), reason="with --long=1 only: .ci/run does so with a wheel that is installed")
def test_installed_package_runs_a_scenario_by_name_from_any_folder(installed: Path, tmp_path: Path) -> None:
    run = ("run", "quickstart", "--set", "workload.trace.requests=2", "--set", "expect={}", "--out", "run", "--quiet")
    python(installed, tmp_path, "-m", "clustersim", *run)
    assert "lanes" in (tmp_path / "run" / "dashboard.html").read_text(encoding="utf-8")
    python(installed, tmp_path, "-m", "clustersim", "graph", "quickstart", "-o", "graph.html")
    assert (tmp_path / "graph.html").is_file()


def test_wheel_has_types_assets_and_every_top_level_data_folder() -> None:
    assert (ROOT / "clustersim" / "py.typed").is_file()
    assert sorted(path.name for path in (ROOT / "clustersim" / "report" / "page").iterdir()) != []
    folders = {folder.partition("/")[0] for folder in FOLDERS}
    assert set(TARGETS["wheel"]["sources"]) == folders
    assert set(TARGETS["wheel"]["only-include"]) == {"clustersim", *folders}


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_everything_that_is_packed_exists(target: str) -> None:
    assert [path for path in TARGETS[target]["only-include"] if not (ROOT / path).exists()] == []


def test_nothing_that_is_packed_is_ignored_by_git() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone: nothing says what git ignores")
    files = [
        str(path)
        for folder in TARGETS["wheel"]["only-include"]
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    ignored = subprocess.run(
        ["git", "check-ignore", "--stdin"],
        input="\n".join(files),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ignored.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_stand_in_the_readme_and_in_ci_to_the_letter(command: str) -> None:
    lines = [line for block in blocks("README.md") if block.language == "sh" for line in block.text.splitlines()]
    assert command in lines
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_ci_can_be_executed() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR


def test_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert clustersim.__version__ == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
