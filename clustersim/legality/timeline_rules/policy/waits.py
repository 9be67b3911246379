"""RUN-5: no request waits longer than ``queue_timeout``, or at all beyond the context window; loops and turns wait."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, judged, merged
from clustersim.legality.history import ADMITTED, ARRIVED, CANCELLED, FINISHED, LOST, REJECTED
from clustersim.legality.timeline_rules.policy.declared import NEVER, Policies
from clustersim.legality.timeline_rules.views.reading import Reading

TIMELY: Final = "reject a request when it has waited as long as serving.queue_timeout says, and is not admitted"
WINDOW: Final = "turn away, as it comes, a request that is longer with its output than the context window"
TURNS: Final = "let a turn of a session arrive when the workload says, or else when the turn before it ends"
CLOSED: Final = "let the next request of a closed loop arrive when one ends, and not before"


def as_long_as_declared(reading: Reading, policies: Policies) -> Finding:
    """Judge which requests may wait, when those that do are rejected, and when those of a closed loop arrive."""
    facts, requests = reading.history.facts, reading.history.requests
    if facts is None or requests is None:
        return NOTHING
    count = max(len(requests["prompt_tokens"]), int(facts["request"].max(initial=-1)) + 1)
    return merged(
        _in_time(reading, policies, count), _in_window(reading, policies), _closed_loop(reading, count),
        _in_turn(reading, count),
    )  # fmt: skip


def _in_time(reading: Reading, policies: Policies, count: int) -> Finding:
    policy, horizon = policies.pools[0].policy, reading.declared.horizon_ns
    assert policy is not None
    came, admitted, rejected, left = (
        reading.residency.first_ns(count, *kinds) for kinds in ((ARRIVED,), (ADMITTED,), (REJECTED,), (CANCELLED, LOST))
    )
    waited = (came < NEVER) & (rejected < NEVER)
    timeout = policy.queue_timeout_ns
    due = np.full(count, NEVER)
    if timeout is not None:
        some = came < NEVER - timeout
        due[some] = came[some] + timeout
    early = waited & (rejected != due)
    stays = (due < (NEVER if horizon is None else horizon)) & (rejected == NEVER) & (admitted >= due) & (left > due)

    def message(i: int) -> str:
        if due[i] == NEVER:
            return f"is rejected at {rejected[i]:,} ns, after it had joined a queue, and no queue_timeout is declared"
        if not stays[i]:
            return f"is rejected at {rejected[i]:,} ns, and waits until {due[i]:,} ns by its queue_timeout"
        return f"is not admitted by {due[i]:,} ns, which is its queue_timeout, and not rejected then"

    wrong = early | stays | (waited & (admitted < rejected))
    return judged(int((due < NEVER).sum()), wrong, "request {at}", message, TIMELY)


def _in_window(reading: Reading, policies: Policies) -> Finding:
    policy, requests = policies.pools[0].policy, reading.history.requests
    assert policy is not None
    assert requests is not None
    window = policy.context_window
    if window is None:
        return NOTHING
    tokens = requests["prompt_tokens"].astype(np.int64) + requests["output_tokens"]
    beyond = tokens > window
    if beyond.any():
        beyond &= reading.residency.first_ns(len(tokens), ARRIVED) < NEVER
    return judged(
        len(tokens), beyond, "request {at}",
        "is let in with {tokens:,} tokens, its output included, where serving.context_window is {window:,}", WINDOW,
        tokens=tokens, window=window,
    )  # fmt: skip


def _closed_loop(reading: Reading, count: int) -> Finding:
    loop = reading.history.concurrency
    if loop is None:
        return NOTHING
    came = reading.residency.first_ns(count, ARRIVED, REJECTED)
    ended = reading.residency.first_ns(count, FINISHED, CANCELLED, REJECTED, LOST)
    came, ended = np.sort(came), np.sort(ended)
    due = np.concatenate((np.zeros(min(loop, count), np.int64), ended[: max(0, count - loop)]))
    return judged(
        count, came != due, "request {at}", "{came}, and {due} in a loop of {loop:,}", CLOSED, loop=loop,
        came=lambda i: "never arrives" if came[i] == NEVER else f"arrives at {came[i]:,} ns",
        due=lambda i: "no request has ended" if due[i] == NEVER else f"is due at {due[i]:,} ns",
    )  # fmt: skip


def _in_turn(reading: Reading, count: int) -> Finding:
    """Judge whether each turn of a session arrives when it was recorded, or else when the turn before it ends."""
    requests = reading.history.requests
    assert requests is not None
    if "follows" not in requests:
        return NOTHING
    follows, recorded = requests["follows"], requests["recorded_ns"]
    came = reading.residency.first_ns(count, ARRIVED, REJECTED)[: len(follows)]
    ended = reading.residency.first_ns(count, FINISHED, CANCELLED, REJECTED, LOST)
    before = np.where(follows < 0, 0, ended[np.maximum(follows, 0)])
    due = np.maximum(recorded, before)
    cut = NEVER if reading.declared.horizon_ns is None else reading.declared.horizon_ns
    return judged(
        len(due), (came != due) & ((came < NEVER) | (due < cut)), "request {at}",
        "{came}, is recorded at {recorded:,} ns, and {before}", TURNS, recorded=recorded,
        came=lambda i: "never arrives" if came[i] == NEVER else f"arrives at {came[i]:,} ns",
        before=lambda i: "waits for no turn" if follows[i] < 0 else f"the turn before it, request {follows[i]}, " + (
            "never ends" if before[i] == NEVER else f"ends at {before[i]:,} ns"
        ),
    )  # fmt: skip
