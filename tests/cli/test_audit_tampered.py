"""``clustersim audit`` of run directories that somebody changed: an error or a violation, no crash, never "legal"."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.report.files.agreement import compared
from clustersim.report.files.recorded import read_recorded
from clustersim.report.files.summary_again import summary_again
from clustersim.scenario.expect import expectation
from clustersim.simulation.agreement import same
from tests.effort import is_whole, times
from tests.laws.random_scenarios import LLAMA

TINY = {
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
    "plan": {"tp": 2, "pp": 2, "dp": 2},
    "serving": {"kv_block_tokens": 4, "kv_blocks": 24, "max_batch_tokens": 32},
    "workload": {
        "arrivals": {"process": "poisson", "rate": "500/s"},
        "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
        "output_tokens": {"uniform": {"low": 2, "high": 12}},
        "requests": 8,
    },
}
"""Two stages, two replicas, pools so small that requests are preempted."""


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def ran(folder: Path, *words: str, **changes: Any) -> Path:
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({"name": "tiny", **TINY, **changes}), encoding="utf-8")
    result = called("run", file, "--quiet", "--no-dashboard", *words, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of other requests."""
    return ran(tmp_path_factory.mktemp("runs") / "other", seed=5)


@pytest.fixture
def copy(run_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_dir, tmp_path / "copy")


def changed(table: pa.Table, column: str, row: int, value: int | None) -> pa.Table:
    values = table.column(column).to_pylist()
    values[row] = value
    return put(table, column, values)


def put(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    place, of = table.column_names.index(column), table.column(column).type
    return table.set_column(place, column, pa.array(values, of))


def shuffled(table: pa.Table, column: str, dice: random.Random) -> pa.Table:
    values = table.column(column).to_pylist()
    dice.shuffle(values)
    return put(table, column, values)


def tampered_values(table: pa.Table, dice: random.Random) -> Iterator[tuple[str, pa.Table]]:
    """Yield a change of each kind to each column, at a random row."""
    for column in table.column_names:
        of = table.column(column).type
        yield f"without {column}", table.drop_columns([column])
        yield f"{column} as double", table.set_column(0, column, pa.array([0.5] * len(table)))
        if not len(table):
            continue
        row = dice.randrange(len(table))
        yield f"null in {column}", changed(table, column, row, None)
        yield f"shuffled {column}", shuffled(table, column, dice)
        if pa.types.is_integer(of):
            most = 2 ** min(of.bit_width - 1, 62) - 1
            one_more = (table.column(column)[row].as_py() or 0) + 1
            for value in (-1, -7, most, dice.randrange(-most, most), one_more):
                yield f"{value} in {column}", changed(table, column, row, min(value, most))


def tampered_rows(table: pa.Table, dice: random.Random) -> Iterator[tuple[str, pa.Table]]:
    rows = list(range(len(table)))
    yield "one more column", table.append_column("more", pa.array(rows, pa.int64()))
    if rows:
        at = dice.randrange(len(rows))
        yield "without the first row", table.slice(1)
        yield "without the last row", table.slice(0, len(rows) - 1)
        yield f"without row {at}", table.take(rows[:at] + rows[at + 1 :])
        yield f"row {at} twice", table.take([*rows[:at], at, *rows[at:]])
        yield "without rows", table.slice(0, 0)


def judged(copy: Path, what: str) -> int:
    result = called("audit", copy)
    assert result.exit_code in (0, 1, 2), f"{what}: {result.stderr}"
    assert "Traceback" not in result.output, what
    return result.exit_code


FILES = (
    "requests", "steps", *(f"timeline/{name}" for name in ("passes", "rows", "transfers", "steps", "chunks", "decodes",
    "facts", "starts", "varying", "row_values", "transfer_times", "transfer_bytes",
    "irregular")),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_no_change_of_a_table_is_legal(name: str, copy: Path, other_dir: Path) -> None:
    """Every change is found, but for those of two kinds.

    What nothing refers to may be anything (a duration in ``rows`` that varies is read from ``varying``; an ``at`` of
    which no value is taken), and a shuffle may give the same values. The digest, which covers all that is referred
    to, is the same then.
    """
    file = copy / f"{name}.parquet"
    whole, table = file.read_bytes(), pq.read_table(file)
    dice = random.Random(7)
    values = [*tampered_values(table, dice)]
    rows = [*tampered_rows(table, dice)]
    first = FILES.index(name)  # tables take turns at the kinds
    few = rows if is_whole() else rows[first % len(rows) : first % len(rows) + 1]
    cases = [*few, *dice.sample(values, min(len(values), times(10) if len(table) else 1))]
    for what, found in cases:
        pq.write_table(found, file)
        status = judged(copy, what)
        assert status or found.equals(table) or (name, what.split(" ")[-1]) in IMMATERIAL, what
    for bytes_ in ((other_dir / f"{name}.parquet").read_bytes(), b"not parquet"):
        file.write_bytes(bytes_)
        assert judged(copy, "another file") or bytes_ == whole
    file.unlink()
    assert judged(copy, "no file") == 2


IMMATERIAL = {
    ("timeline/passes", "varying_at"),  # where nothing varies
    ("timeline/row_values", "row_values"),  # of a class that varies
    ("requests", "reason"),  # the words of a rejection follow from nothing that is recorded
}
"""Changes that the digest, and so every span and every fact, need not depend on."""


@pytest.mark.parametrize(
    ("name", "column", "row", "value", "message"),
    [
        ("timeline/steps", "start_ns", 2, None, "steps.parquet: start_ns: found null in row 3; expected a value"),
        ("timeline/chunks", "step", 0, 9999, "chunks.parquet: step: 9,999 in row 1 can't be; expected 0 to "),
        ("timeline/passes", "row", 4, -1, "passes.parquet: row: -1 in row 5 can't be; expected 0 to "),
        ("timeline/facts", "request", 0, 77, "facts.parquet: request: 77 in row 1 can't be; scenario.yaml has 8"),
        ("timeline/decodes", "first_step", 0, 0, "decodes.parquet: first_step: 0 in row 1 can't be; expected a step"),
        ("timeline/transfers", "at", 1, 0, "transfers.parquet: at: 0 in row 2 can't be; expected 4: 4 times of each"),
        ("requests", "request", 0, -3, "requests.parquet: request: -3 in row 1 can't be"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_file_column_and_row(
    copy: Path, name: str, column: str, row: int, value: int | None, message: str
) -> None:
    file = copy / f"{name}.parquet"
    pq.write_table(changed(pq.read_table(file), column, row, value), file)
    result = called("audit", copy)
    assert result.exit_code == 2
    assert message in result.stderr


def of_rule(verdict: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(rule for rule in verdict["rules"] if (rule["id"], rule["level"]) == (name, "T"))
    return found


def edited(copy: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Result:
    values = json.loads((copy / name).read_text(encoding="utf-8"))
    change(values)
    (copy / name).write_text(json.dumps(values), encoding="utf-8")
    return called("audit", copy)


def reduced(templates: dict[str, Any]) -> list[list[str]]:
    """Return the symbols of the first template that are sums over ranks."""
    return [symbol for symbol in templates["templates"][0]["symbols"] if symbol[1] == "all_reduce"]


@pytest.mark.parametrize(
    ("name", "change", "status", "message"),
    [
        ("summary.json", lambda v: v["ttft_ms"].update(p50=1.5), 1, "RUN-5: summary.json, ttft_ms.p50: says 1.5, the"),
        ("summary.json", lambda v: v["requests"].update(finished=7), 1, "summary.json, requests.finished: says 7, the"),
        ("summary.json", lambda v: v.update(steps=1), 1, "RUN-5: summary.json, steps: says 1, the timeline says "),
        ("summary.json", lambda v: v.update(kv_blocks=99), 1, "RUN-5: summary.json, kv_blocks: says 99, the timeline"),
        ("summary.json", lambda v: v.update(legal=False), 1, "RUN-5: summary.json, legal: says False, verdict.json"),
        ("summary.json", lambda v: v.pop("devices"), 2, "summary.json: devices: found nothing; expected a list"),
        ("verdict.json", lambda v: v.update(verdict="illegal"), 1, "verdict.json, verdict: says illegal, the rules"),
        ("verdict.json", lambda v: v.update(verdict="illegal"), 1, "summary.json, legal: says True, verdict.json"),
        ("verdict.json", lambda v: of_rule(v, "KV-7").update(looked_at=0), 1, "KV-7 at level T: says not_checkable"),
        ("summary.json", lambda v: v["utilisation"].update(mfu=0.9), 1, "summary.json, utilisation.mfu: says 0.9, the"),
        ("summary.json", lambda v: v["reasons"].update(more=1), 1, "summary.json, reasons.more: says 1, the timeline"),
        ("summary.json", lambda v: v["links"]["busiest"][0].update(tier="host"), 1,
         "RUN-5: summary.json, links.busiest[0].tier: says host, the timeline says scaleup;"),
        ("verdict.json", lambda v: v["levels"].update(T="illegal"), 1, "verdict.json, levels.T: says illegal, the"),
        ("verdict.json", lambda v: of_rule(v, "KV-7").update(looked_at=1), 1, "KV-7 at level T, looked_at: says 1, "),
        ("verdict.json", lambda v: v["rules"].remove(of_rule(v, "KV-7")), 1, "KV-7 at level T: says nothing, the"),
        ("verdict.json", lambda v: v["rules"].append(7), 2, "found 7; expected an object with id, level, looked_at"),
        ("timeline/templates.json", lambda v: v.update(digest="0"), 1, "the timeline in templates.json has digest 0"),
        ("timeline/templates.json", lambda v: v.update(num_spans=1), 1, "templates.json, num_spans: says 1, the"),
        ("timeline/templates.json", lambda v: v.update(format=9), 2, "was written in format 9, this version reads 5"),
        ("timeline/templates.json", lambda v: v["pools"][0].__setitem__(2, 3), 2, "as the plan in scenario.yaml"),
        ("timeline/templates.json", lambda v: v["templates"][0].pop("after"), 2, "templates[0].after: found nothing"),
        ("timeline/templates.json", lambda v: v["templates"][1]["after"].__setitem__(1, [1]), 2,
         "templates[1].after[1]: operator 1 needs operator 1; expected operators that come before it only"),
        ("timeline/templates.json", lambda v: v["templates"][0]["node_symbol"].__setitem__(0, 2.5), 2,
         "templates[0].node_symbol: found 2.5; expected whole numbers from 0 to "),
        ("timeline/templates.json", lambda v: reduced(v)[0].__setitem__(1, "memory"), 1,
         "TP-5: templates.json, prefill steps of stage 0: it records embedding_all_reduce (memory) on ranks 0, 1, "
         "where the plan expands to embedding_all_reduce (all_reduce) on ranks 0, 1;"),
        ("timeline/templates.json", lambda v: v["templates"][1]["members"].__setitem__(0, [1]), 1, "TP-5: "),
    ],
)  # fmt: skip
def test_json_that_was_changed_is_found(
    copy: Path, name: str, change: Callable[[dict[str, Any]], object], status: int, message: str
) -> None:
    result = edited(copy, name, change)
    assert result.exit_code == status, result.output
    assert message in result.output


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path of every value that is no object and no list, and the value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield path, value
    for key, part in parts or ():
        yield from leaves(part, (*path, key))


TWO_POOLS = {
    "plan": {"prefill": {"tp": 1, "dp": 2}, "decode": {"tp": 2}},
    "serving": {
        "scheduler": "disaggregated", "kv_block_tokens": 4, "max_batch_tokens": 16, "prefill": {"kv_blocks": 30},
        "decode": {"kv_blocks": 30},
    },
    "targets": {"ttft": "20 ms"},
}  # fmt: skip


@pytest.mark.parametrize("pools", [1, 2])
def test_every_figure_that_was_changed_is_found(pools: int, run_dir: Path, tmp_path: Path) -> None:
    folder = run_dir if pools == 1 else ran(tmp_path / "two", **TWO_POOLS)
    follows = json.loads(json.dumps(summary_again(read_recorded(folder))))
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert not [where for where, said, value in compared(follows, told) if not same(said, value)]
    figures = [path for path, value in leaves(told) if type(value) in (int, float)]
    assert {path[0] for path in figures} >= {"kv_occupancy", "utilisation", "links", "energy", "ttft_prefill_ms"}
    changed_ones = json.loads(json.dumps(told))
    for path in figures:
        of_run = path[0] not in (
            "links",
            "scenario",
            "targets",
            "reasons",
            "enough_blocks",
            "enough_batch",
            "confidence",
        )  # … that of another run
        if of_run and all(isinstance(key, str) for key in path):
            assert expectation(".".join(path), 1).key == ".".join(path)
        holder = changed_ones
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = holder[path[-1]] * 1.0001 + 1e-6
    odd = [where for where, said, value in compared(follows, changed_ones) if not same(said, value)]
    places = ["".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:] for path in figures]
    assert sorted(odd) == sorted(places)


def test_a_figure_of_a_request_that_was_changed_is_found(copy: Path) -> None:
    file = copy / "requests.parquet"
    table = pq.read_table(file)
    found = table.column("generated_tokens")[2].as_py()
    pq.write_table(changed(table, "generated_tokens", 2, found + 1), file)
    result = called("audit", copy)
    assert result.exit_code == 1
    expected = f"RUN-4: requests.parquet, generated_tokens, row 3: says {found + 1}, the timeline says {found}"
    assert expected in result.output


def test_the_same_timeline_in_another_replay_is_said_to_be_the_same(run_dir: Path, tmp_path: Path) -> None:
    full = ran(tmp_path / "full", "--replay", "full")
    result = called("audit", run_dir, "--against", full, "--again", "full")
    digest = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["timeline_digest"]
    assert result.exit_code == 0, result.output
    assert f"compared with {full}: same timeline: digest {digest[:12]};" in result.output
    assert f"simulated again, full: same timeline: digest {digest[:12]};" in result.output


@pytest.mark.parametrize(("said", "instead"), [("name: tiny", "name: small"), ("seed: 0", "seed: 7")])
def test_another_scenario_is_told_before_what_follows_from_it(copy: Path, said: str, instead: str) -> None:
    file = copy / "scenario.yaml"
    text = file.read_text(encoding="utf-8")
    assert said in text
    file.write_text(text.replace(said, instead), encoding="utf-8")
    result = called("audit", copy)
    assert result.exit_code == 1
    digest = json.loads((copy / "summary.json").read_text(encoding="utf-8"))["digest"]
    first = result.stdout.splitlines()[1]
    assert first.startswith(f"RUN-5: scenario.yaml: is not the one that this run had (digest {digest[:12]} in summary")
    assert "or another version, with other defaults, wrote the run" in first


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("facts", "value", "the first fact that differs: here time_ns "),
        ("chunks", "start", "the first chunk that differs: here replica 0, step "),
        ("row_values", "row_values", "all steps are equal; durations of operators in prefill steps of stage 0 differ"),
        ("transfer_times", "transfer_times", "all steps are equal; their transfers differ"),
    ],
)
def test_another_timeline_of_the_same_scenario_is_told_by_its_first_difference(
    run_dir: Path, copy: Path, name: str, column: str, message: str
) -> None:
    file = copy / "timeline" / f"{name}.parquet"
    table = pq.read_table(file)
    pq.write_table(put(table, column, [value + 1 for value in table.column(column).to_pylist()]), file)
    result = called("audit", run_dir, "--against", copy, "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    (said,) = [line for line in verdict["compared"] if "another timeline" in line]
    assert message in said
    assert verdict["violations"][-1]["where"] == f"compared with {copy}"


def test_another_plan_is_compared_by_what_requests_came_to(run_dir: Path, tmp_path: Path) -> None:
    other = ran(tmp_path / "other", plan={"tp": 4, "pp": 2})
    result = called("audit", run_dir, "--against", other)
    assert result.exit_code == 0, result.output
    assert "as TP-9 (tp 2 and 4) and DP-4 (dp 2 and 1) ask: of 8 requests that finished in both, each" in result.output


def test_a_run_of_other_requests_is_not_comparable(run_dir: Path, other_dir: Path) -> None:
    result = called("audit", run_dir, "--against", other_dir)
    assert result.exit_code == 2
    assert "is of another scenario: seed differs; not comparable: expected a run of the same" in result.stderr


def test_the_help_says_what_each_exit_status_means() -> None:
    words = " ".join(called("audit", "--help").output.split())
    for text in ("Exit status 0: legal", "1: illegal", "2: something can't be read", "3: not checkable"):
        assert text in words
