"""Tables from elsewhere are legal only where every rule that is relevant to them looked at something."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.legality.audit import TIMELINE_RULES
from clustersim.legality.relevance_of_histories import HISTORY

TABLES: Final = {
    "requests": "request,prompt_tokens,output_tokens\n0,4,3\n",
    "steps": "step,start_ns,end_ns\n0,0,10\n1,10,20\n2,20,30\n",
    "chunks": "step,request,start,count,sampled\n0,0,0,4,1\n",
    "decodes": "step,request\n1,0\n2,0\n",
    "facts": "time_ns,kind,request\n0,arrived,0\n0,admitted,0\n30,finished,0\n",
    "spans": "start_ns,end_ns,rank,stream,name,op,module,step,layer,id,after,cost_ns\n"
    + "".join(
        f"{10 * at},{10 * at + 5},0,compute,kv_write,memory,attention,{at},0,w{at},{f'a{at - 1}' if at else ''},5\n"
        f"{10 * at + 5},{10 * at + 10},0,compute,{op},{op},attention,{at},0,a{at},w{at},5\n"
        for at, op in enumerate(("attention_prefill", "attention_decode", "attention_decode"))
    ),
}


def audited(folder: Path, *given: str, without: str = "") -> tuple[int, dict[str, Any]]:
    paths = []
    for name, text in TABLES.items():
        if name != without:
            paths.append(folder / f"{name}.csv")
            paths[-1].write_text(text)
    words = [word for one in given for word in ("--given", one)]
    result = CliRunner().invoke(main, ["audit", *map(str, paths), *words, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_a_whole_history_is_legal(tmp_path: Path) -> None:
    status, verdict = audited(tmp_path)
    assert (status, verdict["verdict"], verdict["violations"]) == (0, "legal", [])


@pytest.mark.parametrize(
    ("without", "missed"),
    [
        ("requests", {"PH-4", "RUN-4"}),
        ("decodes", {"PH-2"}),
        ("chunks", {"PH-1"}),
        ("facts", {"RUN-4"}),
        ("spans", {"RUN-2"}),
    ],
)
def test_a_table_that_lacks_makes_it_not_checkable(tmp_path: Path, without: str, missed: set[str]) -> None:
    status, verdict = audited(tmp_path, without=without)
    if status == 1:  # what lacks makes the rest contradict itself
        pytest.skip("what lacks is missed by a rule")
    lacks = {rule["id"]: rule["lacks"] for rule in verdict["rules"] if rule["relevant"] and not rule["looked_at"]}
    assert (status, verdict["verdict"]) == (3, "not_checkable")
    assert missed & set(lacks)
    assert any(without in words for words in lacks[min(missed & set(lacks))])


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ("tp=2", {"TP-5", "TP-6", "TP-7"}),
        ("sp=2", {"SP-2", "SP-3"}),
        ("pp=2", {"PP-2"}),
        ("ep=2", {"EP-2", "EP-3"}),
        ("pool_blocks=9", {"KV-6"}),
        ("block_tokens=16", {"KV-7"}),
        ("prefix_caching=true", {"KV-5"}),
    ],
)
def test_what_is_declared_makes_rules_relevant(tmp_path: Path, given: str, rules: set[str]) -> None:
    status, verdict = audited(tmp_path, given)
    relevant = {rule["id"] for rule in verdict["rules"] if rule["relevant"]}
    assert status in (1, 3)
    assert rules <= relevant


def test_every_rule_of_a_history_is_asked_of_one_or_compares_two() -> None:
    assert set(TIMELINE_RULES) - set(HISTORY) == {"TP-9", "DP-4", "RUN-5"}


def test_a_degree_of_any_pool_makes_its_rules_relevant() -> None:
    """A decode pool of eight TP ranks behind prefill ranks of one."""
    one, split = (SimpleNamespace(tp=tp, sp=1, pp=1, dp=1, ep=1, top_k=None, mesh=True) for tp in (1, 8))
    for pools, relevant in (((one, split), True), ((split, one), True), ((one, one), False)):
        history: Any = SimpleNamespace(pools=pools, declared=pools[0])
        assert HISTORY["TP-6"].when(history) is relevant
