"""CONTRIBUTING.md: its example files are used, its commands run, its code works where it says that it goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.legality.check import PLAN_CHECKS, check_plan
from clustersim.plan.parallel import Cut, ParallelPlan
from clustersim.scenario import load_model
from clustersim.workload import FORMATS, read_trace
from clustersim.workload.traces.formats import named_format
from tests.architecture.documents import ROOT, blocks, commands, imported, rows, write_files
from tests.architecture.test_imports import LAYERS

DOCUMENT = "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example files."""
    found = tmp_path_factory.mktemp("contributor")
    write_files(DOCUMENT, found)
    return found


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in that folder."""
    monkeypatch.chdir(folder)
    return folder


def test_commands_run_in_their_order(here: Path) -> None:
    for words in commands(DOCUMENT):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, f"{' '.join(words)}: {result.output}"


def test_every_example_file_is_used(folder: Path) -> None:
    prose = " ".join(word for words in commands(DOCUMENT) for word in words)
    files = [block.file for block in blocks(DOCUMENT) if block.file and block.language != "python"]
    assert [file for file in files if file not in prose] == []


def test_example_of_a_trace_format_reads_a_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(folder, "arena")
    monkeypatch.setitem(FORMATS, "arena", named_format(module.ARENA))
    path = folder / "log.csv"
    path.write_text("tstamp,model,prompt_len,completion_len\n5,m,472,18\n45.5,m,1087,230\n", encoding="utf-8")
    found = read_trace(path)
    assert found.arrived_at_ns.tolist() == [0, 40_500_000_000]
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([472, 1087], [18, 230])


def test_example_of_a_fit_gives_the_constants_of_the_table(folder: Path) -> None:
    """All-gathers on DGX H100: 10 µs, per step 2 µs and the way of 0.6 µs, and bytes at two thirds of 450 GB/s."""
    path = folder / "nccl.csv"
    lines = ["system,kernel_source,version,op_name,nccl_dtype,allreduce_dtype,num_gpus,message_size,latency"]
    for devices in (2, 8):
        for elements in (2**power for power in range(6, 28, 2)):
            part_s = 2 * elements * (devices - 1) / devices / 300e9
            ms = 1e3 * (10e-6 + (devices - 1) * (2e-6 + 0.6e-6) + part_s)
            lines.append(f"h100_sxm,NCCL,2.29,all_gather,half,,{devices},{elements},{ms}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    section = imported(folder, "fit_collectives").section("dgx-h100", path, "h100_sxm")
    assert list(section) == ["ring"]
    assert section["ring"]["base_s"] == pytest.approx(10e-6, rel=0.05)
    assert section["ring"]["step_s"] == pytest.approx(2e-6, rel=0.1)
    assert section["ring"]["efficiency"] == pytest.approx(2 / 3, rel=0.05)


def test_example_of_a_rule_finds_its_mutation_and_offers_what_is_legal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(folder, "whole_layers")
    monkeypatch.setitem(PLAN_CHECKS, module.RULE.id, module.whole_layers)
    legal = ParallelPlan(pp=2, stages=(Cut(layer=16),))
    given = {"model": load_model("llama-3.1-8b"), "num_devices": 8, "memory_bytes": 80 * 10**9}
    assert check_plan(plan=legal, **given).of("PP-9") == "legal"
    (violation,) = check_plan(plan=replace(legal, stages=(Cut(layer=12, before="ffn"),)), **given).violations
    assert (violation.rule, violation.where) == ("PP-9", "plan.stages.cuts[0]")
    assert (violation.message, violation.fix) == ("the stage begins inside layer 12", "use balanced stages")
    assert check_plan(plan=ParallelPlan(), **given).of("PP-9") == "not_checkable"


def test_import_order_is_the_one_that_is_tested() -> None:
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    drawn = re.search(r"^```\n(pytest_plugin\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert drawn is not None
    assert [tuple(line.split(" | ")) for line in drawn[1].splitlines()] == [
        row for row in LAYERS if row != ("__main__",)
    ]


def test_table_of_tests_names_every_folder() -> None:
    named = {cells[0].strip("`").removeprefix("tests/").rstrip("/") for cells in rows(DOCUMENT, "folder")}
    present = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    assert named == present


def test_table_of_rooms_says_what_each_room_says_of_itself() -> None:
    packages = (path.parent for path in (ROOT / "clustersim").glob("*/*/**/__init__.py"))
    first = {
        f"{path.relative_to(ROOT / 'clustersim').as_posix()}/": " ".join(
            (ast.get_docstring(ast.parse((path / "__init__.py").read_text(encoding="utf-8"))) or "")
            .split("\n\n")[0]
            .split()
        ).rstrip(".")
        for path in packages
    }
    told = {cells[0].strip("`"): cells[1] for cells in rows(DOCUMENT, "room")}
    assert told == first
    assert all(first.values())


def test_no_room_has_more_modules_than_can_be_overlooked() -> None:
    counts = {
        path.parent.relative_to(ROOT).as_posix(): len(list(path.parent.glob("*.py")))
        for path in (ROOT / "clustersim").rglob("__init__.py")
    }
    assert {room: count for room, count in counts.items() if count > 30} == {}
