"""Tables from elsewhere of which little is declared: nothing is held against them that only a declaration would say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.rule import Verdict
from clustersim.simulation.foreign.history import read_history
from tests.legality.timeline.foreign_tables import written


def verdict_on(folder: Path, given: Sequence[str] = (), **texts: str) -> Verdict:
    rows = {name: [line.split(",") for line in text.split()] for name, text in texts.items()}
    return check_history(read_history(written(folder, rows), given))


def broken(verdict: Verdict) -> list[str]:
    return [violation.rule for violation in verdict.violations]


STAGES = """
start_ns,end_ns,rank,stream,module,name,layer,step
0,10,0,compute,ffn,ffn_up,0,0
10,20,0,compute,ffn,ffn_up,1,0
20,30,1,compute,ffn,ffn_up,2,0
30,40,1,compute,ffn,ffn_up,3,0
20,30,0,compute,ffn,ffn_up,0,1
30,40,0,compute,ffn,ffn_up,1,1
40,50,1,compute,ffn,ffn_up,2,1
50,60,1,compute,ffn,ffn_up,3,1
"""


@pytest.mark.parametrize("given", [(), ("pp=2",), ("tp=1",), ("tp=1", "pp=2", "sp=1")])
def test_ranks_of_stages_that_nobody_declares_have_the_layers_that_they_run(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    assert broken(verdict_on(tmp_path, given, spans=STAGES)) == []
    skipped = STAGES.replace("30,40,0,compute,ffn,ffn_up,1,1\n", "")
    assert broken(verdict_on(tmp_path, given, spans=skipped)) == ["PP-6"]


def test_horizon_cuts_each_rank_off_where_nobody_declares_its_stage(tmp_path: Path) -> None:
    cut = STAGES.replace("50,60,1,compute,ffn,ffn_up,3,1\n", "40,50,0,compute,ffn,ffn_up,0,2\n")
    assert broken(verdict_on(tmp_path, ("horizon_ns=50",), spans=cut)) == []
    assert broken(verdict_on(tmp_path, spans=cut)) == ["PP-6"]
    early = STAGES.replace("30,40,1,compute,ffn,ffn_up,3,0\n", "")
    assert broken(verdict_on(tmp_path, ("horizon_ns=60",), spans=early)) == ["PP-6"]


@pytest.mark.parametrize("op", ["gather", "all_to_all", "all_gather", "p2p_copy"])
def test_entries_move_by_a_collective_of_any_kind(tmp_path: Path, op: str) -> None:
    spans = "start_ns,end_ns,rank,stream,name,op,layer,step 0,9,0,comm,kv_move,{0},0,0 0,9,1,comm,kv_move,{0},0,0"
    assert broken(verdict_on(tmp_path, ("sp=2",), spans=spans.format(op))) == []


STEPS = "replica,step,start_ns,end_ns,slot,kind 0,0,0,10,,{0} 1,0,0,10,0,{1} 1,1,10,20,0,decode 1,2,20,30,0,decode"
CHUNKS = "replica,step,request,start,count,sampled 0,0,0,0,4,1"
DECODES = "replica,step,request 1,0,1 1,1,1 1,2,1"


@pytest.mark.parametrize(
    ("kinds", "given", "wrong"),
    [
        (("prefill", "decode"), (), 0),
        (("prefill", "decode"), ("ep_scope=replica",), 0),
        (("mixed", "mixed"), (), 0),  # they may share experts, and take each step together
        (("mixed", "mixed"), ("ep_scope=replica",), 1),
        (("decode", "decode"), (), 1),  # whoever shares it, it has a chunk
        (("prefill", "prefill"), (), 1),
    ],
)
def test_step_is_of_the_kind_of_what_it_carries_whoever_shares_it(
    tmp_path: Path, kinds: tuple[str, str], given: tuple[str, ...], wrong: int
) -> None:
    verdict = verdict_on(tmp_path, given, steps=STEPS.format(*kinds), chunks=CHUNKS, decodes=DECODES)
    told = [one for one in verdict.violations if " step, and what it carries makes a " in one.message]
    assert [one.rule for one in told] == ["PH-2"] * wrong


RETRY_STEPS = "replica,step,start_ns,end_ns,slot,kind 0,0,0,10,,prefill 1,0,20,30,,prefill"
RETRY = "replica,step,request,start,count,sampled 0,0,0,0,4,0 1,0,0,{},8,1"
GIVEN_UP = "replica,time_ns,kind,request 0,0,arrived,0 0,0,admitted,0 0,{},{},0 1,20,admitted,0 1,30,finished,0"


@pytest.mark.parametrize(
    ("start", "time", "kind", "legal"),
    [
        (0, 12, "preempted", True),
        (0, 12, "admitted", False),  # nobody gave its entries up
        (4, 12, "preempted", False),  # it goes on with entries that were given up
        (0, 5, "preempted", False),  # before what it computed there ended
    ],
)
def test_prompt_that_was_given_up_is_computed_anew_on_another_replica(
    tmp_path: Path, start: int, time: int, kind: str, legal: bool
) -> None:
    facts, requests = GIVEN_UP.format(time, kind), "request,prompt_tokens,output_tokens 0,8,1"
    verdict = verdict_on(tmp_path, steps=RETRY_STEPS, chunks=RETRY.format(start), facts=facts, requests=requests)
    assert (broken(verdict) == []) is legal
    assert ("DP-2" not in broken(verdict)) is legal
