"""``clustersim audit``, the audit after a run, and tables from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.legality.audit import TIMELINE_RULES
from clustersim.simulation.foreign.table import NEEDED, OPTIONAL, TEXT, TOLD
from clustersim.timeline.files import load_timeline, write_table
from tests.architecture.documents import rows
from tests.legality.timeline.source_mutations import Change, changed

SMALL = ("--set", "workload.trace.requests=12", "--set", "expect={}", "--quiet")
ONE_NODE = ("--set", "topology.nodes=1")


def read_table(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def ran(folder: Path, *words: str) -> Path:
    result = called("run", "quickstart", *SMALL, *words, "--no-dashboard", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with two stages."""
    return ran(tmp_path_factory.mktemp("runs") / "two-stages")


def verdict_of(*words: str | Path) -> tuple[int, dict[str, Any]]:
    result = called("audit", *words, "--json")
    return result.exit_code, json.loads(result.stdout)


def broken(verdict: dict[str, Any]) -> set[str]:
    return {violation["rule"] for violation in verdict["violations"]}


def test_audit_finds_a_run_legal_and_says_what_it_looked_at(run_dir: Path) -> None:
    status, verdict = verdict_of(run_dir)
    assert (status, verdict["verdict"], verdict["violations"]) == (0, "legal", [])
    assert [rule["id"] for rule in verdict["rules"]] == list(TIMELINE_RULES)
    assert {rule["level"] for rule in verdict["rules"]} == {"T"}
    silent = [rule["id"] for rule in verdict["rules"] if not rule["looked_at"]]
    assert silent == ["TP-9", "SP-2", "SP-3", "SP-5", "SP-8", "EP-2", "EP-3", "EP-4", "EP-5", "EP-8", "DP-4"]


def test_audit_names_what_is_not_checkable_in_words(run_dir: Path) -> None:
    lines = called("audit", run_dir).output.splitlines()
    assert lines[0] == f"legal: 23 rules found nothing wrong with {run_dir}"
    assert lines[1].startswith("have no say in it: TP-9, SP-2")


def test_audit_of_a_changed_record_names_rule_place_witness_and_fix(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "changed")
    steps = dict(read_table(copy / "timeline" / "steps.parquet"))
    used = steps["kv_blocks_used"].copy()
    used[3] += 1
    write_table(copy / "timeline" / "steps.parquet", steps | {"kv_blocks_used": used})
    status, verdict = verdict_of(copy)
    assert (status, verdict["verdict"]) == (1, "illegal")
    assert broken(verdict) == {"KV-7", "RUN-5"}
    found, copied, counted, answered = verdict["violations"]
    assert counted["where"].startswith("summary.json, kv_occupancy.")
    assert copied["where"] == "steps.parquet, kv_blocks_used, row 4"
    assert answered["where"] == "verdict.json, KV-7 at level T"
    assert (found["where"], found["level"]) == ("replica 0, step 3", "T")
    assert found["message"].startswith(f"{used[3]} blocks are in use where {used[3] - 1} follow from the tokens")
    assert found["fix"]


def test_audit_of_a_changed_span_finds_that_the_digest_is_another(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "changed")
    values = read_table(copy / "timeline" / "row_values.parquet")["row_values"].copy()
    values[0] += 1
    write_table(copy / "timeline" / "row_values.parquet", {"row_values": values})
    status, verdict = verdict_of(copy)
    assert status == 1
    assert {"RUN-2", "RUN-5"} <= broken(verdict)


def test_audit_of_a_table_that_names_a_request_that_is_none_finds_it(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "changed")
    table = pq.read_table(copy / "requests.parquet")
    at = table.schema.get_field_index("request")
    numbers = table.column("request").to_numpy().copy()
    numbers[6] = 1006
    pq.write_table(table.set_column(at, table.schema.field(at), [numbers]), copy / "requests.parquet")
    status, verdict = verdict_of(copy)
    assert (status, broken(verdict)) == (1, {"RUN-4", "RUN-5"})


def test_audit_simulates_again_and_compares(run_dir: Path) -> None:
    status, verdict = verdict_of(run_dir, "--again", "folded")
    assert status == 0
    assert verdict["compared"][1].startswith("simulated again, folded: same timeline: digest ")


def test_audit_compares_with_another_plan(run_dir: Path, tmp_path: Path) -> None:
    other = ran(tmp_path / "other", "--set", "plan={tp: 4, dp: 2, pp: 2}")
    status, verdict = verdict_of(run_dir, "--against", other)
    looked = {rule["id"]: rule["looked_at"] for rule in verdict["rules"]}
    assert (status, looked["TP-9"], looked["DP-4"]) == (0, 12, 12)


def test_run_keeps_the_audit_in_its_verdict_unless_switched_off(run_dir: Path, tmp_path: Path) -> None:
    def levels(folder: Path) -> set[str]:
        verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        return {rule["level"] for rule in verdict["rules"]}

    assert levels(run_dir) == {"P", "G", "T"}
    assert levels(ran(tmp_path / "silent", "--no-audit")) == {"P", "G"}


def test_run_times_the_audit_apart_from_simulating(tmp_path: Path) -> None:
    few = ("--set", "workload.trace.requests=2")
    words = ("run", "quickstart", *SMALL[:-1], *few, "--json", "--no-dashboard", "--out", tmp_path / "a")
    assert set(json.loads(called(*words).stdout)["wall_s"]) == {"total", "simulate", "audit"}
    assert set(json.loads(called(*words, "--no-audit").stdout)["wall_s"]) == {"total", "simulate"}


def test_tables_that_are_documented_are_those_that_are_read() -> None:
    for name, *cells in rows("docs/reference/histories.md", "table"):
        needed, more = (set(re.findall(r"`(\w+)`", cell)) for cell in cells)
        assert needed == set(NEEDED[name])
        assert more == {*OPTIONAL[name], *TOLD.get(name, ()), *TEXT.get(name, ())}
    assert {name for name, *_ in rows("docs/reference/histories.md", "table")} == set(NEEDED)


def test_run_is_illegal_when_its_record_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = "clock.facts_at = at + 6"
    changed(monkeypatch, Change("clustersim.core.record", counted, f"{counted} * (request != 3)"))
    changes = ("workload.trace.requests=4", "model=llama-3.1-8b", "plan={tp: 1}", "run.horizon=null")
    words = ("--replay", "full", *ONE_NODE, *(word for change in changes for word in ("--set", change)))
    result = called("run", "quickstart", *SMALL[2:], *words, "--no-dashboard", "--out", tmp_path / "lost")
    assert result.exit_code == 1
    assert (
        "RUN-4: request 3: arrives and never ends: it is lost; finish it, or reject it with a reason" in result.stderr
    )
    assert json.loads((tmp_path / "lost" / "summary.json").read_text(encoding="utf-8"))["legal"] is False


def exported(run: Path, folder: Path) -> list[Path]:
    """Write a run as another simulator might: plain spans, facts, steps and what each step carried."""
    timeline, spans = load_timeline(run), load_timeline(run).unfold()
    names = np.array(spans.names, object)
    tables: dict[str, dict[str, Any]] = {
        "spans": {name: getattr(spans, name) for name in ("start_ns", "end_ns", "rank", "stream", "layer", "step")}
        | {"name": names[spans.name]},
        "facts": {name: timeline.facts[name] for name in ("time_ns", "kind", "request", "replica", "used")},
        "chunks": dict(timeline.chunks),
        "requests": {
            name: read_table(run / "requests.parquet")[name] for name in ("request", "prompt_tokens", "output_tokens")
        },
    }
    table = timeline.steps
    tables["steps"] = {name: np.repeat(values, table["count"]) for name, values in table.items() if name != "count"}
    carried: list[tuple[int, int, int]] = []
    for slot, request, first, last in zip(
        *(timeline.decodes[name].tolist() for name in ("slot", "request", "first_step", "last_step")), strict=True
    ):
        steps = table["step"][(table["slot"] == slot) & (table["step"] >= first) & (table["step"] <= last)]
        carried += [(slot, request, step) for step in steps.tolist()]
    tables["decodes"] = dict(zip(("slot", "request", "step"), np.array(carried, np.int64).T, strict=True))
    for name, columns in tables.items():
        write_table(folder / f"{name}.parquet", columns)
    return [folder / f"{name}.parquet" for name in tables]


GIVEN = ("--given", "tp=2", "--given", "pp=2", "--given", "block_tokens=16", "--given", "pool_blocks=200000")


def test_audit_of_our_own_run_as_plain_tables_finds_nothing_wrong(tmp_path: Path) -> None:
    changes = ("workload.trace.requests=3", "run.horizon=300 ms", "model=llama-3.1-8b", "plan={tp: 2, pp: 2}")
    run = ran(tmp_path / "tiny", *(word for change in changes for word in ("--set", change)))
    (tmp_path / "tables").mkdir()
    paths = exported(run, tmp_path / "tables")
    status, verdict = verdict_of(*paths, *GIVEN, "--given", "horizon_ns=300000000")
    assert (status, verdict["verdict"], verdict["violations"]) == (3, "not_checkable", [])
    missed = {rule["id"]: rule["lacks"] for rule in verdict["rules"] if rule["relevant"] and not rule["looked_at"]}
    assert missed["TP-5"] == ["record group of spans"]
    assert set(missed) == {"TP-5", "TP-6", "TP-7", "RUN-2"}
    looked = {rule["id"] for rule in verdict["rules"] if rule["looked_at"]}
    assert {"PH-1", "PH-2", "PH-3", "PH-4", "KV-1", "KV-2", "KV-3", "KV-5", "KV-6", "KV-7", "PP-2", "PP-3", "PP-6",
            "DP-2", "RUN-3", "RUN-4"} <= looked  # fmt: skip
    assert not {"TP-5", "TP-6", "RUN-2"} & looked, "plain spans do not say which of them are one collective"


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        ("name,step,stream,group", ["record after of spans"]),
        ("name,step", ["record stream, group and after of spans"]),
        ("name,step,stream,group,id,after", ["let name, stream, group and after of spans tell what it is about: "
                                             "clustersim rules TP-6"]),
    ],
)  # fmt: skip
def test_audit_names_the_columns_that_lack_and_no_others(tmp_path: Path, columns: str, lacks: list[str]) -> None:
    cell = {"name": "qkv_proj", "step": "0", "stream": "compute", "group": "-1", "after": ""}
    rows = [
        f"{rank},0,10," + ",".join(str(rank) if name == "id" else cell[name] for name in columns.split(","))
        for rank in (0, 1)
    ]
    spans = csv_file(tmp_path, "spans", f"rank,start_ns,end_ns,{columns}", *rows)
    _, verdict = verdict_of(spans, "--given", "tp=2")
    assert {rule["id"]: rule["lacks"] for rule in verdict["rules"]}["TP-6"] == lacks
    lines = called("audit", spans, "--given", "tp=2").output.splitlines()
    headline, silent = lines[0], next(line for line in lines if line.startswith("have no say"))
    assert not {*headline.partition("can't: ")[2].split(", ")} & {*silent.partition(": ")[2].split(", ")}


def csv_file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


SPANS = ("start_ns,end_ns,rank,stream,name,module,step,layer,group,id,after",)


def test_audit_of_spans_from_elsewhere_finds_an_overlap(tmp_path: Path) -> None:
    spans = csv_file(tmp_path, "spans", "start_ns,end_ns,rank", "0,10,0", "9,20,0", "0,10,1")
    status, verdict = verdict_of(spans)
    assert (status, broken(verdict)) == (1, {"RUN-3"})
    assert [rule["id"] for rule in verdict["rules"] if rule["looked_at"]] == ["RUN-3"]


def test_audit_of_spans_with_groups_and_needs_finds_an_early_dependent(tmp_path: Path) -> None:
    lines = (
        "0,10,0,comm,o_proj_all_reduce,attention,0,0,1,a,",
        "0,10,1,comm,o_proj_all_reduce,attention,0,0,1,b,",
        "8,20,1,compute,ffn_up,ffn,0,0,-1,c,b",
    )
    status, verdict = verdict_of(csv_file(tmp_path, "spans", *SPANS, *lines), "--given", "tp=2")
    assert (status, broken(verdict)) == (1, {"TP-6"})


def test_audit_of_facts_from_elsewhere_finds_a_lost_request(tmp_path: Path) -> None:
    facts = csv_file(
        tmp_path, "facts", "time_ns,kind,request", "0,arrived,0", "0,arrived,1", "1,admitted,0", "9,finished,0"
    )
    status, verdict = verdict_of(facts)
    assert (status, broken(verdict)) == (1, {"RUN-4"})


def test_audit_of_tables_that_no_rule_can_use_is_not_checkable(tmp_path: Path) -> None:
    requests = csv_file(tmp_path, "requests", "request,prompt_tokens,output_tokens", "0,10,2")
    result = called("audit", requests)
    assert result.exit_code == 3
    assert result.output.startswith(f"not checkable: no rule had anything to look at in {requests}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("when,who", "0,1"), "is no table: it has none of the columns"),
        (("start_ns,end_ns,rank", "0,ten,0"), "end_ns: found 'ten'; expected a whole number"),
        (
            ("time_ns,kind,request", "0,vanished,0"),
            "kind: found 'vanished' (did you mean 'finished'?); expected one of arrived",
        ),
        (("start_ns,end_ns,rank", "0,10"), ":2: found 2 cells; expected 3, as in"),
        (("start_ns,end_ns,rank", "10,0,0"), ":2: end_ns: found 0, which is before start_ns 10"),
        (("start_ns,end_ns,rank", "0,10,-1"), ":2: rank: found '-1'; expected a whole number"),
    ],
)
def test_audit_refuses_a_table_that_makes_no_sense(tmp_path: Path, lines: Sequence[str], message: str) -> None:
    result = called("audit", csv_file(tmp_path, "table", *lines))
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--given", "tq=2"), "did you mean 'tp'?"),
        (("--given", "tp=two"), "tp must be a whole number"),
        (("--given", "tp=0"), "tp must be a whole number, at least 1"),
        (("--again", "full"), "need a run directory"),
    ],
)
def test_audit_refuses_options_that_make_no_sense(tmp_path: Path, words: Sequence[str], message: str) -> None:
    result = called("audit", csv_file(tmp_path, "spans", "start_ns,end_ns,rank", "0,10,0"), *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_audit_refuses_two_tables_of_one_kind_and_what_is_not_there(tmp_path: Path) -> None:
    spans = csv_file(tmp_path, "spans", "start_ns,end_ns,rank", "0,10,0")
    result = called("audit", spans, spans, tmp_path / "nowhere.csv")
    assert result.exit_code == 2
    assert "is a second table of spans" in result.stderr
    assert "nowhere.csv: no such file" in result.stderr


def test_check_takes_a_table_too(tmp_path):
    path = tmp_path / "spans.csv"
    path.write_text("rank,stream,start_ns,end_ns\n0,compute,0,10\n0,compute,5,12\n", encoding="utf-8")
    checked, audited = (CliRunner().invoke(main, [command, str(path), "--json"]) for command in ("check", "audit"))
    assert checked.exit_code == audited.exit_code == 1
    assert json.loads(checked.stdout) == json.loads(audited.stdout)
    assert [violation["rule"] for violation in json.loads(checked.stdout)["violations"]] == ["RUN-3"]


def test_audit_names_how_many_files_and_where_and_what_a_link_carries_when(tmp_path: Path) -> None:
    spans = csv_file(tmp_path, "spans", "start_ns,end_ns,rank", "0,10,0")
    flows = csv_file(tmp_path, "flows", "link,start_ns,end_ns,rate,capacity", "0,0,300,100,200", "0,100,200,101,200")
    result = called("audit", spans, flows)
    assert result.stdout.splitlines()[:2] == [
        f"illegal: 2 files in {tmp_path} break 1 rule",
        "RUN-3: link 0: carries 201 bytes/s from 100 to 200 ns; its capacity is 200; share the link",
    ]
    assert called("audit", flows).stdout.startswith(f"illegal: {flows} breaks 1 rule\n")


def test_audit_says_how_much_it_simulates_again(tmp_path: Path) -> None:
    shallow = (
        "--set",
        "model={name: llama-3.1-70b, config: {num_hidden_layers: 2}}",
        "--set",
        "workload.trace.requests=2",
    )
    result = called("audit", ran(tmp_path / "shallow", *shallow), "--again", "full")
    assert re.match(r"simulating [0-9]{1,3}(,[0-9]{3})+ operators again, full …\n", result.stderr)
    assert "operators again" not in result.stdout
