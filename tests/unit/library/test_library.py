"""The library: what it takes as a scenario, what a result shows, and what it refuses."""

from __future__ import annotations

import doctest
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click import BadParameter
from click.testing import CliRunner

import clustersim
import clustersim.library.runs
import clustersim.library.summary
from clustersim.cli import main
from clustersim.cli.options import Number, Whole
from clustersim.interop.options import share, whole
from clustersim.scenario.load import load as load_file

PLAIN: dict[str, Any] = {
    "topology": "dgx-h100",
    "model": "llama-3.1-8b",
    "plan": {"tp": 2},
    "workload": {"arrivals": "all_at_once", "prompt_tokens": 100, "output_tokens": 3, "requests": 4},
    "targets": {"ttft": "900 ms"},
}
SURFACE = {
    "check": "(scenario, overrides=(), **values)",
    "load": "(scenario, overrides=(), *, allow_code=None, **values)",
    "run": "(scenario, overrides=(), *, strict=True, audit=True, processes=1, allow_code=None, **values)",
    "Result": "failures legal replayed requests steps timeline · "
    "dashboard(path, layout='overview', *, request=None, at=None, max_page='30 MB') save(folder) "
    "why(allow_code=None, *, only=())",
}
"""What programs of others call. A change here is a change of theirs."""


@pytest.fixture(scope="module")
def result() -> clustersim.Result:
    """Return a small run."""
    return clustersim.run(PLAIN)


def signature(function: Any) -> str:
    """Return the parameters of a function without their types."""
    found = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values() if one.name != "self"]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_the_public_surface_is_the_one_that_programs_call() -> None:
    members = {name: one for name, one in vars(clustersim.Result).items() if not name.startswith("_")}
    properties = sorted(name for name, one in members.items() if isinstance(one, property))
    methods = sorted(name + signature(one) for name, one in members.items() if inspect.isfunction(one))
    functions = {name: signature(getattr(clustersim, name)) for name in ("check", "load", "run")}
    assert functions | {"Result": f"{' '.join(properties)} · {' '.join(methods)}"} == SURFACE


def test_examples_in_docstrings_are_true() -> None:
    for module in (clustersim.library.runs, clustersim.library.summary):
        found = doctest.testmod(module)
        assert (found.attempted > 0, found.failed) == (True, 0)


def test_a_name_a_path_a_mapping_and_a_loaded_scenario_are_the_same_one(tmp_path: Path, result: Any) -> None:
    file = tmp_path / "unnamed.yaml"
    file.write_text(json.dumps(PLAIN))
    as_file, as_data = clustersim.load(file), clustersim.load(PLAIN)
    assert as_file.digest == as_data.digest == clustersim.load(str(file)).digest == result.scenario.digest
    assert clustersim.load(as_data) is as_data
    assert clustersim.load("quickstart").digest == load_file("quickstart").digest
    assert PLAIN["plan"] == {"tp": 2}  # what is given stays as it is


def test_values_replace_as_set_does() -> None:
    by_set = load_file("quickstart", ["plan.tp=4", "seed=3"])
    for found in (
        clustersim.load("quickstart", ["plan.tp=4", "seed=3"]),
        clustersim.load("quickstart", {"plan.tp": np.int64(4), "seed": 3}),
        clustersim.load("quickstart", {"plan.tp": 4}, seed=3),
        clustersim.load("quickstart", plan={"tp": 4, "pp": 2}, seed=3),
    ):
        assert found.digest == by_set.digest
    assert clustersim.load("quickstart", plan={"tp": 4}).plan.pp == 1  # the whole part is another


def test_tables_are_those_of_the_run_directory(tmp_path: Path, result: clustersim.Result) -> None:
    folder = result.save(tmp_path / "run")
    assert result.requests.equals(pq.read_table(folder / "requests.parquet"))
    assert result.steps.equals(pq.read_table(folder / "steps.parquet"))
    assert isinstance(result.steps, pa.Table)  # with the Arrow interface that pandas and polars read
    kept = json.loads((folder / "summary.json").read_text())
    assert kept == {key: value for key, value in result.summary.items() if key != "wall_s"}
    assert result.summary.ttft_ms.p99 == kept["ttft_ms"]["p99"]
    assert result.summary.steps == sum(result.steps["count"].to_pylist())
    page = result.dashboard(tmp_path / "page.html")
    assert page.read_text() == (folder / "dashboard.html").read_text()


def test_no_key_of_a_summary_hides_behind_a_method(result: clustersim.Result) -> None:
    def keys(found: Any) -> set[str]:
        return {*found, *(key for one in found.values() for key in keys(one))} if isinstance(found, dict) else set()

    told = {key: value for key, value in result.summary.items() if key != "scenario"}
    assert not keys(told) & set(dir(dict))
    assert {"ttft_ms", "throughput"} <= set(dir(result.summary))
    with pytest.raises(AttributeError, match=r"no 'ttft' in this summary; did you mean 'ttft_ms'"):
        _ = result.summary.ttft


def test_a_result_shows_itself_in_a_line_and_in_a_notebook(result: clustersim.Result) -> None:
    shown = r"<Result of unnamed: 4 of 4 requests · p99 TTFT [\d.]+ ms · p99 TPOT [\d.]+ ms; legal>"
    assert re.fullmatch(shown, repr(result))
    html = result._repr_html_()
    assert html.count("<svg") == html.count("</svg>") == 2
    assert "<script" not in html
    assert "4 of 4 requests finished" in html
    assert len(html) < 10_000
    points = [line.split() for line in re.findall(r'points="([^"]+)"', html)]
    for curve in points:
        x, y = np.array([point.split(",") for point in curve], float).T
        assert (np.diff(x) >= 0).all()
        assert (np.diff(y) < 0).all()


def test_a_scenario_shows_itself_in_a_line() -> None:
    words = repr(clustersim.load("quickstart"))
    assert words.startswith(
        "<Scenario quickstart: llama-3.1-70b on dgx-h100, PP 2 × TP 8; 500 requests from azure-conv-sample.csv; digest "
    )
    assert len(words) < 160
    pools = repr(clustersim.load("deepseek-v3-pools"))
    assert "prefill DP" in pools and "; decode DP" in pools and "requests drawn" in pools  # noqa: PT018


def test_why_ranks_limits_as_the_command_does(tmp_path: Path) -> None:
    scarce = {**PLAIN, "serving": {"max_batch_requests": 1}}
    found = clustersim.run(scarce).why()
    assert found.limits[0].key == "serving.max_batch_requests"
    assert repr(found).startswith("<Why unnamed is as it is: no cap on the batch (serving.max_batch_requests) ")
    html = found._repr_html_()
    assert html.count("<tr>") == 2 + sum(one.binds for one in found.limits)
    page = found.page(tmp_path / "why.html").read_text()
    (tmp_path / "s.yaml").write_text(json.dumps({**scarce, "name": "unnamed"}))
    words = ["why", str(tmp_path / "s.yaml"), "--workers", "1", "--out", str(tmp_path / "out"), "--json"]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    assert [one["limit"] for one in json.loads(told.stdout)["lifted"]] == [
        one.limit for one in found.limits if not one.why_not
    ]
    assert page == (tmp_path / "out" / "why.html").read_text()


def test_what_is_illegal_raises_unless_it_may() -> None:
    with pytest.raises(clustersim.IllegalPlanError, match=r"is illegal:\nthe scenario given: plan.tp: 3 does .*TP-1"):
        clustersim.run({**PLAIN, "plan": {"tp": 3}})
    found = clustersim.run(PLAIN, {"plan.tp": 3}, strict=False)
    assert (found.legal, found.ran, found.summary["legal"]) == (False, None, False)
    assert repr(found) == "<Result of unnamed: not simulated; illegal>"
    for what in ("requests", "steps", "timeline", "replayed"):
        with pytest.raises(clustersim.IllegalPlanError, match=r"so it was not simulated:\n.*TP-1"):
            getattr(found, what)


def test_without_the_audit_only_plan_and_graphs_are_asked(result: clustersim.Result) -> None:
    assert clustersim.run(PLAIN, audit=False).verdict.levels == {"P": "legal", "G": "legal"}
    assert result.verdict.levels == {"P": "legal", "G": "legal", "T": "legal"}
    assert clustersim.check(PLAIN).levels == {"P": "legal", "G": "legal"}


def deep() -> Any:
    """Return lists in each other, deeper than any program goes."""
    found: Any = 1
    for _ in range(20_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: clustersim.load({**PLAIN, "model": "lama"}), clustersim.InputError,
         "the scenario given: model: no model 'lama'"),
        (lambda: clustersim.load({"a": 1}), clustersim.InputError, "found a; expected keys such as topology, model"),
        (lambda: clustersim.load({}), clustersim.InputError, "found nothing; expected keys such as"),
        (lambda: clustersim.load("quickstart", plann={}), clustersim.InputError, "unknown key 'plann'.*'plan'"),
        (lambda: clustersim.load(None), TypeError, "expected a name, a path, a mapping .* but found NoneType"),
        (lambda: clustersim.load(["quickstart"]), TypeError, "but found list"),
        (lambda: clustersim.load("quickstart", [5]), TypeError, "but found 5"),
        (lambda: clustersim.load("quickstart", {5: 5}), TypeError, "but found 5"),
        (lambda: clustersim.load("quickstart", seed=deep()), TypeError, "seed: "),
        (lambda: clustersim.load("quickstart", "seed=3"), TypeError, r"not the text 'seed=3'"),
        (lambda: clustersim.load("quickstart", seed=object()), TypeError, "seed: found object; expected numbers"),
        (lambda: clustersim.load("quickstart", seed=float("nan")), clustersim.InputError, "seed"),
        (lambda: clustersim.load(clustersim.load(PLAIN), seed=4), TypeError, "a loaded Scenario takes no other values"),
        (lambda: clustersim.run("quickstar"), clustersim.InputError, "did you mean 'quickstart'"),
        (lambda: clustersim.run(PLAIN).dashboard("/", "overvie"), clustersim.InputError, "mean 'overview'"),
    ],
)  # fmt: skip
def test_bad_input_says_what_is_wrong(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("overrides", "values", "named"),
    [
        ({"plan.tpp": 3}, {}, "override {'plan.tpp': 3}: plan.tpp: unknown key"),
        (["plan.tp=4", "plan.tpp=3"], {}, "override 'plan.tpp=3': plan.tpp: unknown key"),
        ({"plan.tp": 4}, {"plan": {"tpp": 3}}, "override plan={'tpp': 3}: plan.tpp: unknown key"),
        ({"seed": 1, "topology": "./nope/x.yaml"}, {}, "override topology: topology: no topology file './nope/x.yaml'"),
    ],
    ids=["mapping", "texts", "values", "a file"],
)
def test_errors_name_an_override_as_it_was_written(overrides, values, named):
    with pytest.raises(clustersim.InputError) as refused:
        clustersim.load("quickstart", overrides, **values)
    assert str(refused.value).startswith(named)
    data = {"model": "llama-3.1-8b", "topology": "dgx-h100"}
    with pytest.raises(clustersim.InputError) as refused:
        clustersim.load(data, overrides, **values)
    assert any(line.startswith(named) for line in str(refused.value).splitlines())


def test_a_result_says_which_target_was_missed():
    small = {"workload.trace.requests": 4, "expect": {}}
    missed = clustersim.run("quickstart", small | {"targets": {"ttft": "1 ms", "tpot": "1 s"}})
    assert re.search(r"; missed: p99 of TTFT is \S+ ms, target 1 ms; legal>$", repr(missed))
    assert "missed" not in repr(clustersim.run("quickstart", small | {"targets": {"ttft": "1 h"}}))


def test_a_key_that_a_summary_does_not_have_is_told_with_the_nearest():
    summary = clustersim.library.summary.Summary({"ttft_ms": {"p99": 812.5}})
    for ask, nearest in ((lambda: summary["ttft"], "ttft_ms"), (lambda: summary["ttft_ms"]["p9"], "p99")):
        with pytest.raises(KeyError, match=f"in this summary; did you mean '{nearest}'"):
            ask()
    assert summary.get("ttft") is None


def test_a_dashboard_shows_what_is_asked_for_first(tmp_path):
    result = clustersim.run("quickstart", {"workload.trace.requests": 4, "expect": {}})
    plain = result.dashboard(tmp_path / "plain.html").read_text(encoding="utf-8")
    asked = result.dashboard(tmp_path / "asked.html", request=2, at="1 s").read_text(encoding="utf-8")
    assert asked != plain
    assert asked == result.dashboard(tmp_path / "again.html", request=2, at=1.0).read_text(encoding="utf-8")
    for wrong, message in (({"request": 9}, "request: there is no request 9"), ({"at": "1 h"}, "at: 60 min")):
        with pytest.raises(clustersim.InputError, match=message):
            result.dashboard(tmp_path / "none.html", **wrong)
    assert not (tmp_path / "none.html").exists()


def test_what_is_long_shows_itself_in_a_line(result: clustersim.Result) -> None:
    shown = [repr(one) for one in (result.summary, result.timeline, result.verdict, result.scenario)]
    assert max(map(len, shown)) < 800
    assert "ttft_ms" in shown[0]
    assert repr(result.summary.requests) == repr(dict(result.summary.requests))
    timeline = result.timeline
    assert shown[1].startswith(f"<Timeline of {timeline.num_spans:,} spans in {timeline.num_steps:,} steps, ")
    assert shown[2].startswith("<Verdict legal: ")
    broken = clustersim.check(PLAIN, {"plan.tp": 6})
    assert repr(broken).startswith(f"<Verdict illegal: {len(broken.violations)} against TP-1")


def test_what_was_expected_and_did_not_come_true_is_told() -> None:
    good, bad = (clustersim.run(PLAIN, expect={"requests.finished": count}) for count in (4, 5))
    assert good.failures == ()
    assert "not as expected" not in repr(good)
    assert bad.failures == ("requests.finished is 4; expected 5",)
    assert "; not as expected: requests.finished is 4; expected 5; legal>" in repr(bad)
    assert "requests.finished is 4; expected 5" in bad._repr_html_()
    assert clustersim.run(PLAIN, strict=False, plan={"tp": 6}, expect={"legal": False}).failures == ()


def test_why_lifts_only_what_is_asked_for(result: clustersim.Result) -> None:
    assert [one.name for one in result.why(only=["host"]).limits] == ["host"]
    assert result.why(only="host") == result.why(only=("host",))


def test_a_page_is_no_larger_than_asked(tmp_path: Path, result: clustersim.Result) -> None:
    size = len(result.dashboard(tmp_path / "whole.html").read_bytes())
    with pytest.raises(clustersim.InputError, match=r"^max_page: 1 kB is too little for steps and requests"):
        result.dashboard(tmp_path / "small.html", max_page="1 kB")
    assert not (tmp_path / "small.html").exists()
    assert len(result.dashboard(tmp_path / "fits.html", max_page=f"{size} B").read_bytes()) <= size


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda one: clustersim.load("quickstart", None), TypeError, "expected overrides such as .* but found None"),
        (lambda one: clustersim.load(PLAIN, ["seed=1"], seed=2), TypeError, "seed is given twice"),
        (lambda one: clustersim.load(PLAIN, {"seed": 1}, seed=2), TypeError, "seed is given twice"),
        (lambda one: clustersim.load(PLAIN, nonsense=1), clustersim.InputError, "unknown key 'nonsense'; known: "),
        (lambda one: clustersim.run(PLAIN, stric=False), clustersim.InputError, "unknown key 'stric'; known: "),
        (lambda one: clustersim.run(PLAIN, strict="no"), TypeError, "strict: expected True or False, but found 'no'"),
        (lambda one: clustersim.run(PLAIN, audit=1), TypeError, "audit: expected True or False"),
        (lambda one: clustersim.run(PLAIN, processes=0), TypeError, "processes: expected a whole number of at least 1"),
        (lambda one: one.dashboard("x", request=True), TypeError, "request: expected a whole number"),
        (lambda one: one.dashboard("x", request=1.0), TypeError, "request: expected a whole number"),
        (lambda one: one.dashboard("x", at=float("nan")), clustersim.InputError, "at: expected an instant .* nan"),
        (lambda one: one.dashboard("x", max_page="0 B"), clustersim.InputError, "max_page: expected more than nothing"),
        (lambda one: one.dashboard("x", max_page="1 kB"), clustersim.InputError, "or more, or a layout without .*kB$"),
        (lambda one: one.dashboard("x", "overvie"), clustersim.InputError, "^layout: no dashboard 'overvie'"),
        (lambda one: one.save("/"), clustersim.InputError, "^folder: /: "),
        (lambda one: one.why(only=["batc"]), clustersim.InputError, "only: 'batc' is no limit; .* mean 'batch'"),
        (lambda one: one.timeline.unfold(10, 0), clustersim.InputError, "end_ns: 0 is before start_ns, 10"),
        (lambda one: one.timeline.unfold(0, 10, ranks=3), clustersim.InputError, "ranks: expected ranks such as"),
        (lambda one: one.timeline.unfold(0, 10, ranks=[-1]), clustersim.InputError, "ranks: expected ranks such as"),
        (lambda one: one.timeline.unfold(float("nan"), 10), clustersim.InputError, "start_ns: .* nanoseconds.* nan"),
        (lambda one: one.timeline.unfold((0, float("nan"))), clustersim.InputError, r"start_ns: .* found \(0, nan\)"),
        (lambda one: one.timeline.unfold(0, "1 s"), clustersim.InputError, "end_ns: .* nanoseconds, but found '1 s'"),
        (lambda one: one.timeline.unfold(0, 10, ranks="x"), clustersim.InputError, "ranks: expected ranks such as"),
        (lambda one: one.timeline.unfold(0, 10, ranks=[None]), clustersim.InputError, "ranks: expected ranks such as"),
        (lambda one: one.dashboard(None), TypeError, "path: expected a path, but found None"),
        (lambda one: one.dashboard("x", None), TypeError, "layout: expected a name or a path, but found None"),
        (lambda one: one.dashboard("x", at={"a": 1}), clustersim.InputError, "at: .* found {'a': 1}"),
        (lambda one: one.save(3), TypeError, "folder: expected a path, but found 3"),
        (lambda one: one.save("a\0b"), clustersim.InputError, "folder: no file can be called"),
        (lambda one: one.why(only=3), TypeError, "only: expected some of .*batch.*, but found 3"),
    ],
)  # fmt: skip
def test_arguments_are_checked(result: clustersim.Result, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(result)


def test_a_number_that_is_none_is_told_as_it_is() -> None:
    with pytest.raises(clustersim.InputError, match="found the number nan"):
        clustersim.check("quickstart", {"seed": float("nan")})


@pytest.mark.parametrize("kind", [Whole(), Number(), whole, share])
def test_numbers_in_commands_are_of_digits_from_0_to_9(kind: Any) -> None:
    read = kind if inspect.isfunction(kind) else lambda text: kind.convert(text, None, None)
    assert read("1") == 1
    with pytest.raises((BadParameter, ValueError), match="expected a"):
        read("١")
