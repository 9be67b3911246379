"""The causes that time is split into: their names, their kinds, and their columns in ``requests.parquet``."""

from __future__ import annotations

from typing import Final

from clustersim.timeline.step_parts import IDLE, WAIT, Label

FRONT_END: Final = ("front end", "host")
BATCH: Final = ("a place in the batch", "wait")
BLOCKS: Final = ("K/V blocks", "wait")
BUDGET: Final = ("the token budget", "wait")
CHOICE: Final = ("the scheduler's choice", "wait")
STEP: Final = ("a step under way", "wait")
STAGE: Final = WAIT
DEAD: Final = ("a dead replica", "wait")
HAND_OVER: Final = ("a hand-over", "wait")
TRANSFER: Final = ("a transfer", "wait")
PREEMPTED: Final = ("preemption and recomputation", "wait")
PROMPTS: Final = ("prompts of other requests", "wait")
COMPUTE: Final = ("compute", "got")
COMMUNICATION: Final = ("exposed communication", "got")
HOST: Final = ("host time", "got")
BUBBLE: Final = ("bubble", "got")

COLUMNS: Final = {
    "batch_wait_ns": BATCH,
    "blocks_wait_ns": BLOCKS,
    "budget_wait_ns": BUDGET,
    "choice_wait_ns": CHOICE,
    "step_wait_ns": STEP,
    "stage_wait_ns": STAGE,
    "replica_wait_ns": DEAD,
    "hand_over_ns": HAND_OVER,
    "transfer_ns": TRANSFER,
    "preempted_ns": PREEMPTED,
    "interference_ns": PROMPTS,
    "compute_ns": COMPUTE,
    "communication_ns": COMMUNICATION,
    "host_ns": HOST,
    "bubble_ns": BUBBLE,
}
"""Column of ``requests.parquet`` → the cause whose nanoseconds it has; with ``front_end_ns`` they add up."""

WAITS: Final = tuple(label for label in COLUMNS.values() if label[1] == "wait")

_GOT: Final = {"operator": COMPUTE, "collective": COMMUNICATION, "send": COMMUNICATION, "host": HOST}
"""Kind of a part of a step → what it is to a request."""


def by_column(label: Label) -> Label:
    """Return the cause that a part of a step belongs to, where operators are not told apart."""
    return BUBBLE if label == IDLE else _GOT.get(label[1], label)
