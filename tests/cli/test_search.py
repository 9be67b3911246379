"""``clustersim search``: the best plan, why others lost, the same bytes for any workers, and what has no answer."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.errors import TerminatedError
from clustersim.interop.launch.launch import TARGETS
from clustersim.scenario import load
from clustersim.search.journal import opened_journal
from clustersim.units import format_share
from tests.unit.search.searching import SMALL, bounded
from tests.unit.search.searching import search as searching

BOTH = ("--devices", "2", "--front", "1", "--lasting", "2 s", "--targets", "ttft=300 ms, tpot=18 ms")
KNOBS = ("--knobs", "serving.max_batch_requests=2,8,12,16,24,32")
FEWER = ("--devices", "1", "--lasting", "2 s", "--knobs", "serving.max_batch_requests=16,32", "--front", "1")
FAST = ("--devices", "1", "--lasting", "2 s", "--front", "1", *KNOBS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clustersim.search.plans.plan_runs.REQUESTS", 300)
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


def search(*args: str) -> Result:
    return CliRunner().invoke(main, ["search", "small.yaml", *args], catch_exceptions=False)


def found(*args: str) -> dict:
    told = search(*args, "--json")
    assert told.exit_code == 0, told.stderr
    return json.loads(told.stdout)


def test_the_best_plan_is_that_of_the_exhaustive_search_and_nothing_beats_its_bound(folder: Path):
    quick, whole = (
        found(*FAST, "--workers", "1", *more, "--out", name) for more, name in (((), "a"), (("--exhaustive",), "b"))
    )
    assert quick["legal"] == whole["legal"] == 6
    told = quick["certificate"]
    assert sum(quick["pruned"].values()) + told["screened"] + told["simulated"] == 6
    assert told["screened"]
    assert whole["simulated"] + sum(whole["pruned"].values()) == 6
    rows = pq.read_table(folder / "b" / "points.parquet").to_pylist()
    assert all(row["reached"] < row["bound"] for row in rows if row["reached"] is not None and row["bound"] is not None)
    listed = [
        line.replace(" short runs,", "").split()
        for line in search(*FAST, "--exhaustive", "--workers", "1", "--out", "b").stdout.splitlines()
        if line.rstrip().endswith(" short runs, next")
    ]
    rates = {float(words[-7]) for words in listed}
    for words in listed:  # of the best in runs as short, and at most
        share, most = (float(one.rstrip("%")) / 100 for one in (words[-5].split("–") * 2)[:2])
        assert share <= most == pytest.approx(float(words[-7]) / whole["best"]["capacity_per_s"], abs=1.1e-3)
    assert 0 < len(listed) <= 4
    assert rates <= {row["reached"] for row in rows if not row["at_length"]}
    assert rows[0]["at_length"] is True
    best = whole["best"]["value"]
    assert quick["best"]["value"] >= 0.97 * best
    assert quick["best"]["plan"] in [one["plan"] for one in (whole["best"], *whole["best"]["ties"])]
    ours = {row["words"]: row for row in pq.read_table(folder / "a" / "points.parquet").to_pylist()}
    for row in rows:  # whoever was screened or pruned is not among the best three, or ties behind
        if ours[row["words"]]["fate"] in ("screened", "pruned") and row["reached"] is not None:
            better = sum(1 for other in rows if (other["reached"] or 0.0) > 0.97 * row["reached"])
            assert better >= 3 or row["reached"] < 0.97 * best


@pytest.mark.usefixtures("checked_figures")
def test_the_best_scenario_loads_and_has_the_plan_and_the_page_says_why_others_lost(folder: Path):
    told = found(*FEWER, "--workers", "1", "--out", "kept", "--front", "0.1")
    assert told["certificate"]["front"]["most"] <= 0.1
    assert told["certificate"]["front"]["lower"] > 0
    assert told["certificate"]["hypervolume"] < told["certificate"]["front"]["possible"]
    assert told["simulated"] == told["certificate"]["simulated"]
    assert told["simulated_for_front"] == told["certificate"]["front"]["plans"]
    alone = found(*FEWER, "--workers", "1", "--out", "alone")["certificate"]  # what is told of plans stays as it was
    changed = {key for key, value in alone.items() if value != told["certificate"][key]}
    assert changed == {"runs", "hypervolume", "front"}
    rates = [one["metrics"]["user_tokens_per_s"] for one in told["front"]]
    assert rates == sorted(rates)
    assert max(rates) > 1.1 * min(rates)
    scenario = load(told["best"]["scenario"])
    assert scenario.plan.world == told["best"]["devices"] == 1
    assert f"max_batch_requests {scenario.serving.max_batch_requests}" in told["best"]["plan"]
    for one in told["front"]:  # each at the rate of its run
        assert load(one["scenario"]).workload.arrivals.rate_per_s == one["metrics"]["rate_per_s"]
    rows = pq.read_table(folder / "kept" / "points.parquet").to_pylist()
    assert rows[0]["fate"] == "best"
    assert rows[0]["command"] == told["best"]["command"]
    run = CliRunner().invoke(main, [*shlex.split(told["best"]["command"])[1:], "--out", "again"])
    assert run.exit_code == 0, run.stderr
    again = json.loads(Path("again/summary.json").read_text())
    assert again["goodput"]["share"] >= 0.9
    assert rows[0]["confirmed_per_s"] == told["best"]["confirmed_per_s"] <= told["best"]["capacity_per_s"]
    for key in ("tpot_ms.p99", "ttft_ms.p50"):  # of the long run, in the table as in the answer, and by the command
        part, _, name = key.partition(".")
        assert rows[0][key] == told["best"]["metrics"][key] == again[part][name]
    assert all(row["why"] for row in rows if row["fate"] != "best")
    assert all(" of the best at length: a tie" in row["why"] for row in rows if row["fate"] == "tie")
    best = next(one["metrics"] for one in told["front"] if one["metrics"]["rate_per_s"] == rows[0]["confirmed_per_s"])
    assert best["goodput.share"] >= 0.9
    assert best["capacity_per_s"] == told["best"]["capacity_per_s"] < best["short_capacity_per_s"]
    assert {one["run"]["at_length"] for one in told["front"]} == {True, False}
    for one in told["front"]:
        length, run = ("" if one["run"]["at_length"] else "short "), one["run"]
        assert f"front has a {length}run of {run['requests']:,} requests of it" in Path(one["scenario"]).read_text()
        assert run["requests"] == load(one["scenario"]).workload.requests
        assert one["metrics"]["capacity_per_s"] is None or one["plan"] == told["best"]["plan"]
    assert rows[0]["tokens_per_device"] == best["tokens_per_s_per_device"]  # its dot is on the front's line
    page = (folder / "kept" / "search.html").read_text()
    assert all(f"{one.name}: " in page for one in (folder / "kept").glob("front-*.yaml"))
    assert "Why each of the others lost" in page
    assert "of the best in short runs" in page
    assert "<td>short runs: " in page
    told = search("--devices", "1", "--lasting", "1 s", "--workers", "1", "--out", "kept").stdout
    assert told.splitlines()[-1].startswith("command  clustersim run")
    capacity, confirmed = (told.split(before)[1].split()[0] for before in (" on 1 device: ", "whole    confirmed at "))
    assert float(confirmed) < float(capacity)
    for text in (told.splitlines()[0], (folder / "kept" / "search.html").read_text()):
        assert f"; {confirmed} requests/s as its command runs it" in text
    assert f"workload.arrivals.rate={confirmed}/s" in told.splitlines()[-1]
    assert "a rate counts where 90% of requests meet every target" in told


@pytest.mark.parametrize("command", ["search", "rate", "size"])
def test_the_command_and_the_scenario_that_are_written_give_the_share_that_is_told(folder: Path, command: str):
    rows = "".join(f"{0.04 * at},{200 + 97 * at % 800},{5 + 31 * at % 40}\n" for at in range(10))
    (folder / "rows.csv").write_text("arrived_s,prompt_tokens,output_tokens\n" + rows)
    text = SMALL[: SMALL.index("workload:")] + "workload: {trace: rows.csv}\n" + SMALL[SMALL.index("targets:") :]
    (folder / "small.yaml").write_text(text)
    more = {
        "search": ("--exactly", *BOTH),
        "rate": ("--lasting", "2 s", "--tolerance", "0.2"),
        "size": ("--targets", "ttft=70 ms"),
    }[command]
    run = CliRunner().invoke(main, [command, "small.yaml", *more, "--workers", "1", "--json"], catch_exceptions=False)
    told = json.loads(run.stdout)
    if command == "search":
        told = told["best"] | {"share": told["best"]["metrics"]["goodput.share"]}
        assert "dp 2" in told["plan"]
        assert told["share"] != told["shares"][0]  # of both replicas, not of the one that stood for both
        assert "repeat=7 " in told["command"]  # the largest prime number of ten rows
        assert share_of("run", told["scenario"]) == told["share"]
        kept = Path(told["scenario"]).parent  # what is told of the front is of one replica, and of the best of all
        assert Path(told["scenario"]).read_text().splitlines()[0] == f"# {told['plan']}"
        of_part = "# In what the search tells 1 of 2 replicas stands for all: this file runs all"
        assert of_part in (kept / "front-1.yaml").read_text()
        assert of_part not in Path(told["scenario"]).read_text()
        first = table(json.loads(run.stdout)["out"])[0]
        assert (first["goodput.share"], first["goodput.share_least"]) == (told["share"], min(told["shares"]))
        for stale in ("front-77.yaml", "tie-77.yaml", "front-note.yaml"):
            (kept / stale).touch()
        text = CliRunner().invoke(main, [command, "small.yaml", *more, "--workers", "1"]).stdout
        assert not list(kept.glob("*-77.yaml"))
        assert (kept / "front-note.yaml").exists()
        p99, of_all = (told["metrics"][key] for key in ("ttft_ms.p99", "throughput.requests_per_s"))
        assert " did (1 of 2 replicas stands for all)\n" in text
        assert told["confirmed_per_s"] <= told["capacity_per_s"]
        assert told["share"] >= 0.9
        assert (
            f"\nwhole    all 2 replicas together, as the command runs them, let {format_share(told['share'])} " in text
        )
        assert f"TTFT p99 {p99:,.1f} ms, " in text
        assert f"\nserved   {of_all:.6g} requests/s: throughput counts until" in text
        assert of_all < told["capacity_per_s"]
        assert "p99: of the first seed, and of one replica that stands for all" in text
    assert share_of(*shlex.split(told["command"])[1:]) == told["share"]


def share_of(*args: str) -> float:
    """Return the share of requests that meet their targets in a run."""
    run = CliRunner().invoke(main, [*args, "--out", "again"], catch_exceptions=False)
    assert run.exit_code in (0, 1), run.stderr
    return json.loads(Path("again/summary.json").read_text())["goodput"]["share"]


def test_each_answer_says_what_it_can_be_launched_for_and_only_such_plans_are_searched_where_asked(folder: Path):
    args = ("--devices", "2", "--exactly", "--lasting", "500 ms", "--effort", "0", "--workers", "1")
    told = found(*args, "--out", "every")
    rows = [told["best"], *told["best"]["ties"]]
    late = told["certificate"]  # but for what is simulated in any case, there is no time to bound plans
    assert 0 < late["unbounded"] < late["open"]
    assert f"of which {late['unbounded']} were not bounded" in Path("every/search.html").read_text()
    for row in rows:
        for target in TARGETS:
            run = CliRunner().invoke(main, ["launch", row["scenario"], "--for", target, "--model", "x"])
            assert (run.exit_code == 0) == (target in row["launches_for"]), (row["plan"], target, run.stderr)
    only = found(*args, "--for", "vllm", "--out", "only")
    every, some = ({row["words"] for row in table(name)} for name in ("every", "only"))
    assert some == {words for words in every if "sp" not in words.split()} < every
    assert "vllm" in only["best"]["launches_for"]
    assert only["for"] == "vllm"
    assert (
        f"{only['legal']} legal plans of servers that launch for vllm (rules of level P)"
        in Path("only/search.html").read_text()
    )
    none = search(*args, "--for", "vllm", "--set", "precision.kv_cache=int8")
    assert none.exit_code == 2
    assert "vllm refuses 9 plans; nearest: tp 1 × dp 1 (vLLM does not start it: vLLM keeps K/V in" in none.stderr


def test_a_best_plan_that_no_engine_starts_is_told_with_a_tie_that_one_does(monkeypatch: pytest.MonkeyPatch):
    args = (*FEWER[:5], "serving.max_batch_requests=31,32", *FEWER[6:], "--workers", "1", "--out", "tied")
    best = found(*args)["best"]
    (tie,) = best["ties"]
    most = load(tie["scenario"]).serving.max_batch_requests

    def refusal(scenario, target):
        return None if target in starts and scenario.serving.max_batch_requests == most else "refused"

    monkeypatch.setattr("clustersim.search.plans.launches.refusal_of", refusal)
    for starts, told in ((("vllm",), f"no engine starts it; {tie['plan']}, "), ((), "no engine starts it nor a plan")):
        lines = search(*args).stdout.splitlines()
        assert lines[1].startswith(told)
        assert lines[1].endswith("% from it, is started by vllm" if starts else "searches those that it starts)")
        assert f"; {lines[1]}" in Path("tied/search.html").read_text()
        rows = table("tied")
        assert [row["launches_for"] for row in rows[:2]] == ["none", ",".join(starts) or "none"]
    assert "<th>started by</th>" in Path("tied/search.html").read_text()


def test_plans_that_are_too_wide_for_a_terminal_stand_below_the_table(monkeypatch: pytest.MonkeyPatch):
    args = (*FEWER, "--workers", "1", "--out", "narrow")
    wide = search(*args).stdout
    plans = [one["words"] for one in table("narrow")]
    monkeypatch.setattr("clustersim.cli.tables.PIPED_WIDTH", 80)
    narrow = search(*args).stdout
    for at, plan in enumerate(plans, 1):
        assert f"\n {plan} " in wide
        assert f"\n {plan} " not in narrow
        assert f"\n {at} " in narrow
        assert f"\n {at}  {plan}\n" in narrow


def table(name: str) -> list[dict]:
    return pq.read_table(Path(name, "points.parquet")).to_pylist()


def test_effort_that_is_spent_leaves_plans_open_and_more_goes_on(folder: Path):
    args = (*FAST, "--workers", "1")
    little = found(*args, "--effort", "0 s")
    kept = Path(little["out"], "finished.jsonl")
    before = len(kept.read_text().splitlines())
    more = found(*args)
    assert little["out"] == more["out"]
    assert len(kept.read_text().splitlines()) - before < more["certificate"]["runs"]  # the others were looked up
    told = little["certificate"]
    assert (
        told["open"] == 4
    )  # three of the first four, of which some reached something, and the next; the last is pruned
    assert told["nearest_open"] > more["certificate"]["nearest_pruned"]
    assert sum(little["pruned"].values()) + told["screened"] + told["simulated"] + told["open"] == 6
    assert more["certificate"]["open"] == 0
    assert more["certificate"]["nearest_open"] is None
    assert more["certificate"]["settled"]
    assert told["settled"] == (told["nearest_open"] / 1.01 <= 1.03 * little["certificate"]["finalists"][0]["value"])
    cut, *_ = told["finalists"]
    whole = more["certificate"]
    assert (cut["is_cut"], any(one["is_cut"] for one in whole["finalists"])) == (True, False)
    assert cut["fails_at_per_s"] > whole["finalists"][0]["fails_at_per_s"] > cut["per_s"]
    lacking = "for 1 finalist, the best one among them, there was no time to look on at length"
    assert [sum(text.startswith(lacking) for text in one["uncertain"]) for one in (told, whole)] == [1, 0]
    late, all_of_it = "no effort was left to look on at length: it may reach more", search(*args).stdout
    text = search(*args, "--effort", "0 s").stdout
    shares = cut["shares"]
    mean, each = format_share(sum(shares) / len(shares)), ", ".join(map(format_share, shares))
    assert f"target: {mean} did in the mean ({each}, a seed each; the command has the first)" in text
    assert mean != format_share(shares[0])
    assert [late in text, late in all_of_it] == [True, False]
    assert [": at least " in one.partition("\n")[0] for one in (text, all_of_it)] == [True, False]
    assert [one["best"]["is_cut"] for one in (little, more)] == [True, False]
    rows = [line.split() for line in text.splitlines() if line.rstrip().endswith((" best", " next"))]
    assert f"≥{cut['per_s']:g}" in rows[0]
    assert len(rows) > 1
    assert not any("–" in word for row in rows for word in row)  # the best may do more: there is no upper share
    assert "requests/s per device at most by bounds and looks" in text
    assert " left open, which reach" in text
    assert " plans were not simulated to the end" in Path(more["out"], "search.html").read_text()
    result = search("--devices", "1", "--lasting", "2 s", *KNOBS, "--effort", "0 s", "--workers", "1")
    assert "front    is not looked for: no effort is left" in result.stderr
    default = result.stdout
    assert "front    0 plans more simulated, 0 runs at lower rates; its effort was spent" in default
    assert default.index("TTFT p99") < default.index("front ")  # the answer comes first
    assert "; of 6 plans nothing is known" in default


@pytest.mark.parametrize("way", ["echo", "table"])
def test_files_are_written_also_where_the_reader_of_stdout_is_gone(way: str, monkeypatch: pytest.MonkeyPatch):
    def gone(*_):
        try:
            raise BrokenPipeError(32, "Broken pipe")
        except BrokenPipeError:
            if way == "table":  # as rich leaves
                raise SystemExit(1)  # noqa: B904
            raise

    monkeypatch.setattr("clustersim.cli.commands.search.print_answer", gone)
    result = search(*FEWER, "--workers", "1", "--out", "out")
    assert (result.exit_code, result.stderr) == (141, "")
    assert Path("out", "best.yaml").exists()
    assert Path("out", "search.html").exists()
    with pytest.raises(BrokenPipeError), opened_journal(Path("own")):  # not a file of its own
        raise BrokenPipeError


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_search_that_is_interrupted_says_where_a_second_start_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("clustersim.cli.commands.search.found_by", interrupted)
    result = search("--devices", "2", "--out", "out")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-3:] == ["", "nothing was kept: no run was finished", "clustersim: interrupted"]
    assert not Path("out").exists()
    monkeypatch.undo()

    def terminated(*_):
        raise TerminatedError(15)

    for stop, status in ((interrupted, 130), (terminated, 143)):
        monkeypatch.setattr("clustersim.search.plans.front.search.FrontSearch.filled", stop)
        monkeypatch.chdir(folder)
        result = search(*FEWER, "--front", "0.1", "--out", "front", "--workers", "1")
        assert result.exit_code == status
        kept = len(Path("front/finished.jsonl").read_text().splitlines())
        assert f"kept     {kept} runs in front (a second start goes on there)" in result.stderr
        assert "front    is looked for, for 180 s of CPU at most; Ctrl-C or SIGTERM leaves it" in result.stderr
        assert result.stdout.splitlines()[-1].startswith("command  clustersim run")  # the answer, and the page of it
        assert "front    is left at what there is" in result.stdout
        page = Path("front/search.html")
        assert "were not bounded" not in page.read_text()
        page.unlink()


def test_outputs_of_one_token_have_no_gaps_to_be_late(folder: Path):
    text = SMALL.replace("{uniform: {low: 5, high: 40}}", "1").replace(", tpot: 25 ms", "")
    (folder / "small.yaml").write_text(text)
    assert found("--devices", "1", "--lasting", "500 ms", "--workers", "1", "--out", "one")["best"]["value"] > 0
    alone = ("--set", "serving.max_batch_requests=1")  # of which each of two SP ranks keeps half in the mean
    assert found("--devices", "2", *alone, "--lasting", "100 ms", "--workers", "1", "--out", "two")["best"]["value"] > 0
    told = search("--devices", "1", "--lasting", "500 ms", "--targets", "ttft=1 ns", "--set", "plan.tp=2").stderr
    assert told.startswith("note: --set plan…: changes nothing, as every plan is enumerated")
    assert "TPOT" not in told
    least = float(told.split("least TTFT); so many reach a TTFT of ")[1].split()[0])
    for times, served in ((0.99, 1), (1.01, 2)):
        targets = f"ttft={times * least} ms"
        again = search("--devices", "1", "--lasting", "500 ms", "--targets", targets, "--out", f"at{served}").stderr
        assert ("1 plan: least TTFT" in again) == (served == 1)


def test_one_partition_of_prompts_stands_for_all_but_in_an_exhaustive_search(tmp_path: Path):
    for exhaustive, partitions in ((False, {"zigzag"}), (True, {"contiguous", "zigzag", "striped"})):
        with searching(tmp_path, devices=2, exhaustive=exhaustive) as made:
            standings = bounded(made)
            split = [one for one in standings if one.candidate.replicas[0].plan.sp.degree > 1]
            assert {one.candidate.replicas[0].plan.sp.partition for one in split} == partitions
            assert {one.partitions for one in split} == {3 // len(partitions)}
            legal = sum(one.same * one.partitions for one in standings)
            assert legal == 5 + 3 * 3 * 2  # tp 2, pp 2, dp 2, dp 1 and two pools; schemes × partitions × decodes


def test_tables_and_pages_are_the_same_bytes_for_any_number_of_workers(folder: Path):
    for workers, name in (("1", "one"), ("2", "two")):
        assert search(*FEWER, "--workers", workers, "--out", name, "--quiet").exit_code == 0
    for name in ("points.parquet", "search.html", "best.yaml"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes(), name


_NO_ANSWER: Final = (
    (("--knobs", "plan.tp=1,2"), "--knobs: plan.tp: is no knob; plans are enumerated"),
    (("--knobs", "max_batch_tokens=9"), "max_batch_tokens: is no knob; did you mean serving.max_batch_tokens?"),
    (("--knobs", "serving.max_batch_token=1"), "--knobs serving.max_batch_token=1: unknown key 'max_batch_token'; did"),
    (("--knobs", "serving.order=fcfs", "--knobs", "serving.order=fcfs"), "--knobs: serving.order: varies twice"),
    (("--front", "1%"), "expected a number from 0 to 1, but found '1%'; did you mean 0.01?"),
    (("--objective", ""), "--objective: '' is no number of the summary; did you mean one of"),
    (("--devices", "1k"), "expected a whole number from 1 to 100,000, but found '1k'; did you mean 1000?"),
    (("--knobs", "serving.max_batch_tokens=8k"), "but found the text '8k'; did you mean 8000?"),
    (("--knobs", "serving.max_batch_tokens"), "--knobs: expected KEY=VALUES"),
    (("--objective", "capacity_per_divice"), "did you mean 'capacity_per_device'?"),
    (("--budget", "lots"), "--budget: expected a price with its unit, such as '100 USD/h', but found 'lots'"),
    (("--budget", "100"), "--budget: '100' has no unit; expected a price such as '100 USD/h'"),
    (("--budget", "0 USD/h"), "--budget: found '0 USD/h'; expected more than nothing"),
    (("--budget", "9 USD/h"), "--budget: counts money, and devices have no price; add one with --set"),
    (
        ("--budget", "1 USD/h", "--set", "topology.price=2 USD/h"),
        "--budget: 1 USD/h pays for no device: the cheapest of dgx-h100 costs 2 USD/h",
    ),
    (("--targets", "tpt=2 ms"), "--targets: tpt: unknown key 'tpt'; did you mean 'tpot'?"),
    (("--set", "model=llama-3.1-70b"), "is legal on 1 device: KV-6 refuses 1 plan; nearest: tp 1 × dp 1"),
    (
        ("--set", "model=llama-3.1-70b", "--budget", "3 USD/h", "--set", "topology.price=2 USD/h"),
        "is legal on 1 device for at most 3 USD/h (--budget): KV-6 refuses 1 plan",
    ),
    (("--topology", "h100-and-a100", "--devices", "40"), "asks for 40, but h100-and-a100 has 16 devices"),
    (("--topology", "h100-and-a10"), "--topology: no topology 'h100-and-a10'; did you mean 'h100-and-a100'?"),
)


MIXED = """{arrivals: {process: poisson, rate: 20/s}, requests: 40, output_tokens: 10,
  prompt_tokens: {empirical: {values: [100, 4000], weights: [95, 5]}}}"""


@pytest.mark.parametrize(
    ("args", "best", "told"),
    [
        (("--targets", "tpot=1 ms"), 0.0, "1 plan: least TPOT); no plan has a TPOT below"),
        (("--targets", "ttft=2 ms"), 0.0, "1 plan: least TTFT); so many reach a TTFT of "),
        (
            ("--share", "0.99", "--set", f"workload={MIXED}", "--targets", "ttft=80 ms, tpot=25 ms"),
            0.95,
            "serves 99% of",
        ),
    ],
)
def test_where_no_plan_reaches_the_share_the_nearest_is_told_and_written(folder: Path, args, best, told):
    done = search(*FEWER[:4], "--front", "0.01", "--workers", "1", *args, "--json", "--out", "kept")
    assert done.exit_code == 1, done.stderr
    assert told in done.stderr
    assert "; the most that any reaches is " in done.stderr
    found = json.loads(done.stdout)
    assert found["certificate"]["unreached"] == done.stderr.strip()
    assert found["certificate"]["share"] == pytest.approx(best, abs=0.04)
    assert found["front"]
    assert min(found["best"]["shares"]) >= found["certificate"]["share"] - 0.02
    if best:  # one prompt in 20 takes a tenth of a second, the others some ms
        assert 1.0 < found["best"]["capacity_per_s"] < 100.0
        assert found["best"]["confirmed_per_s"] is not None
    written = {path.name for path in (folder / "kept").iterdir()}
    assert written >= {"best.yaml", "front-1.yaml", "points.parquet", "search.html", "finished.jsonl"}
    assert "Not reached: no plan serves " in (folder / "kept" / "search.html").read_text()
    text = search(*FEWER[:4], "--front", "0.01", "--workers", "1", *args, "--out", "kept").stdout
    assert text.startswith("no plan reaches the share asked for; ")


@pytest.mark.usefixtures("folder")
def test_what_has_no_answer_says_why():
    for args, told in _NO_ANSWER:
        result = CliRunner().invoke(main, ["search", "small.yaml", "--devices", "1", "--workers", "1", *args])
        assert result.exit_code == 2, args
        assert told in result.stderr, result.stderr
