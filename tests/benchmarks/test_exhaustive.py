"""A search that prunes against one that simulates every plan: the best, the bounds, and the front; or some of them.

``pytest tests/benchmarks -m benchmark -s -k exhaustive`` prints what the guide on many runs keeps. The smallest
question takes minutes, the others an hour. ``-k left_out`` draws plans from those that a search left out; a second
start goes on where it was.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.cli.commands.search import FRONT
from clustersim.limits import Limits
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.finals import TIES, at_length
from clustersim.search.plans.grid import rate_of, step_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import Question
from clustersim.search.plans.room import room_of
from clustersim.search.plans.search import Search, found_by
from clustersim.search.plans.space import PARTITIONS, TYPICAL
from clustersim.search.plans.trial import try_rate
from clustersim.search.point import Row
from clustersim.search.runs import Variants

pytestmark = pytest.mark.benchmark

QUESTIONS: Final = {
    "8B on 2 H100": ("quickstart", "--set", "model=llama-3.1-8b", "--devices", "2", "--lasting", "5 s"),
    "8B on 4 H100": ("quickstart", "--set", "model=llama-3.1-8b", "--devices", "4", "--exactly", "--lasting", "5 s"),
    "70B on 8 H100": ("quickstart", "--devices", "8", "--exactly"),
    "DeepSeek-V3 on 8 H200": ("deepseek-v3-wide-ep", "--topology", "dgx-h200", "--devices", "8", "--exactly",
                              "--targets", "ttft=2 s, tpot=100 ms"),
}  # fmt: skip
TIE: Final = 0.97


def searched(folder: Path, *args: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a search prints, and its table of plans."""
    told = CliRunner().invoke(main, ["search", *args, "--workers", "1", "--out", str(folder), "--json"])
    assert told.exit_code == 0, told.stderr
    return json.loads(told.stdout), pq.read_table(folder / "points.parquet").to_pylist()


def best_three(told: Mapping[str, Any]) -> list[float]:
    """Return what the best three plans reach at length."""
    return [one["value"] for one in told["certificate"]["finalists"][:3]]


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_exhaustive_search_finds_no_better_plan_and_none_above_its_bound(tmp_path: Path, question: str) -> None:
    alone, _ = searched(tmp_path / "pruned", *QUESTIONS[question], "--effort", "all", "--front", "1")
    quick, pruned = searched(tmp_path / "pruned", *QUESTIONS[question], "--effort", "all")
    whole, every = searched(tmp_path / "every", *QUESTIONS[question], "--exhaustive", "--front", "0")
    bounds = {one["words"]: one["bound"] for one in (*pruned, *every) if one["bound"] is not None}
    shares = [one["reached"] / bounds[one["words"]] for one in every if one["reached"] and one["words"] in bounds]
    three = [mine / other for mine, other in zip(best_three(quick), best_three(whole), strict=False)]
    before, front = (one["certificate"]["hypervolume"] / whole["certificate"]["hypervolume"] for one in (alone, quick))
    possible = whole["certificate"]["hypervolume"] / whole["certificate"]["front"]["possible"]
    more = quick["certificate"]["runs"] - alone["certificate"]["runs"]
    print(
        f"\n  {question}: {whole['legal']:,} legal plans, {quick['simulated']:,} simulated of them; best "
        f"{quick['best']['plan']} | {whole['best']['plan']}; best three {', '.join(f'{one:.3f}' for one in three)} of "
        f"those of all; highest {max(shares):.3f} of its bound; hypervolume {before:.3f}, with "
        f"the front ({more:,} runs more) {front:.3f}; of what is "
        f"possible {possible:.3f}"
    )
    assert max(shares) <= 1.0
    assert possible <= 1.0
    assert front >= 0.99
    assert quick["best"]["value"] >= TIE * whole["best"]["value"]


KINDS: Final = {RATE: (2, 8), "looks": (2, 8), "runs": (1, 0), "open": (2, 2), "parted": (0, 4), "least TPOT": (1, 3)}
"""Of each kind of plans that were left out: those that may reach most, and how many of the others are drawn. What the
first one reaches is found out; of the others, whether they fail where they are known to."""
LONE: Final = 0.05
"""Of the rate of the best plan: who misses a target even alone is asked for so little."""


def kind_of(one: Standing) -> str:
    """Return why a plan was left out, in a word or so."""
    if one.fate == "screened":
        return "looks" if one.row is None else "runs"
    return one.why if one.fate == "pruned" else one.fate


def drawn(search: Search, standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    """Return some plans of each kind: those that may reach most, then others at random, always the same; and some whose
    prompts are parted otherwise than those of the plans that stand for them."""
    draws, found = random.Random(14), dict[str, list[Standing]]()
    kinds = {kind: [one for one in standings if kind_of(one) == kind] for kind in KINDS}
    kinds["parted"] = [one for kind in (RATE, "looks") for one in kinds[kind] if one.partitions > 1]
    for kind, (highest, others) in KINDS.items():
        some = sorted(kinds[kind], key=lambda one: (one.bound.tpot_ms or 0.0) - one.highest * search.worth(one) * 1e6)
        found[kind] = some[:highest] + draws.sample(some[highest:], min(others, len(some[highest:])))
        print(f"  {kind}: {len(found[kind])} of {len(some):,}")
    found["parted"] = [parted_otherwise(one, draws) for one in found["parted"]]
    return found


def parted_otherwise(one: Standing, draws: random.Random) -> Standing:
    """Return a plan of which another one, with the typical partition of prompts, stands for."""
    first, *others = one.candidate.replicas
    sp = replace(first.plan.sp, partition=draws.choice([other for other in PARTITIONS if other != TYPICAL]))
    candidate = replace(one.candidate, replicas=(replace(first, plan=replace(first.plan, sp=sp)), *others))
    return replace(one, candidate=candidate, words=candidate.words(), alone=None, looked=frozenset(), failed=None)


def turns(kinds: Mapping[str, Sequence[Standing]]) -> list[tuple[str, Standing]]:
    """Return plans of all kinds in turn, so that what is done of it tells of each."""
    each = [[(kind, one) for one in some] for kind, some in kinds.items()]
    return [one for some in itertools.zip_longest(*each) for one in some if one is not None]


def reached_by(search: Search, one: Standing, step: int, *, once: bool) -> float:
    """Return the rate that a plan bears at full length, looked for from a step down, or there alone: 0 where it bears
    none; the rate at that step where it bears that."""

    def run(asked: Sequence[tuple[Standing, int, int]]) -> list[Row]:
        rows = search.rows((search.trial_at(one, step, share) for one, step, _ in asked), try_rate)
        assert [row["failed"] for row in rows] == [None] * len(rows)
        return rows

    share = search.question.share
    if once:
        return rate_of(step) if run([(one, step, 0)])[0]["numbers"]["goodput.share"] >= share else 0.0
    return at_length([replace(one, passed=step, failed=step, passing={})], run, seeds=1, share=share)[0].capacity


def test_of_plans_that_a_search_left_out_none_is_above_its_bound_or_better_than_the_best(
    request: pytest.FixtureRequest,
) -> None:
    variants = Variants("quickstart", limits=Limits(memory_bytes=8e9, seconds=1e6))
    room, always = room_of(variants.scenario(), devices=64, exactly=True, usd=None)
    question = Question(
        room=room,
        share=0.9,
        lasting_s=100.0,
        objective="capacity_per_device",
        exhaustive=False,
        effort_s=180.0,
        front=FRONT,
    )
    kept, above = request.config.cache.mkdir("left-out"), []
    with opened("local", 1) as executors, opened_journal(kept) as journal:
        search = Search(Deployments(variants, [], always), question, executors, journal)
        found = found_by(search)
        best, before = found.value(found.best), search.ran
        print(
            f"\n  {found.legal:,} legal plans; best {found.best.standing.words}: {best:.4g}; settled: {found.settled}"
        )
        kinds = drawn(search, found.standings)
        most, highest = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
        for kind, one in turns(kinds):
            lone, worth, at = kind == "least TPOT", search.worth(one), kinds[kind].index(one)
            least = step_of(LONE * best / worth)
            for place in (1, 0):
                search.looks.look([(one, least)], place, plain=True)
            step = least if lone else one.failing
            assert step is not None
            known, once = rate_of(step), lone or at > 0
            reached = reached_by(search, one, step, once=once)
            most[kind] = max(most[kind], (known if once else reached) * worth)
            highest[kind] = max(highest[kind], 0.0 if once else reached / known)
            above += [(one.words, reached, known)] if reached >= known else []
            told = f"fails at {known * worth:.4g}" if once else f"{reached * worth:.4g}, {known * worth:.4g} at most"
            print(f"  {kind}: {one.words}: {told}", flush=True)
    for kind, value in most.items():
        print(f"  {kind}: reaches {highest[kind]:.3f} of what is known, all less than {value / best:.3f} of the best")
    print(f"  {search.ran - before} runs")
    assert above == []
    assert max(most.values()) <= best * (1.0 + TIES)
