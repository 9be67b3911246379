"""The pytest plugin, in projects of its users: what is collected, how a failure reads, and what the fixtures do."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import clustersim.pytest_plugin.simulated  # noqa: F401  # stays loaded when pytester forgets what its tests load
from clustersim.library import runs
from clustersim.simulation.simulate import simulate
from tests.architecture.documents import ROOT
from tests.effort import is_whole

pytest_plugins = ["pytester"]

SCENARIO = """\
# one device, four requests
name: small
topology: dgx-h100
model: llama-3.1-8b
plan:
  tp: 2
workload:
  arrivals: all_at_once
  prompt_tokens: 100
  output_tokens: 3
  requests: 4
expect: {legal: true, finished: 4, "ttft_ms.p99": "< 1000"}
"""
PLUGIN = ("-p", "clustersim.pytest_plugin")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a project of somebody else, with one scenario."""
    pytester.path.joinpath("small.yaml").write_text(SCENARIO)
    return pytester


def write(project: pytest.Pytester, name: str, text: str) -> None:
    """Write a file of the project."""
    path = project.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def edited(old: str, new: str) -> str:
    """Return the scenario with one place changed."""
    assert SCENARIO.count(old) == 1
    return SCENARIO.replace(old, new)


def test_a_scenario_with_an_expect_is_a_test(project):
    result = project.runpytest_inprocess(*PLUGIN, "-v")
    result.stdout.fnmatch_lines(["*small.yaml::expect PASSED*"])
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no-expect.yaml", SCENARIO[: SCENARIO.index("expect")]),
        ("empty.yaml", ""),
        ("list.yaml", "- model\n- expect\n"),
        ("broken.yaml", "a: [\n"),
        ("other-tool.yaml", "model: gpt\nexpect: {score: 1}\n"),
        ("nested.yaml", "tests:\n  model: a\n  expect: b\n  plan: c\n"),
        ("flow.yaml", "{model: a, expect: b}\n"),
        ("nested-broken.yaml", "tests:\n  model: a\n  expect: b\n  plan: [\n"),
        ("indented.yaml", "a: 1\nb:\n  model: a\n  expect: b\n  plan: c\n\tx\n"),
        ("flow-nested.yaml", "{tests: {model: a, expect: b, plan: c}}\n"),
        ("text.yaml", "a model that nobody would expect to plan\n"),
        ("two.yaml", "a: 1\n---\nb: model expect plan\n"),
    ],
)
def test_other_yaml_is_left_alone(pytester, name, text):
    write(pytester, name, text)
    assert pytester.runpytest_inprocess(*PLUGIN).ret == pytest.ExitCode.NO_TESTS_COLLECTED


BROKEN = {
    "in a block": (SCENARIO.replace("tp: 2", "tp: [2").encode(), "s.yaml:7:9: not valid YAML: *"),
    "in braces": (b"{model: a, expect: {legal: true}, plan: \n", "s.yaml:*: not valid YAML: *"),
    "indented": (b"# x\n---\n  model: a\n  expect: {}\n  plan: {a: 1\n", "s.yaml:*: not valid YAML: *"),
    "a tab": (SCENARIO.replace("  tp: 2", "\ttp: 2").encode(), "s.yaml:6:1: *tab*"),
    "a key twice": ((SCENARIO + "seed: 1\nseed: 2\n").encode(), "s.yaml:14:1: *twice*"),
    "no UTF-8": (SCENARIO.replace("one device", "\xe9").encode("latin-1"), "s.yaml:1:*: byte 0xe9 is not UTF-8 text*"),
    "UTF-16": (SCENARIO.encode("utf-16"), "s.yaml:1:*: byte 0xff is not UTF-8 text*"),
    "no model": (SCENARIO.replace("model:", "modle:").encode(), "s.yaml:*: modle: unknown key 'modle'*"),
}
"""Scenarios with an ``expect`` that can't be read, and what a test of them says."""


@pytest.mark.parametrize(("content", "line"), BROKEN.values(), ids=BROKEN)
def test_a_scenario_that_cannot_be_read_fails_with_the_reason(pytester, content, line):
    pytester.path.joinpath("s.yaml").write_bytes(content)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([line])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize("name", ["small.yaml", "small.yml"])
def test_a_scenario_in_braces_is_a_test(pytester, name):
    write(
        pytester,
        name,
        "# a comment\n{model: llama-3.1-8b, topology: dgx-h100, expect: {legal: true}, workload: {"
        "arrivals: all_at_once, prompt_tokens: 10, output_tokens: 1, requests: 1}}\n",
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_a_failed_expectation_is_shown_with_value_and_place(project):
    write(project, "small.yaml", edited('"< 1000"', '"< 0.5"'))
    result = project.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"small\.yaml:12:51: expect\.'ttft_ms\.p99': ttft_ms\.p99 is \d+\.\d+; expected < 0\.5",
            r'   \| expect: \{legal: true, finished: 4, "ttft_ms\.p99": "< 0\.5"\}',
            r"   \| {51}\^",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_the_short_name_of_an_expectation_is_placed_too(project):
    write(project, "small.yaml", edited("finished: 4", "finished: 5"))
    result = project.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["small.yaml:12:33: expect.finished: requests.finished is 4; expected 5"])


def test_an_illegal_plan_that_expects_to_be_illegal_passes(project):
    text = edited("tp: 2", "tp: 5").replace('legal: true, finished: 4, "ttft_ms.p99": "< 1000"', "legal: false")
    write(project, "small.yaml", text)
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_an_illegal_plan_fails_with_the_rule_where_it_is_broken(project):
    write(project, "small.yaml", edited("tp: 2", "tp: 5"))
    result = project.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["small.yaml:6:7: plan.tp: 5 does not divide 32 attention heads*TP-1*"])
    result.stdout.fnmatch_lines(["small.yaml:12:17: expect.legal: legal is false; expected true"])


def test_an_illegal_plan_fails_where_nothing_is_said_of_legality(project):
    text = edited("tp: 2", "tp: 5").replace('legal: true, finished: 4, "ttft_ms.p99": "< 1000"', "")
    write(project, "small.yaml", text)
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(failed=1)


def test_a_legal_plan_that_expects_to_be_illegal_fails(project):
    write(project, "small.yaml", edited("legal: true", "legal: false"))
    result = project.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["small.yaml:12:17: expect.legal: legal is true; expected false"])


def test_a_scenario_with_a_mistake_fails_with_its_place(project):
    write(project, "small.yaml", edited("tp: 2", "tq: 2"))
    result = project.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["small.yaml:6:3: plan.tq: unknown key 'tq'*"])


def test_the_record_of_a_run_is_no_test_unless_it_is_named(project):
    write(project, "runs/a/scenario.yaml", SCENARIO)
    write(project, "runs/a/verdict.json", "{}")
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    project.runpytest_inprocess(*PLUGIN, "runs/a/scenario.yaml").assert_outcomes(passed=1)


def test_simulate_takes_a_path_beside_the_test_and_overrides_as_set_has_them(project):
    write(project, "deep/own.yaml", SCENARIO)
    write(
        project,
        "deep/test_it.py",
        """
def test_it(simulate):
    plain = simulate("own.yaml")
    assert plain.summary["requests"]["finished"] == 4
    assert plain.timeline.num_steps == plain.summary["steps"]
    assert plain.requests["output_tokens"].to_pylist() == [3] * 4
    other = simulate("own.yaml", seed=3, **{"plan.tp": 4, "workload.arrivals": {"process": "constant", "rate": "2/s"}})
    assert (other.scenario.seed, other.scenario.plan.tp) == (3, 4)
    assert other.summary["makespan_s"] > 1.5
    assert simulate("quickstart", **{"workload.trace.requests": 2}).legal
""",
    )
    project.runpytest_inprocess(*PLUGIN, "deep/test_it.py").assert_outcomes(passed=1)


def test_assert_legal_names_rule_place_and_what_is_wrong(project):
    write(
        project,
        "test_it.py",
        """
import pytest
import clustersim
from clustersim.simulation.audit import check_run
from clustersim.legality.rule import LookedAt, Verdict, Violation

WRONG = Violation(rule="TP-2", level="G", where="node 3", message="is partial", fix="sum it")
ILLEGAL = Verdict(violations=(WRONG,), rules=(LookedAt(id="TP-2", level="G", looked_at=1),))

def test_it(simulate, assert_legal, monkeypatch):
    found = simulate("small.yaml")
    assert_legal(found)
    assert found.verdict.levels == {"P": "legal", "G": "legal", "T": "legal"} == found.summary["legality"]
    assert_legal(found.replayed)
    monkeypatch.setattr("clustersim.simulation.audit.check_scenario", lambda _: ILLEGAL)
    with pytest.raises(AssertionError, match=r"node 3: is partial; sum it \\[TP-2\\]"):
        assert_legal(found.replayed)
    assert check_run(found.replayed).levels["G"] == "illegal"
    broken = simulate("small.yaml", **{"plan.tp": 5})
    assert not broken.legal
    assert broken.summary["legal"] is False
    with pytest.raises(AssertionError, match=r"plan.tp: 5 does not divide 32 attention heads .*\\[TP-1\\]"):
        assert_legal(broken)
    with pytest.raises(clustersim.IllegalPlanError, match="so it was not simulated:\\n.*TP-1"):
        broken.timeline
""",
    )
    project.runpytest_inprocess(*PLUGIN, "test_it.py").assert_outcomes(passed=1)


@pytest.fixture
def a_token_is_lost(monkeypatch):
    """Let every run lose a token in its record."""

    def broken(scenario, processes=1):
        found = simulate(scenario)
        timeline = found.timeline
        chunks = dict(timeline.chunks) | {"count": timeline.chunks["count"] - 1}
        replayed = dataclasses.replace(found.replayed, timeline=dataclasses.replace(timeline, chunks=chunks))
        return dataclasses.replace(found, replayed=replayed)

    monkeypatch.setattr(runs, "simulate", broken)


@pytest.mark.usefixtures("a_token_is_lost")
def test_assert_legal_audits_what_was_recorded(project):
    write(
        project,
        "test_it.py",
        """
import pytest
from clustersim.library import runs

def test_it(simulate, assert_legal):
    found = simulate("small.yaml")
    assert not found.legal
    for result in (found, runs.simulate(found.scenario)):
        with pytest.raises(AssertionError, match="KV-3: replica 0, step 0: prefills 400 tokens, its chunks add 396"):
            assert_legal(result)
""",
    )
    project.runpytest_inprocess(*PLUGIN, "test_it.py").assert_outcomes(passed=1)


@pytest.mark.usefixtures("a_token_is_lost")
def test_a_scenario_whose_record_is_illegal_fails(project):
    result = project.runpytest_inprocess(*PLUGIN, "small.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["small.yaml: [[]KV-*"])


def test_an_option_of_the_project_itself_comes_first(project):
    write(
        project,
        "conftest.py",
        "def pytest_addoption(parser):\n    parser.addoption('--update-golden', action='store_true', help='ours')\n",
    )
    result = project.runpytest_inprocess(*PLUGIN, "--help")
    assert result.ret == 0
    assert "ours" in result.stdout.str()
    project.runpytest_inprocess(*PLUGIN, "--update-golden").assert_outcomes(passed=1)


def installed(folder: Path) -> dict[str, str]:
    """Return the environment of a project that merely has clustersim installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "site" / f"clustersim-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: clustersim\nVersion: {project['version']}\n")
    points = [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *points, ""]))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(info.parent), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}


def test_an_installed_clustersim_is_all_that_a_project_needs(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "small.yaml").write_text(SCENARIO)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "small.yaml", "--update-golden"]
    for more, told in (((), "1 passed"), ((*PLUGIN, "--co"), "1 test collected"))[: 2 if is_whole() else 1]:
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, cwd=tmp_path / "own",
            env=installed(tmp_path / str(len(more))),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert told in done.stdout


def test_a_project_that_does_not_use_it_pays_nothing(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pipeline.yaml").write_text("model: a\nsteps: [expect]\n")
    code = (
        "import sys, pytest\n"
        "status = pytest.main(['--co', '-q', '-p', 'no:cacheprovider'])\n"
        "print(sorted(name for name in sys.modules if name.startswith(('clustersim', 'numpy', 'pydantic'))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path / "other",
        env=installed(tmp_path),
    )  # fmt: skip
    modules = done.stdout.splitlines()[-1]
    light = ["clustersim", "clustersim.errors", "clustersim.inputs", "clustersim.pytest_plugin"]
    assert modules == str([*light, "clustersim.pytest_plugin.scenario_file", "clustersim.values"])
