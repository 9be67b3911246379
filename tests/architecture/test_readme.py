"""The documents say what is true: commands run, tables have the keys and columns that there are.

The commands of the README and of the guide run in order in an empty folder beside the example files that they show,
as a newcomer would run them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import clustersim
import clustersim.pytest_plugin.simulated  # stays loaded when pytester forgets what its tests load
from clustersim import catalog
from clustersim.cli import COMMANDS, main
from clustersim.scenario import load
from clustersim.scenario.keys.json_schema import key_texts
from clustersim.timeline.spans import SPAN_COLUMNS
from tests.architecture.documents import GUIDE, ROOT, blocks, commands, rows, write_files
from tests.architecture.reference import commands_page, documented_keys, rules_page, with_key_tables
from tests.effort import is_long, is_whole

pytest_plugins = ["pytester"]

ELSEWHERE: Final = ("docs/calibrate-engine.md", "docs/reference/step-graphs.md", "docs/reference/histories.md")
"""Documents whose commands need logs of a server, or files that programs make (``test_formats``)."""
TRIED: Final = ("README.md", *(page for page in GUIDE if page not in ELSEWHERE))
"""Documents whose commands run."""
DOCUMENTS: Final = ("README.md", *GUIDE, "CONTRIBUTING.md")
OUTPUT: Final = "docs/reference/output.md"
STATUS: Final = {("check", "illegal-five-ways"): 1}
"""Commands that end with another status than 0."""
FEWER: Final = {
    "azure-hour-fleet": ("--set", "workload.requests=600", "--set", "expect={legal: true}"),
    "tp-on-one-node": ("--set", "workload.trace.requests=1000"),
    "distserve-tp2-pp2": ("--set", "workload.requests=20", "--set", "expect={legal: true}"),
    "own-scheduler": ("--set", "workload.trace.requests=10", "--set", "expect={legal: true}"),
}
"""Scenarios that are shown with so many requests that all of them are only simulated at night."""
FEW: Final = ("--set", "workload.trace.requests=12", "--set", "expect={legal: true}")
"""So many of the quickstart are enough where nothing is compared with what comes out."""
NO_PAGE: Final = ("--no-dashboard",)
PAGES: Final = {"scenarios/quickstart.yaml", "cost.table=kernels.csv"}
"""What runs have whose page is looked at, or told of: those of others differ in nothing that a document says."""
CHECKED: Final = {"--set"}
"""Of a run of which nothing else is read ``check`` says in a plain pytest whether it is a scenario, and a legal one."""
LOOKS: Final = {"audit", "compare", "dashboard", "graph", "prove", "rate", "search", "size", "trace", "why"}
"""Commands that make nothing that a later one reads."""
MANY_RUNS: Final = ("accuracy", "rate", "search", "size", "sweep", "why")
"""Commands that run candidates in processes of their own, which take longer to start than so few requests to run."""
QUICKSTART: Final = re.compile(r"^```\n(quickstart .*?)^```$", re.MULTILINE | re.DOTALL)


def fewer(words: list[str]) -> tuple[str, ...]:
    """Return what makes a command of the README shorter."""
    if is_long():
        return ()
    few = FEW[:2] if any(word.startswith("workload.trace.requests=") for word in words) else ()
    if words[0] in MANY_RUNS and words[1:]:
        return (*few, *(() if {"--workers", "--executor"}.intersection(words) else ("--workers", "1")))
    few = FEWER.get("".join(words[1:2]), few)
    if words[:2] == ["run", "quickstart"] and not {"runs/quick", "runs/other"}.intersection(words):
        few = few if "workload={" in " ".join(words) else FEW
    return (*few, *NO_PAGE) if words[0] == "run" and not PAGES.intersection(words) else few


def tried(words: list[str]) -> tuple[str, ...]:
    """Return what is called for a command of a document."""
    alone = words[0] == "run" and not {"scenarios/quickstart.yaml", "cost.table=kernels.csv"}.intersection(words)
    if alone and not is_whole() and {word for word in words if word.startswith("-")} <= CHECKED:
        return ("check", *words[1:])
    return (*words, *fewer(words))


def differing(every: list[list[str]]) -> list[list[str]]:
    """Return the first of each command that only looks, and those that make what a later one reads; ``--long=1``: all.

    Of the others :func:`test_command_of_a_document_can_be_parsed` says whether their options are right.
    """
    looked: set[str] = set()
    found = []
    for at, words in enumerate(every):
        made = words[words.index("-o") + 1] if "-o" in words else ""
        read = made and any(made in later for later in every[at + 1 :])
        if is_whole() or words[0] not in LOOKS or words[0] not in looked or read:
            found.append(words)
        looked.add(words[0])
    return found


def each_once(documents: tuple[str, ...]) -> list[list[str]]:
    """Return the commands of some documents, in order."""
    return [list(words) for words in dict.fromkeys(tuple(words) for name in documents for words in commands(name))]


@pytest.mark.parametrize("words", each_once(DOCUMENTS), ids=" ".join)
def test_command_of_a_document_can_be_parsed(words: list[str]) -> None:
    if "--help" in words:
        return
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    command.make_context(words[0], list(words[1:]))


def test_commands_of_the_documents_run_in_their_order_and_give_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One test, as all need the folder that holds the example files and ``scenarios/``."""
    for name in TRIED:
        write_files(name, tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    done = {tuple(words): CliRunner().invoke(main, tried(words)) for words in differing(each_once(TRIED))}
    assert {words: run.output for words, run in done.items() if run.exit_code != STATUS.get(words, 0)} == {}
    assert {words for words, run in done.items() if words[0] == "sweep" and " 0 failed" not in run.output} == set()
    check_columns(tmp_path)
    check_quickstart(
        done["run", "scenarios/quickstart.yaml"].stdout, update=request.config.getoption("--update-golden")
    )


def check_quickstart(printed: str, *, update: bool) -> None:
    """Compare what the quickstart prints with what the README shows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = QUICKSTART.search(text)
    assert shown is not None
    if _steady(printed) != _steady(shown[1]) and update:
        (ROOT / "README.md").write_text(text.replace(shown[1], printed), encoding="utf-8")
        pytest.fail("README.md: rewrote what the quickstart prints; look at what moved, and run again")
    assert _steady(printed) == _steady(shown[1]), "if the figures were meant to move: pytest --update-golden"


def _steady(text: str) -> list[str]:
    """Return the lines without wall time."""
    return [re.sub(r"in \S+ \S+ of real time, \S+ \S+ for", "", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize(("page", "last"), [("docs/guide/python.md", "schedule"), ("README.md", "50")])
def test_code_of_the_guide_runs(
    tmp_path: Path, page: str, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [block.text for block in blocks(page) if block.language == "python" and not block.file]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == last


def test_words_mean_what_contributors_are_told() -> None:
    told = dict(rows("CONTRIBUTING.md", "word"))
    shown = dict(rows("docs/reference/words.md", "word"))
    assert shown.items() <= told.items()
    for word in ("rank", "goodput", "bubble", "exposed communication", "pool"):
        assert word in shown


def test_tests_that_the_guide_shows_pass(pytester: pytest.Pytester) -> None:
    write_files("docs/guide/python.md", pytester.path)
    for update in (["--update-golden"], []):
        done = pytester.runpytest_inprocess("-q", "-p", "clustersim.pytest_plugin", "test_chat.py", *update)
    done.assert_outcomes(passed=1)


def test_program_of_the_guide_mends_its_plan(tmp_path: Path) -> None:
    write_files("docs/guide/legality.md", tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "clustersim"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clustersim "$@"\n')
    command.chmod(0o755)
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    run = [sys.executable, "-W", "error", "mend.py"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "plan.sp.decode=" in done.stdout


def test_documents_show_every_command() -> None:
    assert {words[0] for words in each_once(DOCUMENTS)} >= set(COMMANDS)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 250


@pytest.mark.parametrize("page", ["scenario", "commands", "rules"])
def test_reference_is_up_to_date(page: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / f"docs/reference/{page}.md"
    text = path.read_text(encoding="utf-8")
    made = {"scenario": lambda: with_key_tables(text), "commands": commands_page, "rules": rules_page}[page]()
    if made != text and request.config.getoption("--update-golden"):
        path.write_text(made, encoding="utf-8")
        pytest.fail(f"{path.name}: rewrote it; look at what moved, and run again")
    assert made == text, "out of date: pytest tests/architecture --update-golden"


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    texts, known = key_texts(), documented_keys()
    assert sorted(texts["meanings"]) == sorted(known)
    assert set(texts["defaults"]) <= set(known)
    others = {"workload.output_tokens.fixed", "serving.engine.graph_max_tokens", "topology.nodes"}  # no schema has them
    assert {key.partition("=")[0] for key in texts["known_as"].values()} <= {*known, *others}
    written = [key.strip("`") for key, _, _ in rows("docs/reference/scenario.md", "key")]
    assert sorted(written) == sorted(known)


def check_columns(folder: Path) -> None:
    """Compare what the tables of files list with the files of a run."""
    run = next(path.parents[1] for path in (folder / "runs").glob("quickstart-*/inputs/kernels.csv"))
    for file in ("requests.parquet", "steps.parquet", "timeline/moves.parquet"):
        assert _cells(f"column of `{file}`") == pq.read_schema(run / file).names
    assert sorted(_cells("column of unfolded spans")) == sorted(SPAN_COLUMNS)
    written = {name.rstrip("/") for name in _cells("file")}
    assert written == {path.name for path in run.iterdir()}
    prose = (ROOT / OUTPUT).read_text(encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert [key for key in summary if f"`{key}`" not in prose] == []


def _cells(head: str) -> list[str]:
    return [name for cells in rows(OUTPUT, head) for name in re.findall(r"`([^`]+)`", cells[0])]


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_links_lead_to_files_and_headings(document: str) -> None:
    found = re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose_of(document))
    assert [target for target in found if not leads_somewhere(document, target)] == []


@pytest.mark.parametrize("document", GUIDE)
def test_files_that_the_guide_names_are_there(document: str) -> None:
    """Pages don't link to what lies outside ``docs/``: a site has no such files."""
    named = re.findall(
        r"`((?:clustersim|topologies|scenarios|dashboards|names|tests|docs)/[\w./-]+)`", prose_of(document)
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def prose_of(document: str) -> str:
    return re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def leads_somewhere(document: str, target: str) -> bool:
    file, _, heading = target.partition("#")
    path = (ROOT / document).parent / file if file else ROOT / document
    if not path.exists() or not heading:
        return path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("name", catalog.names("scenarios"))
def test_shipped_scenario_says_what_it_shows_and_expects(name: str) -> None:
    text = catalog.path_of("scenarios", name).read_text(encoding="utf-8")
    head = text[: text.index("name:")].splitlines()
    assert len(head) >= 2
    assert all(line.startswith("# ") for line in head)
    assert "# Look at:" in text
    scenario = load(name)
    assert scenario.name == name
    assert [expected for expected in scenario.expect if expected.key == "legal"]


def test_public_names_are_sorted_and_there() -> None:
    assert clustersim.__all__ == sorted(clustersim.__all__)
    assert [name for name in clustersim.__all__ if getattr(clustersim, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = clustersim.laod


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import clustersim; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert not {"numpy", "yaml", "simpy"} & set(re.findall(r"\w+", done.stdout))
