"""RUN: what any simulation owes, whatever the plan."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule

RUN: Final = (
    Rule(
        id="RUN-1",
        levels=("G",),
        statement=(
            "The step graph is acyclic and connected; every compute node is bound to a device and every "
            "communication node to its set of devices."
        ),
        why="A cycle never runs, an orphan runs nowhere.",
        source="RULES.md: RUN, the run itself",
        example="a cycle; an orphan",
    ),
    Rule(
        id="RUN-2",
        levels=("T",),
        statement=(
            "An operator starts when all that it depends on has ended and its stream is free, not before and not "
            "after, and runs for what it costs by the declared cost model; longer only under declared contention."
        ),
        why="A timeline that is faster than its operators is wrong, and so is one that idles without a reason.",
        source="RULES.md: RUN, the run itself",
        example="an early or a late start; a shortened operator",
    ),
    Rule(
        id="RUN-3",
        levels=("T",),
        statement=("A device stream runs one operator at a time; a link never carries more than its capacity."),
        why="Hardware does not do two things in the place of one.",
        source="RULES.md: RUN, the run itself",
        example="an overlap; 101 % of a link",
    ),
    Rule(
        id="RUN-4",
        levels=("T",),
        statement=(
            "Every admitted request ends finished, rejected with a reason, or unfinished at the horizon; "
            "none is lost, and arrivals are the sum."
        ),
        why="Latencies of requests that are lost look good.",
        source="RULES.md: RUN, the run itself",
        example="lose a request",
    ),
    Rule(
        id="RUN-5",
        levels=("T",),
        statement=(
            "The same scenario and seed give the same timeline, bit for bit, on every machine and under "
            "every replay mode: who is served when, and when K/V moves, follows what the scenario declares of serving."
        ),
        why="A result that can't be repeated can't be defended.",
        source="RULES.md: RUN, the run itself",
        example="a chunk above long_prompt_tokens; a transfer that starts before one that was asked for earlier; "
        "another run of the same scenario with another digest",
    ),
)
