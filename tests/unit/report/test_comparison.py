"""Runs side by side: causes that can be derived in the head, workloads that differ, the page, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.catalog import path_of
from clustersim.cli import main
from clustersim.limits import Limits
from clustersim.report.comparison.comparison import compare
from clustersim.report.comparison.entries import names_apart, read_entry
from clustersim.report.comparison.panels import FIGURES, PANELS
from clustersim.report.comparison.text import tables
from clustersim.report.figures.layout import read_layout
from clustersim.report.figures.style import COLOURS

OUTPUT = 16
PLAIN: dict[str, Any] = {
    "name": "plain",
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": "llama-3.1-8b",
    "serving": {"engine": {"name": "vllm-0.19", "schedule": "100 us", "front_end": "6 ms"}},
    "workload": {"arrivals": "all_at_once", "prompt_tokens": 512, "output_tokens": OUTPUT, "requests": 2},
}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def written(folder: Path, name: str, **parts: Any) -> str:
    """Write a scenario with other values at dotted paths, and return its path."""
    document = json.loads(json.dumps(PLAIN))
    for path, value in parts.items():
        at = document
        *above, last = path.split("__")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(file)


def compared(*given: str) -> dict[str, Any]:
    result = invoke("compare", *given, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def cause(found: dict[str, Any], name: str, which: str = "difference_ns") -> int:
    return next((int(one[which]) for one in found["causes"] if one["cause"] == name), 0)


def test_a_slower_host_is_the_only_cause_of_a_difference(tmp_path: Path) -> None:
    """One prefill and 15 decodes, each 50 µs longer, for two requests in the same steps."""
    slow = written(tmp_path, "slow", serving__engine={"name": "vllm-0.19", "schedule": "150 us", "front_end": "6 ms"})
    found = compared(written(tmp_path, "plain"), slow)
    assert found["scenario"] == [{"path": "serving.engine.schedule", "a": "100 us", "b": "150 us"}]
    assert found["requests"]["difference_ns"] == 2 * OUTPUT * 50_000 == cause(found, "schedule")
    assert sum(abs(one["difference_ns"]) for one in found["causes"]) == 2 * OUTPUT * 50_000
    by_name = {one["name"]: one for one in found["metrics"]}
    assert by_name["e2e_ms.mean"]["difference"] == pytest.approx(OUTPUT * 0.05)
    assert found["requests"]["largest"][0]["cause"] == "schedule"


def test_a_request_that_finds_the_batch_full_waits_in_the_queue(tmp_path: Path) -> None:
    """With one place the second request waits for as long as the first one takes, less its front end."""
    found = compared(written(tmp_path, "both"), written(tmp_path, "one", serving__max_batch_requests=1))
    assert cause(found, "a place in the batch", "a_ns") == 0
    times = [row["b_ms"] for row in sorted(found["requests"]["largest"], key=lambda row: row["request"])]
    assert cause(found, "a place in the batch", "b_ns") / 1e6 == pytest.approx(times[0] - 6, abs=1e-9)
    assert cause(found, "a place in the batch", "b_ns") / 1e6 == pytest.approx(times[1] - times[0], abs=1e-9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run directories of one stage, of two, and of two pools."""
    folder = tmp_path_factory.mktemp("runs")
    workload = {
        "arrivals": {"process": "poisson", "rate": "20/s"},
        "prompt_tokens": 900,
        "output_tokens": 8,
        "requests": 12,
    }
    pools = {"prefill": {"tp": 1}, "decode": {"tp": 2}}
    files = {
        "one": written(folder, "one", workload=workload),
        "two": written(folder, "two", workload=workload, plan={"pp": 2}),
        "pools": written(folder, "pools", workload=workload, plan=pools, serving__scheduler="disaggregated"),
        "other": written(folder, "other", workload=workload | {"requests": 9}),
    }
    found = {}
    for name, file in files.items():
        found[name] = str(folder / f"run-{name}")
        done = invoke("run", file, "--out", found[name], "--quiet", "--no-audit", "--no-dashboard")
        assert done.exit_code == 0, done.output
    return found


def test_runs_are_called_by_what_tells_their_paths_apart(runs: dict[str, str]) -> None:
    done = invoke("compare", runs["one"], runs["two"])
    assert "end to end run-two took" in done.stdout
    assert str(Path(runs["one"]).parent) not in done.stdout
    assert compared(runs["one"], runs["two"])["b"] == runs["two"]
    assert names_apart(["runs/a", "runs/a"]) == ["a (1)", "a (2)"]
    assert names_apart(["runs/a", "runs/a (1)", "runs/./a", "runs/b"]) == ["a (2)", "a (1)", "a (3)", "b"]
    assert compared(runs["one"], runs["one"])["names"] == ["run-one (1)", "run-one (2)"]
    assert names_apart(["quickstart", "runs/a"]) == ["quickstart", "runs/a"]


def test_causes_that_are_not_listed_are_one_row(runs: dict[str, str]) -> None:
    one, pools = (read_entry(runs[name], name, None, Limits()) for name in ("one", "pools"))
    found = compare(one, pools)
    assert tables(found)[0][2][0] == ("plan", "one device", "prefill one device, decode TP 2")
    assert not any("'" in cell for row in tables(found)[0][2] for cell in row)  # no mapping as Python has it
    (title, _, rows) = tables(found, most=3)[1]
    assert "12 requests finished in both; end to end pools took " in title
    many = sum(1 for one in found.causes if one.a_ms or one.b_ms)
    assert (len(rows), rows[-1][0]) == (4, f"{many - 3} others")
    for place in (2, 3):
        whole = sum(one.a_ms if place == 2 else one.b_ms for one in found.causes)
        told = sum(float(row[place].replace(",", "")) for row in rows)
        assert told == pytest.approx(whole, rel=1e-3)
    assert len(tables(found, most=many)[1][2]) == many
    back = tables(compare(pools, one))[1][0]
    assert {" ms more ", " ms less "} == {word for word in (" ms more ", " ms less ") if word in title + back}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no-such", "no run directory 'no-such', and no scenario 'no-such'"),
        ("runs/no-such", "runs/no-such: no run directory, and no such scenario"),
    ],
)
def test_an_unknown_name_is_neither_a_run_directory_nor_a_scenario(runs: dict[str, str], name: str, told: str) -> None:
    done = invoke("compare", runs["one"], name)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("other", ["two", "pools"])
def test_causes_add_up_to_the_difference(runs: dict[str, str], other: str) -> None:
    found = compared(runs["one"], runs[other])
    assert found["requests"]["same"]
    assert found["requests"]["compared"] == 12
    assert sum(one["difference_ns"] for one in found["causes"]) == found["requests"]["difference_ns"] != 0
    e2e = next(one for one in found["metrics"] if one["name"] == "e2e_ms.mean")
    for side in "ab":
        assert sum(one[f"{side}_ns"] for one in found["causes"]) / 12e6 == pytest.approx(e2e[side], abs=1e-6)
    wait = {"two": "a stage", "pools": "a transfer"}[other]
    assert cause(found, wait, "b_ns") > 0 == cause(found, wait, "a_ns")


def test_names_come_before_what_they_consist_of_and_latencies_before_causes(tmp_path: Path) -> None:
    other = {"serving__engine": "sglang-0.5", "plan": {"tp": 2}, "model": "qwen3-8b"}
    found = compared(written(tmp_path, "one"), written(tmp_path, "other", **other))
    paths = [one["path"] for one in found["scenario"]]
    of_parts = [path.startswith(("model.", "serving.engine.")) and not path.endswith(".name") for path in paths]
    assert of_parts == sorted(of_parts)
    assert set(paths[: of_parts.index(True)]) >= {"model.name", "plan.tp.degree", "serving.engine.name"}
    assert [path.endswith(".source") for path in paths] == sorted(path.endswith(".source") for path in paths)
    heads = list(dict.fromkeys(one["name"].partition(".")[0] for one in found["metrics"]))
    assert heads.index("e2e_ms") < heads.index("throughput") < heads.index("steps") < heads.index("causes")
    assert heads[-1] == "causes"


def test_a_run_compared_with_itself_differs_in_nothing(runs: dict[str, str]) -> None:
    found = compared(runs["one"], runs["one"])
    assert found["scenario"] == []
    assert {one["difference"] for one in found["metrics"]} == {0}
    assert {one["difference_ns"] for one in found["causes"]} == {0}
    assert "Scenario: no difference" in invoke("compare", runs["one"], runs["one"]).stdout


def test_requests_of_other_workloads_are_not_compared_with_themselves(runs: dict[str, str]) -> None:
    found = compared(runs["one"], runs["other"])
    assert (found["requests"]["same"], found["requests"]["compared"], found["requests"]["largest"]) == (False, 0, [])
    assert {one["difference_ns"] for one in found["causes"]} == {None}
    assert found["scenario"] == [{"path": "workload.requests", "a": 12, "b": 9}]
    assert "The workloads differ" in invoke("compare", runs["one"], runs["other"]).stdout


@pytest.mark.usefixtures("checked_figures")
def test_more_runs_are_each_compared_with_the_first(runs: dict[str, str], tmp_path: Path) -> None:
    found = compared(runs["one"], runs["two"], runs["pools"])
    assert found["others"] == [compared(runs["one"], runs["pools"])]
    page = tmp_path / "page.html"
    done = invoke("compare", runs["one"], runs["two"], runs["other"], "-o", str(page))
    assert done.exit_code == 0, done.output
    html = page.read_text(encoding="utf-8")
    assert "Where the difference comes from" in html
    assert "<th>plan.<wbr>pp</th>" in html
    assert re.search(r": \d+ differences? of \S+, \d+ differences? of \S+ in the scenario<", html)
    first, *rest = (read_entry(runs[name], name, None, Limits()) for name in ("one", "two", "one"))
    several = [compare(first, other) for other in rest]
    for panel in read_layout(
        {"title": "t", "figures": [{"figure": name} for name in ("causes", "by_request")]}, FIGURES
    ).panels:
        drawn = PANELS[panel.figure](several, panel).figure
        assert drawn is not None
        assert [one["marker"]["color"] for one in drawn.data] == list(COLOURS[1:3]), "as in the distributions"


def test_the_layout_that_ships_has_every_figure_with_its_defaults() -> None:
    shipped = yaml.safe_load(path_of("dashboards", "compare").read_text(encoding="utf-8"))
    plain = {
        "title": shipped["title"],
        "figures": [{"figure": name} for name in [one["figure"] for one in shipped["figures"]]],
    }
    assert read_layout(shipped, FIGURES) == read_layout(plain, FIGURES)
    assert {one["figure"] for one in shipped["figures"]} == set(FIGURES) == set(PANELS)


def test_what_cannot_be_compared_is_refused(runs: dict[str, str], tmp_path: Path) -> None:
    assert invoke("compare", runs["one"]).exit_code == 2
    assert invoke("compare", runs["one"], "no-such").exit_code == 2
    assert invoke("compare", runs["one"], "illegal-five-ways").exit_code == 1
    layout = tmp_path / "odd.yaml"
    layout.write_text("figures: [{figure: causez}]", encoding="utf-8")
    odd = invoke("compare", runs["one"], runs["two"], "-o", str(tmp_path / "x.html"), "--layout", str(layout))
    assert (odd.exit_code, "did you mean 'causes'" in odd.stderr) == (2, True)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in Path(runs["one"]).rglob("*"):
        if file.is_file():
            (copy / file.relative_to(runs["one"])).parent.mkdir(exist_ok=True)
            (copy / file.relative_to(runs["one"])).write_bytes(file.read_bytes())
    (copy / "requests.parquet").write_bytes((Path(runs["other"]) / "requests.parquet").read_bytes())
    mixed = invoke("compare", runs["one"], str(copy))
    assert (mixed.exit_code, "expected one for each of 12 requests" in mixed.stderr) == (2, True)


def test_runs_that_end_before_some_requests_arrive_are_compared(tmp_path: Path) -> None:
    """A run has a row for each request that arrived by its horizon; those that both finished are compared."""
    early = {"workload__arrivals": {"process": "poisson", "rate": "5/s"}, "workload__requests": 9}
    short, long = (str(tmp_path / name) for name in ("short", "long"))
    for folder, horizon in ((short, "600 ms"), (long, "900 ms")):
        scenario = written(tmp_path, f"{Path(folder).name}-run", **early, run__horizon=horizon)
        assert invoke("run", scenario, "--out", folder, "--quiet", "--no-audit", "--no-dashboard").exit_code == 0
    found = compared(short, long)["requests"]
    finished = found["finished"]
    assert 0 < finished["a"] == found["compared"] < finished["b"] < 9
