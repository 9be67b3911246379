"""EP-8: exchanges of experts that are split over groups, on step graphs and on spans, and what stays legal."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.legality.exchange import apart
from tests.laws.random_scenarios import MIXTRAL

Groups = Sequence[Sequence[int]]
SCOPES = {
    "replica": {"tp": 4, "ep": {"degree": 4, "exchange": "all_to_all"}},
    "global": {"tp": 2, "dp": 2, "ep": {"degree": 4, "scope": "global", "exchange": "all_to_all"}},
}
ALONE = [[0], [1], [2], [3]]
HALVES = [[0, 1], [2, 3]]
ACROSS = [[0, 2], [1, 3]]


def called(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a scenario and a step graph of each scope, four ranks each."""
    found = tmp_path_factory.mktemp("exchanges")
    for scope, plan in SCOPES.items():
        scenario = {
            "name": scope,
            "topology": {"name": "dgx-h100", "nodes": 1},
            "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
            "plan": plan,
            "workload": {"arrivals": "all_at_once", "prompt_tokens": 64, "output_tokens": 2, "requests": 4},
        }
        (found / f"{scope}.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
        called("graph", found / f"{scope}.yaml", "--step", "decode", "--batch", "4", "-o", found / f"{scope}.json")
    return found


def split(graph: dict[str, Any], name: str, rounds: Sequence[Groups], silent: bool = False) -> dict[str, Any]:
    """Return a graph whose exchanges of a name are taken by groups, one round of groups behind the other."""
    changed = deepcopy(graph)
    nodes, edges = [], changed["edges"]
    for node in changed["nodes"]:
        if node["name"] != name:
            nodes.append(node)
            continue
        parts = [[{**node, "id": f"{node['id']} {depth} {group}", "ranks": list(group)} for group in groups]
                 for depth, groups in enumerate(rounds)]  # fmt: skip
        nodes += [part for each in parts for part in each]
        ranks_of = {one["id"]: {*one["ranks"]} for one in changed["nodes"]}
        moved = []
        for edge in edges:
            ends = {"source": parts[-1], "target": parts[0]}
            end = next((end for end in ends if edge[end] == node["id"]), None)
            other = edge["target" if end == "source" else "source"]
            own = [part for part in ends[end] if not ranks_of[other].isdisjoint(part["ranks"])] if end else []
            moved += [{**edge, end: part["id"]} for part in own] if end else [edge]
        for first, then in pairwise(parts):
            met = [(one, other) for one in first for other in then if {*one["ranks"]} & {*other["ranks"]}]
            moved += [{"source": one["id"], "target": other["id"], "kind": "data"} for one, other in met]
        edges = moved
    if silent:
        for node in nodes:
            if node["name"] == name:
                for key in ("axis", "amount", "bytes", "flops"):
                    node.pop(key, None)
    return {**changed, "nodes": nodes, "edges": edges}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", ["dispatch", "combine"])
@pytest.mark.parametrize("groups", [ALONE, HALVES, ACROSS, [[0, 1, 2], [3]]], ids=str)
@pytest.mark.parametrize("silent", [False, True])
def test_split_exchange_is_illegal(folder: Path, scope: str, name: str, groups: Groups, silent: bool) -> None:
    graph = json.loads((folder / f"{scope}.json").read_text(encoding="utf-8"))
    changed = split(graph, name, [groups], silent)
    (folder / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    found = json.loads(called("check", folder / "changed.json", "--json", status=1))
    assert "EP-8" in {one["rule"] for one in found["violations"]}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", ["dispatch", "combine"])
def test_exchange_in_two_rounds_is_legal_where_they_reach_everybody(folder: Path, scope: str, name: str) -> None:
    graph = json.loads((folder / f"{scope}.json").read_text(encoding="utf-8"))
    for rounds, status in (([HALVES, ACROSS], 0), ([ACROSS, HALVES], 0), ([HALVES, HALVES], 1)):
        (folder / "changed.json").write_text(json.dumps(split(graph, name, rounds)), encoding="utf-8")
        called("check", folder / "changed.json", status=status)


def test_exchange_inside_a_rank_is_illegal_where_tokens_are_to_be_sent(folder: Path) -> None:
    graph = split(json.loads((folder / "replica.json").read_text(encoding="utf-8")), "dispatch", [ALONE], silent=True)
    nodes = [node | {"op": "memory", "stream": "compute"} if node["name"] == "dispatch" else node
             for node in graph["nodes"]]  # fmt: skip
    (folder / "changed.json").write_text(json.dumps(graph | {"nodes": nodes}), encoding="utf-8")
    assert "dispatch joins 1 rank of the 4" in called("check", folder / "changed.json", status=1)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", ["dispatch", "combine"])
def test_whole_exchange_that_comes_again_is_no_round_of_it(folder: Path, scope: str, name: str) -> None:
    graph = json.loads((folder / f"{scope}.json").read_text(encoding="utf-8"))
    changed = split(graph, name, [[range(4)], [range(4)]], silent=True)
    for node in changed["nodes"]:
        node["name"] = f"moe_{node['name']}" if node["name"] == name else node["name"]
    (folder / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    found = json.loads(called("check", folder / "changed.json", "--json", status=1))
    assert {one["rule"] for one in found["violations"]} == {"EP-2"}


@pytest.mark.parametrize("scope", SCOPES)
def test_exchanges_of_layers_that_nobody_says_are_no_rounds(folder: Path, scope: str) -> None:
    graph = json.loads((folder / f"{scope}.json").read_text(encoding="utf-8"))
    changed = split(graph, "dispatch", [ACROSS, HALVES])
    for node in changed["nodes"]:
        if node["name"] in ("dispatch", "combine"):
            del node["layer"]
    (folder / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    called("check", folder / "changed.json", status=3)


def test_two_groups_at_a_time_hand_nothing_on_to_each_other() -> None:
    assert apart(range(3), [[(0, 1), (1, 2)]]) == {0: frozenset({0, 1}), 2: frozenset({1, 2})}
    assert apart(range(3), [[(0, 1)], [(1, 2)], [(0, 1)]]) == {}
    assert apart(range(2), [[(0, 1, 7)]]) == dict.fromkeys((0, 1), frozenset({0, 1, 7}))


def spans(
    exchanges: dict[str, Sequence[Groups]], stream: str = "comm", step: Sequence[int] = (0, 0, 0, 0)
) -> list[tuple[object, ...]]:
    """Return spans of one layer on four ranks, of which groups take exchanges in rounds; without rounds each alone."""
    rows: list[tuple[object, ...]] = []
    for at, operator in enumerate(("gate", "dispatch", "expert_up", "combine", "aggregate")):
        begins, rounds = 10 * at, exchanges.get(operator, [] if operator in ("dispatch", "combine") else None)
        if not rounds:
            own = "compute" if rounds is None else stream
            rows += [(begins, begins + 10, rank, own, "moe", operator, 0, step[rank], -1) for rank in range(4)]
        for depth, groups in enumerate(rounds or ()):
            starts, lasts = begins + 10 * depth // len(rounds or ()), 10 // len(rounds or ())
            met = [(100 * at + 10 * depth + number, rank) for number, own in enumerate(groups) for rank in own]
            rows += [(starts, starts + lasts, rank, stream, "moe", operator, 0, step[rank], one) for one, rank in met]
    return rows


WHOLE = [[0, 1, 2, 3]]
GIVEN = [("tp=4", "ep=4"), ("tp=2", "dp=2", "ep=4", "ep_scope=global"), ("dp=4", "ep=4")]


@pytest.mark.parametrize("name", ["dispatch", "combine"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("rounds", [[ALONE], [HALVES], [ACROSS], [HALVES, HALVES]], ids=str)
def test_spans_of_a_split_exchange_are_illegal(
    tmp_path: Path, name: str, given: Sequence[str], rounds: Sequence[Groups]
) -> None:
    table = spans({"dispatch": [WHOLE], "combine": [WHOLE]} | {name: rounds})
    assert "EP-8: replica 0" in audited(tmp_path, table, given)


def test_spans_of_ranks_that_exchange_alone_are_illegal_whoever_shares_experts(tmp_path: Path) -> None:
    table = spans({"dispatch": [ALONE], "combine": [HALVES]})
    assert "EP-8: replica 0" in audited(tmp_path, table, ("tp=2", "dp=2", "ep=2"))  # no scope is given
    assert "EP-8: replica 0" in audited(tmp_path, spans({"combine": [WHOLE]}), ("tp=4", "ep=4"))


@pytest.mark.parametrize(
    ("rounds", "given", "step"),
    [
        ([WHOLE], GIVEN[0], (0, 0, 0, 0)),
        ([WHOLE], GIVEN[1], (0, 0, 7, 7)),  # each replica counts its own steps
        ([HALVES, ACROSS], GIVEN[0], (0, 0, 0, 0)),
        ([HALVES, ACROSS], GIVEN[1], (0, 0, 7, 7)),
        ([HALVES], ("tp=2", "dp=2", "ep=2"), (0, 0, 0, 0)),
        ([WHOLE], ("tp=2", "dp=2", "ep=2"), (0, 0, 0, 0)),
    ],
)
def test_spans_of_an_exchange_that_reaches_everybody_keep_rule(
    tmp_path: Path, rounds: Sequence[Groups], given: Sequence[str], step: Sequence[int]
) -> None:
    told = audited(tmp_path, spans({"dispatch": rounds, "combine": rounds}, step=step), given)
    assert "EP-8" not in told
    assert "rules found nothing wrong" in told


@pytest.mark.parametrize(
    ("exchanges", "stream", "given", "answer"),
    [
        ({}, "compute", ("tp=4", "ep=4"), "have no say"),  # tokens stay, and an all-reduce sums
        ({"dispatch": [ALONE], "combine": [ALONE]}, "comm", ("tp=4", "ep=1", "top_k=2"), "have no say"),
        ({}, "comm", ("tp=4", "ep=4"), "not checkable"),  # nobody says who meets
    ],
)
def test_spans_without_an_exchange_are_not_illegal(
    tmp_path: Path, exchanges: dict[str, Sequence[Groups]], stream: str, given: Sequence[str], answer: str
) -> None:
    told = audited(tmp_path, spans(exchanges, stream), given)
    assert "illegal" not in told
    assert any(answer in line and "EP-8" in line for line in told.splitlines())


def audited(folder: Path, rows: Sequence[Sequence[object]], given: Sequence[str]) -> str:
    file = folder / "spans.csv"
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["start_ns", "end_ns", "rank", "stream", "module", "name", "layer", "step", "group"])
        writer.writerows(rows)
    words = [word for one in given for word in ("--given", one)]
    return CliRunner().invoke(main, ["audit", str(file), *words]).output
