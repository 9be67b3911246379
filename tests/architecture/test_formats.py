"""Pages on files of other programs: their examples are read, and say what the pages say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from tests.architecture.documents import ROOT, commands, imported, write_files

GRAPHS: Final = "docs/reference/step-graphs.md"
TABLES: Final = "docs/reference/histories.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example files."""
    found = tmp_path_factory.mktemp("formats")
    write_files(GRAPHS, found)
    write_files(TABLES, found)
    writer = imported(found, "step_writer")
    (found / "my-graph.json").write_text(json.dumps(writer.graph(writer.OPERATORS)), encoding="utf-8")
    return found


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in that folder."""
    monkeypatch.chdir(folder)
    return folder


def test_two_tables_are_no_whole_history(here: Path) -> None:
    (words,) = commands(TABLES)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3, result.output


def shown(start: str) -> list[list[str]]:
    """Return the lines of the document that begin so, as the parts between what they leave out."""
    lines = (ROOT / GRAPHS).read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split("…") if part] for line in lines if line.startswith(start)]


def test_example_of_a_step_graph_is_legal_as_far_as_the_page_says(here: Path) -> None:
    result = CliRunner().invoke(main, ["check", "my-graph.json"])
    ((line,),) = shown("legal: 18 rules")
    assert result.stdout.startswith(line)
    assert result.stdout.count("\n") == 1  # nothing that its operators leave out


def test_example_of_a_step_graph_is_illegal_with_the_collective_that_the_page_puts_in(here: Path) -> None:
    writer = imported(here, "step_writer")
    added = ("ffn_up_all_reduce", "all_reduce", "ffn_up", {})
    changed = [("ffn_act", "memory", added[0], {}) if one[0] == "ffn_act" else one for one in writer.OPERATORS]
    at = [one[0] for one in changed].index("ffn_act")
    (here / "bad.json").write_text(json.dumps(writer.graph([*changed[:at], added, *changed[at:]])), encoding="utf-8")
    result = CliRunner().invoke(main, ["check", "bad.json"])
    assert result.exit_code == 1
    messages = [line for line in result.stdout.splitlines() if line.endswith("]")]
    assert {message[-6:] for message in messages} == {"[TP-2]", "[TP-3]"}
    for parts in shown("… "):
        assert any(all(part.strip("; ") in message for part in parts) for message in messages), parts
