"""A hunt for scenarios on which the replays differ: ``python -m tests.laws.hunt --examples 2000 --seed 7``.

It draws other scenarios than the suite does, tells how many agreed and what they were like, and ends with the
smallest one that did not. ``--only everything`` draws from all features together, ``pools``, ``swaps`` and ``traces``
mostly those of two pools, of sequences that are swapped, and of recorded requests, ``rare`` what seldom comes together;
they also audit each run and the run directory that it leaves, and account for every request (``tests.laws.accounts``).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.replay.core_replicas import MAX_RUN
from tests.laws.accounts import account_for
from tests.laws.agreement import Seen, agree
from tests.laws.cases import (
    case_input,
    cases,
    clocked,
    clocked_hand_overs,
    clocked_splits,
    grouped_hand_overs,
    hand_overs,
    sharing,
    split_hand_overs,
    splits,
)
from tests.laws.everything import ALL, features
from tests.laws.random_scenarios import crowd_input, crowds

WINDOWS = st.tuples(st.floats(0, 1), st.floats(0, 0.3))
MOST = st.sampled_from((MAX_RUN, MAX_RUN, 1, 2, 7))
STRATEGIES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "rounds": (cases(), case_input),
    "clocks": (clocked(), case_input),
    "hand-overs": (hand_overs(), case_input),
    "clocked-hand-overs": (clocked_hand_overs(), case_input),
    "sharing": (sharing(), case_input),
    "splits": (splits(), case_input),
    "clocked-splits": (clocked_splits(), case_input),
    "split-hand-overs": (split_hand_overs(), case_input),
    "grouped-hand-overs": (grouped_hand_overs(), case_input),
    "crowds": (crowds(), crowd_input),
}
"""Deployments of round numbers, without and with more than arrivals to decide, of one pool, of two, with prompts that
share prefixes or are split over SP ranks; scenarios of real models and fabrics."""


def hunt(name: str, examples: int, seed: int) -> Counter[str]:
    """Compare the replays on ``examples`` random scenarios; return how many were what."""
    counts: Counter[str] = Counter()
    if name in ALL:
        _account(ALL[name], examples, seed, counts)
        return counts
    strategy, make = STRATEGIES[name]

    @hypothesis.seed(seed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy, WINDOWS, MOST)
    def law(drawn: Any, window: tuple[float, float], most: int) -> None:
        count(counts, agree(make(drawn), window, most))

    law()
    return counts


def _account(drawn: st.SearchStrategy[dict[str, Any]], examples: int, seed: int, counts: Counter[str]) -> None:
    """Hold random scenarios to what holds of every run."""

    @hypothesis.seed(seed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawn)
    def law(document: dict[str, Any]) -> None:
        outcomes = account_for(document)
        counts.update({"agreed": 1, "requests": outcomes.total()} | features(document) | outcomes)

    law()


def count(counts: Counter[str], seen: Seen) -> None:
    """Count a scenario that agreed."""
    counts["agreed"] += 1
    counts[f"by {seen.how}"] += 1
    for what in ("preempted", "contended", "arrived_at_an_end", "ended_by_horizon"):
        counts[what.replace("_", " ")] += getattr(seen, what)


def main() -> None:
    """Hunt, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="scenarios of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted((*STRATEGIES, *ALL)), help="one kind of scenario")
    chosen = parser.parse_args()
    for name in [chosen.only] if chosen.only else STRATEGIES:
        started = time.perf_counter()
        counts = hunt(name, chosen.examples, chosen.seed)
        listed = ", ".join(f"{number:,} {what}" for what, number in counts.items())
        print(f"{name}, seed {chosen.seed}: {listed} ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
