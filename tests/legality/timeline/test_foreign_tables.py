"""What is refused in tables from elsewhere, with file, line and column, and what of them is not checkable."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clustersim.errors import InputError
from clustersim.legality.audit import check_history
from clustersim.legality.rule import Verdict
from clustersim.simulation.foreign.history import read_history
from tests.legality.timeline.foreign_tables import GIVEN, tables, written


def refused(paths: Sequence[Path], given: Sequence[str] = ()) -> str:
    with pytest.raises(InputError) as refusal:
        read_history(paths, given)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("name", "row", "column", "cell", "message"),
    [
        ("spans", 2, "end_ns", "ten", "spans.csv:3: end_ns: found 'ten'; expected a whole number from 0 to "),
        ("spans", 1, "end_ns", str(2**63), "spans.csv:2: end_ns: found '9223372036854775808'; expected a whole number"),
        ("spans", 2, "end_ns", "", "spans.csv:3: end_ns: found nothing; expected a whole number"),
        ("spans", 8, "start_ns", "50", "spans.csv:9: end_ns: found 40, which is before start_ns 50"),
        ("spans", 1, "rank", "-1", "spans.csv:2: rank: found '-1'; expected a whole number from 0 to"),
        ("spans", 1, "stream", "gpu", "spans.csv:2: stream: found 'gpu'; expected one of compute, comm, send"),
        ("spans", 1, "op", "all_reduce", "spans.csv:2: op: found 'all_reduce'; expected 'gemm', as o_proj is"),
        (
            "spans",
            1,
            "module",
            "moe",
            "spans.csv:2: module: found 'moe'; expected 'attention', where o_proj is (or words",
        ),
        ("requests", 0, "first_token_ns", "ttft_ms", "requests.csv:1: ttft_ms: is read by no rule; expected the insta"),
        ("requests", 0, "arrived_ns", "arrived_s", "requests.csv:1: arrived_s: is read by no rule; expected arrived_n"),
        ("spans", 0, "start_ns", "start_us", "spans.csv:1: start_us: is read by no rule; expected start_ns, in whole"),
        ("spans", 4, "after", "zz", "spans.csv:5: after: found 'zz'; expected ids of this table"),
        ("spans", 2, "id", "a", "spans.csv:3: id: found 'a' again, after row 1; expected each id once"),
        ("spans", 8, "rank", "9", "--given: tp × sp × pp × dp are 4 ranks, but the spans have rank 9"),
        ("facts", 1, "kind", "vanished", "facts.csv:2: kind: found 'vanished' (did you mean 'finished'?); "),
        ("facts", 5, "kind", "19", "facts.csv:6: kind: found '19'; expected one of arrived, rejected"),
        ("facts", 2, "request", "5", "facts.csv:3: request: found request 5, which "),
        ("chunks", 1, "step", "9", "chunks.csv:2: step: found step 9 of replica 0, which "),
        ("decodes", 1, "step", "9", "decodes.csv:2: step: found step 9 of replica 0, which "),
        ("decodes", 1, "step", "0", "decodes.csv:2: step: found step 0 of replica 0, whose slot is none"),
        ("decodes", 1, "slot", "3", "decodes.csv:2: slot: found 3; expected 0, the slot of step 1 of replica 0"),
        ("routes", 1, "step", "9", "routes.csv:2: step: found step 9 of replica 0, which "),
        ("routes", 1, "request", "9", "routes.csv:2: request: found request 9, which "),
        ("steps", 2, "step", "0", "steps.csv:3: step: found step 0 of replica 0 again, after row 1"),
        ("requests", 2, "request", "0", "requests.csv:3: request: found request 0 again, after row 1"),
        ("held", 1, "freed_ns", "-2", "held.csv:2: freed_ns: found '-2'; expected a whole number"),
        ("flows", 1, "rate", "nan", "flows.csv:2: rate: found 'nan'; expected a number, 0 or more, and finite"),
        ("flows", 1, "rate", "inf", "flows.csv:2: rate: found 'inf'; expected a number, 0 or more, and finite"),
        ("flows", 2, "capacity", "99", "flows.csv:3: capacity: found 99; expected 100, as in the first row of link 3"),
    ],
)
def test_cell_that_can_not_be_is_named(
    tmp_path: Path, name: str, row: int, column: str, cell: str, message: str
) -> None:
    whole = tables()
    whole[name][row][whole[name][0].index(column)] = cell
    assert message in refused(written(tmp_path, whole), GIVEN)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("when,who\n0,1", "is no table: it has none of the columns"),
        ("start_ns,end_ns,stream\n0,1,0", "nearest: spans, which lacks rank"),
        ("rank,start_ns,rank,end_ns\n0,0,1,1", "rank: found twice; expected each column once"),
        ("start_ns,end_ns,rank\n\n0,10", "table.csv:3: found 2 cells; expected 3, as in the first line"),
        ("step,request,start\n0,0,4", "start found, which decodes do not have; chunks also need count"),
        ("step,start_ns,end_ns,stream\n0,0,4,comm", "spans also need rank"),
        ("step,start_ns,end_ns,count\n0,0,4,9", "has rows for several steps, as the files of a run of clustersim have"),
        ("start_ns,end_ns,rank,after\n0,4,0,", "id: lacks; expected beside after"),
        ("", "is no table: it has none of the columns"),
    ],
)
def test_table_that_can_not_be_is_named(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(lines, encoding="utf-8")
    assert message in refused([path])


def test_cell_of_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "spans.parquet"
    pq.write_table(pa.table({"start_ns": [0, 0], "end_ns": [1.0, 2.5], "rank": [0, None]}), path)
    assert refused([path]).splitlines() == [
        f"{path}: end_ns: row 2: found 2.5; expected a whole number from 0 to {2**62 - 1}",
        f"{path}: rank: row 2: found nothing; expected a whole number from 0 to {2**20 - 1}",
    ]


@pytest.mark.parametrize(("name", "column"), [("facts", "replica"), ("chunks", "replica")])
def test_table_without_replicas_is_refused_beside_one_with_several(tmp_path: Path, name: str, column: str) -> None:
    whole = tables()
    whole["steps"][2][3] = "1"
    at = whole[name][0].index(column)
    whole[name] = [row[:at] + row[at + 1 :] for row in whole[name]]
    message = refused(written(tmp_path, whole), GIVEN)
    assert f"{name}.csv: replica: lacks; expected, as " in message
    assert "steps.csv has replica 1" in message


def test_file_of_a_run_is_refused_with_its_run_directory(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    path = tmp_path / "timeline" / "steps.parquet"
    path.write_bytes(b"")
    assert refused([path]).endswith(f"audit its run directory, clustersim audit {tmp_path}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tq=2", "nothing is called 'tq'; did you mean 'tp'?"),
        ("tp", "found 'tp'; expected NAME=VALUE, with NAME one of tp, sp, pp, dp, ep, block_tokens"),
        ("tp=two", "tp must be a whole number, at least 1 and at most 4096; found 'two'"),
        ("tp=²", "tp must be a whole number"),
        ("tp=0", "at least 1 and at most 4096; found '0'"),
        ("pp=99999999999999999999999999", "pp must be a whole number, at least 1 and at most 4096"),
        ("horizon_ns=9223372036854775808", "horizon_ns must be a whole number"),
        ("sp_scheme=rings", "sp_scheme must be one of all_gather, ring, all_to_all; found 'rings'"),
        ("mesh=1", "nothing is called 'mesh'"),
    ],
)
def test_declaration_that_makes_no_sense_is_refused(tmp_path: Path, given: str, message: str) -> None:
    assert message in refused(written(tmp_path, {"requests": tables()["requests"]}), [given])


def test_declaration_is_made_once(tmp_path: Path) -> None:
    assert "tp is declared twice" in refused(written(tmp_path, {}), ["tp=2", "tp=2"])


def verdict_on(folder: Path, given: Sequence[str], **texts: str) -> Verdict:
    rows = {name: [line.split(",") for line in text.split()] for name, text in texts.items()}
    return check_history(read_history(written(folder, rows), given))


COLLECTIVE = """
start_ns,end_ns,rank,stream,module,name,layer,step,group
0,50,0,compute,attention,o_proj,0,0,-1
0,60,1,compute,attention,o_proj,0,0,-1
60,90,0,comm,attention,o_proj_all_reduce,0,0,1
60,90,1,comm,attention,o_proj_all_reduce,0,0,1
"""


def test_collectives_that_nothing_is_said_to_need_are_not_checkable_for_what_needs_them(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, ["tp=2"], spans=COLLECTIVE)
    assert (verdict.of("TP-5", "T"), verdict.of("TP-6", "T")) == ("legal", "not_checkable")
    apart = COLLECTIVE.replace("60,90,1", "60,80,1")
    assert verdict_on(tmp_path, ["tp=2"], spans=apart).of("TP-6", "T") == "illegal"


def test_ranks_are_nowhere_without_the_degrees(tmp_path: Path) -> None:
    """Two ranks in one collective may be one TP group or two replicas: nobody said."""
    verdict = verdict_on(tmp_path, [], spans=COLLECTIVE)
    assert verdict.violations == ()
    for rule in ("DP-3", "TP-5", "SP-3", "PP-2"):
        assert verdict.of(rule, "T") == "not_checkable"
    assert verdict.of("RUN-3", "T") == "legal"
    assert verdict_on(tmp_path, ["dp=2"], spans=COLLECTIVE).of("DP-3", "T") == "illegal"


def test_experts_across_replicas_are_not_checkable_unless_their_scope_is_declared(tmp_path: Path) -> None:
    spans = COLLECTIVE.replace("attention,o_proj_all_reduce", "moe,dispatch")
    plan = ["tp=1", "sp=1", "pp=1", "dp=2"]
    assert verdict_on(tmp_path, plan, spans=spans).of("DP-3", "T") == "not_checkable"
    assert verdict_on(tmp_path, [*plan, "ep_scope=global"], spans=spans).of("DP-3", "T") == "legal"
    assert verdict_on(tmp_path, [*plan, "ep_scope=replica"], spans=spans).of("DP-3", "T") == "illegal"


REJECTION = "time_ns,kind,request\n0,arrived,0\n0,rejected,0\n"


def test_rejection_may_have_an_arrival_and_needs_a_reason_where_reasons_are_told(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, [], facts=REJECTION)
    assert verdict.of("RUN-4", "T") == "legal"
    (lacks,) = [rule.lacks for rule in verdict.rules if rule.id == "RUN-4"]
    assert "whether rejections have a reason (none was recorded)" in lacks
    told = "time_ns,kind,request,reason\n0,arrived,0,\n0,rejected,0,{}\n"
    assert verdict_on(tmp_path, [], facts=told.format("full")).of("RUN-4", "T") == "legal"
    assert verdict_on(tmp_path, [], facts=told.format("")).of("RUN-4", "T") == "illegal"


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        ("0,finished,0", "legal"),  # neither arrivals nor admissions were recorded
        ("0,arrived,0 9,finished,0", "legal"),
        ("0,arrived,0 1,admitted,0 9,finished,0 0,arrived,2 9,finished,2", "illegal"),
        ("0,arrived,0 9,finished,0 9,finished,1", "illegal"),
    ],
)
def test_what_no_fact_tells_is_not_held_against_a_history(tmp_path: Path, facts: str, answer: str) -> None:
    text = "time_ns,kind,request\n" + "\n".join(facts.split())
    assert verdict_on(tmp_path, [], facts=text).of("RUN-4", "T") == answer


HELD = "block,request,taken_ns,freed_ns\n7,0,0,{}\n"


@pytest.mark.parametrize(
    ("freed", "given", "answer"),
    [
        ("50", [], "legal"),
        ("51", [], "illegal"),
        ("", [], "illegal"),
        ("-1", [], "illegal"),
        ("", ["horizon_ns=40"], "legal"),
        ("", ["horizon_ns=50"], "illegal"),
    ],
)
def test_block_that_is_never_given_back_is_lost_unless_the_history_is_cut(
    tmp_path: Path, freed: str, given: list[str], answer: str
) -> None:
    finished = "" if given == ["horizon_ns=40"] else "50,finished,0\n"
    facts = "time_ns,kind,request\n0,arrived,0\n" + finished
    verdict = verdict_on(tmp_path, given, held=HELD.format(freed), facts=facts)
    assert verdict.of("KV-7", "T") == answer


def test_block_that_is_taken_twice_by_one_request_at_one_instant_is_refused(tmp_path: Path) -> None:
    rows = [line.split(",") for line in (HELD.format(50) + "7,0,0,60").split("\n")]
    assert "held.csv:3: taken_ns: found taken_ns 0 of request 0 of block 7" in refused(
        written(tmp_path, {"held": rows})
    )


def test_who_holds_blocks_is_looked_at_row_by_row_and_step_by_step(tmp_path: Path) -> None:
    """Of the small history: two rows for KV-6 and KV-7, two facts for KV-6, two steps for KV-2 and KV-7."""
    folders = {name: tmp_path / name for name in ("with", "without")}
    looked = {}
    for name, folder in folders.items():
        folder.mkdir()
        chosen = {table: rows for table, rows in tables().items() if name == "with" or table != "held"}
        verdict = check_history(read_history(written(folder, chosen), GIVEN))
        assert verdict.violations == ()
        looked[name] = {rule.id: rule.looked_at for rule in verdict.rules}
    more = {rule: looked["with"][rule] - looked["without"][rule] for rule in ("KV-2", "KV-5", "KV-6", "KV-7")}
    assert more == {"KV-2": 2, "KV-5": 2, "KV-6": 4, "KV-7": 4}


def test_numbers_of_requests_may_have_gaps(tmp_path: Path) -> None:
    facts = "time_ns,kind,request\n0,arrived,7\n9,finished,7\n"
    assert (
        verdict_on(tmp_path, [], facts=facts, requests="request,prompt_tokens,output_tokens\n7,4,1\n").violations == ()
    )


def test_links_that_were_not_recorded_are_said_to_be_unseen(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, ["tp=2"], spans=COLLECTIVE)
    (lacks,) = [rule.lacks for rule in verdict.rules if rule.id == "RUN-3"]
    assert lacks == ("the load of links (no flows were recorded)",)


def test_message_names_no_operator_and_no_step_that_was_not_told(tmp_path: Path) -> None:
    (found,) = verdict_on(tmp_path, [], spans="start_ns,end_ns,rank\n0,10,1\n9,20,1\n").violations
    assert found.where == "rank 1"
    assert found.message == "starts at 9 ns on a stream that runs another operator until 10 ns"


@pytest.mark.parametrize(
    ("words", "told"), [((), None), (("prefix_caching=false",), False), (("prefix_caching=true",), True)]
)
def test_sharing_is_unknown_where_nobody_declares_it(tmp_path: Path, words: tuple[str, ...], told: bool | None) -> None:
    assert read_history(written(tmp_path, tables()), [*GIVEN, *words]).declared.prefix_caching is told


@pytest.mark.parametrize("name", ["arrived_ns", "first_token_ns", "finished_ns"])
def test_instants_of_requests_are_those_that_facts_and_steps_tell(tmp_path: Path, name: str) -> None:
    whole = tables()
    place = whole["requests"][0].index(name)
    whole["requests"][1][place] = str(int(whole["requests"][1][place]) + 1)
    if name == "arrived_ns":
        whole["requests"][2][place] = ""  # what is not said is not judged
    verdict = check_history(read_history(written(tmp_path, whole), GIVEN))
    assert [found.rule for found in verdict.violations] == ["RUN-4"]
    assert "by the table of requests" in verdict.violations[0].message


def test_collective_that_each_rank_runs_apart_is_found(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, ["tp=2"], spans=COLLECTIVE.replace("60,90,1,comm,attention,o_proj_all_reduce,0,0,1",
        "60,90,1,comm,attention,o_proj_all_reduce,0,0,2"))  # fmt: skip
    assert "1 of the 2 ranks of the TP group run it together" in verdict.violations[0].message
    assert [found.rule for found in verdict.violations] == ["TP-5"]


def test_decodes_without_chunks_are_not_judged_as_if_no_prompt_were_computed(tmp_path: Path) -> None:
    some = {name: rows for name, rows in tables().items() if name in ("steps", "decodes", "requests", "facts")}
    some["requests"] = [row[:3] for row in some["requests"]]
    verdict = check_history(read_history(written(tmp_path, some), GIVEN))
    assert verdict.violations == ()
    assert {verdict.of(rule, "T") for rule in ("PH-1", "KV-1", "PH-4")} == {"not_checkable"}


def test_chunks_need_no_decodes_where_no_request_has_a_second_token(tmp_path: Path) -> None:
    steps = "step,start_ns,end_ns,kind 0,0,40,prefill"
    chunks, requests = "step,request,start,count,sampled 0,0,0,4,1", "request,prompt_tokens,output_tokens 0,4,{}"
    for tokens, answer in ((1, "legal"), (2, "not_checkable")):
        verdict = verdict_on(tmp_path, [], steps=steps, chunks=chunks, requests=requests.format(tokens))
        assert verdict.of("PH-4", "T") == answer


def without_groups(*, lacks: str = "", name: str = "o_proj", op: str = "gemm") -> Verdict:
    """Return the verdict on the history without a column ``group``, and without the operator with an id."""
    whole = tables()
    at = whole["spans"][0].index("group")
    kept = [row[:at] + row[at + 1 :] for row in whole["spans"] if row[0] != lacks]
    whole["spans"] = [[cell.replace("o_proj", name).replace("gemm", op) for cell in row] for row in kept]
    if lacks:
        whole["spans"] = [[*row[:-1], row[-1].replace(lacks, "c")] for row in whole["spans"]]
    with tempfile.TemporaryDirectory() as folder:
        return check_history(read_history(written(Path(folder), whole), GIVEN))


@pytest.mark.parametrize("name", ["o_proj", "wo"])
def test_a_collective_that_a_rank_lacks_is_found_without_groups(name: str) -> None:
    assert without_groups(name=name).violations == ()
    found = without_groups(lacks="d", name=name).violations
    assert {one.rule for one in found} == {"TP-5"}
    assert "1 of the 2 ranks of the TP group runs fewer collectives of the kind all_reduce" in found[0].message


def test_words_of_other_programs_for_kinds_of_operators_are_no_contradiction() -> None:
    assert without_groups(op="cublas_gemm_kernel").violations == ()


def test_a_figure_beside_the_instants_that_it_is_of_is_left_alone(tmp_path: Path) -> None:
    whole = tables()
    for row, cell in zip(whole["requests"], ("ttft_ms", "0.00004", ""), strict=True):
        row.append(cell)
    assert check_history(read_history(written(tmp_path, whole), GIVEN)).violations == ()
