"""Python that a scenario names runs only where whoever runs it has said so, and never to check or to audit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import clustersim
from clustersim.cli import main
from clustersim.errors import InputError

pytest_plugins = ["pytester"]

CODE = """\
from pathlib import Path
from clustersim.serving.view import Choice

Path(__file__).with_name("ran").touch()


class Mine:
    def __init__(self, limit=4):
        self.limit = limit

    def decide(self, view):
        for s in (*view.running, *view.waiting):
            if not s.in_flight:
                return Choice(tokens={s.request: min(s.to_compute, view.max_batch_tokens)})
        return Choice()

    def route(self, view):
        return view.replicas[0].replica
"""
SCENARIO = """\
topology: dgx-h100
model: {name: llama-3.1-8b, config: {num_hidden_layers: 2}}
serving: {KEY: mine.py:Mine}
workload: {arrivals: all_at_once, prompt_tokens: 100, output_tokens: 3, requests: 2}
expect: {legal: true}
"""
POOLS = SCENARIO.replace(
    "serving: {", "plan: {prefill: {tp: 2}, decode: {tp: 2}}\nserving: {scheduler: disaggregated, "
)


@pytest.fixture(params=["scheduler", "both pools"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERSIM_ALLOW_CODE", raising=False)
    text = POOLS.replace("KEY", "router") if request.param == "both pools" else SCENARIO.replace("KEY", request.param)
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def ran(folder: Path) -> bool:
    """Whether the file, or its copy in a run directory, ran since this was last asked."""
    marks = list(folder.rglob("ran"))
    for mark in marks:
        mark.unlink()
    return bool(marks)


def test_a_run_says_what_would_run_and_how_to_allow_it(folder: Path) -> None:
    result = invoke("run", "s.yaml", "--out", "r")
    assert result.exit_code == 2
    for words in ("s.yaml:", "Python code", str(folder / "mine.py"), "class Mine", "--allow-code", "_ALLOW_CODE=1"):
        assert words in result.stderr
    assert not (folder / "r").exists()
    assert not ran(folder)


def test_what_only_looks_never_runs_it_even_where_it_may(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("run", "s.yaml", "--no-dashboard", "--out", "r", "--allow-code").exit_code == 0
    assert ran(folder)
    monkeypatch.setenv("CLUSTERSIM_ALLOW_CODE", "1")
    pool = ["--pool", "decode"] if "disaggregated" in (folder / "s.yaml").read_text() else []
    for words in (
        ["check", "s.yaml"], ["check", "s.yaml", "--fix"], ["graph", "s.yaml", *pool], ["prove", "s.yaml"],
        ["audit", "r"], ["dashboard", "r"], ["trace", "r"],
    ):  # fmt: skip
        result = invoke(*words)
        assert result.exit_code == 0, (words, result.output)
        assert not ran(folder), words


def test_audit_again_needs_it(folder: Path) -> None:
    assert invoke("run", "s.yaml", "--no-dashboard", "--out", "r", "--allow-code").exit_code == 0
    ran(folder)
    refused = invoke("audit", "r", "--again", "full")
    assert (refused.exit_code, "--allow-code" in refused.stderr, ran(folder)) == (2, True, False)
    assert invoke("audit", "r", "--again", "full", "--allow-code").exit_code == 0
    assert ran(folder)


@pytest.mark.parametrize(("said", "allowed"), [("1", True), ("0", False), ("yes", False), ("", False)])
def test_the_environment_may_allow_it(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, allowed: bool) -> None:
    monkeypatch.setenv("CLUSTERSIM_ALLOW_CODE", said)
    assert invoke("run", "s.yaml", "--no-dashboard", "--out", "r").exit_code == (0 if allowed else 2)
    assert ran(folder) == allowed


def test_the_library_needs_it_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--allow-code"):
        clustersim.run("s.yaml")
    assert not ran(folder)
    clustersim.run("s.yaml", allow_code=True)
    assert ran(folder)
    monkeypatch.setenv("CLUSTERSIM_ALLOW_CODE", "1")
    with pytest.raises(InputError, match="--allow-code"):
        clustersim.run("s.yaml", allow_code=False)
    assert not ran(folder)


def test_compiled_code_beside_the_file_is_never_run(folder: Path) -> None:
    import py_compile

    other = folder / "other.py"
    other.write_text(CODE.replace("ran", "other"))
    (folder / "__pycache__").mkdir()
    target = py_compile.compile(str(other), str(folder / "mine.pyc"), dfile="mine.py")
    shutil.copy(str(target), folder / "__pycache__" / "mine.cpython-311.pyc")
    assert invoke("run", "s.yaml", "--no-dashboard", "--out", "r", "--allow-code").exit_code == 0
    assert ran(folder)
    assert not (folder / "other").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Mine:", "class Yours:", "mine.py: no class 'Mine'; known: Yours"),
        ("def decide", "def chose", "mine.py:7: class Mine has no method decide"),
        ("limit=4", "limt=4", "mine.py:7: Mine can't be made: it takes no option 'limit'; did you mean 'limt'?"),
        ("limit=4", "limit, more", "mine.py:7: Mine can't be made: it needs the option 'more'"),
        ("def decide(", "def decide((", "mine.py:11: "),
        ("from pathlib", "\0from pathlib", "source code string cannot contain null bytes"),
    ],
)
def test_the_text_of_the_file_is_checked_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCENARIO.replace("KEY", "scheduler").replace("mine.py:Mine", "mine.py:Mine, scheduler_options: {limit: 3}")
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "mine.py").write_text(CODE.replace(old, new, 1))
    result = invoke("check", "s.yaml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not ran(tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        "from somewhere import Mine\n", "from somewhere import *\n", "Mine = make()\n", "globals()['Mine'] = 3\n",
        "class Mine(Base):\n    pass\n", "@dataclass\nclass Mine:\n    limit: int\n    def decide(self, view): ...\n",
        "if True:\n    class Mine:\n        decide = None\n",
        "class Mine:\n    def __init__(self, **options): ...\n    decide = route = other\n",
    ],
)  # fmt: skip
def test_what_only_running_it_would_tell_is_left_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCENARIO.replace("KEY", "scheduler").replace("mine.py:Mine", "mine.py:Mine, scheduler_options: {limit: 3}")
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "mine.py").write_text(code)
    assert invoke("check", "s.yaml").exit_code == 0


@pytest.mark.parametrize("how", ["", "setting"])
def test_the_pytest_plugin_needs_it_as_well(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv("CLUSTERSIM_ALLOW_CODE", raising=False)
    pytester.path.joinpath("s.yaml").write_text(SCENARIO.replace("KEY", "scheduler"))
    pytester.path.joinpath("mine.py").write_text(CODE)
    if how != "setting":
        test = "def test_it(simulate):\n    assert simulate('s.yaml').legal\n"
        pytester.path.joinpath("test_mine.py").write_text(test)
    if how == "setting":
        pytester.path.joinpath("pytest.ini").write_text("[pytest]\nclustersim_allow_code = true\n")
    flags = ["--allow-code"] if how == "flag" else []
    result = pytester.runpytest_inprocess("-p", "clustersim.pytest_plugin", *flags)
    result.assert_outcomes(**({"": {"failed": 2}, "flag": {"passed": 2}, "setting": {"passed": 1}}[how]))
    assert ran(pytester.path) == bool(how)
