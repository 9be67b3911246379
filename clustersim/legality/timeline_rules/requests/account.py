"""RUN-4, RUN-5: every request is accounted for, and the same run gives the same history."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    REJECTED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.requests.census import numbers_told
from clustersim.legality.timeline_rules.requests.failing import lost_as_declared
from clustersim.legality.timeline_rules.requests.giving_up import given_up
from clustersim.legality.timeline_rules.requests.told import instants_of_requests
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import at_rest
from clustersim.timeline.columns import is_any


def none_lost(reading: Reading) -> Finding:
    """RUN-4: each request arrives once and ends once, or is cut off by the horizon.

    It ends finished, rejected with a reason, given up by its client, or lost when what served it failed.

    A rejected request may have a row for its arrival or not. Where no arrival or admission at all was recorded
    elsewhere, nothing follows from the lack of one.
    """
    facts, requests = reading.history.facts, reading.history.requests
    if facts is None:
        return instants_of_requests(reading)
    count = int(facts["request"].max(initial=-1)) + 1
    if requests is not None:
        count = max(count, len(requests["prompt_tokens"]))
    arrived, rejected, admitted, preempted, finished, cancelled, lost, out, back = (
        np.bincount(facts["request"][facts["kind"] == kind], minlength=count)
        for kind in (
            ARRIVED,
            REJECTED,
            ADMITTED,
            PREEMPTED,
            FINISHED,
            CANCELLED,
            LOST,
            SWAPPED_OUT,
            SWAPPED_IN,
        )
    )
    left = cancelled + lost
    cut = reading.declared.horizon_ns is not None
    own = reading.history.folded is not None
    came = arrived + rejected > 0
    expected = _expected(reading, came) if own or came.any() else came
    handed_over = np.bincount(facts["request"][facts["kind"] == HANDED_OVER], minlength=count)
    held = admitted - preempted - handed_over
    if cut:  # blocks are set aside where a sequence is to go on before its own come back
        held -= np.bincount(reading.hand_overs.unused, minlength=count)
    tells_admission = own or bool(admitted.any())

    def say(broken: BoolArray, message: str, fix: str, looked: int = 0) -> Finding:
        return judged(looked, broken, "request {at}", message, fix)

    once = "record each request once when it comes, and once when it ends"
    findings = [
        say(expected & ((arrived > 1) | ~came), "does not arrive exactly once", once, looked=count),
        say((finished > 1) | (finished * rejected > 0), "ends more than once", once),
        say((left > 1) | (left * (finished + rejected) > 0), "ends more than once", once),
        say((rejected > 1), "is rejected more than once", once),
        given_up(reading),
    ]
    if own or came.any():
        findings.append(say((finished > 0) & (arrived == 0), "finishes, but never arrived", once))
    else:
        findings.append(lacking("whether each request arrives (no arrivals were recorded)"))
    if tells_admission:
        again = "is admitted, or preempted, twice in a row"
        findings.append(say((held < 0) | (held > 1), again, "admit what waits, preempt what runs"))
        findings.append(say((rejected > 0) & (held > 0), "is rejected, and still admitted", "reject what waits"))
        early = (finished == 1) & (arrived == 1) & (held != 1)
        findings.append(say(early, "finishes without being admitted", "admit it first"))
        findings.append(_admitted_first(reading))
        findings.append(_ended_last(reading, count))
        twice = "is swapped out, or back, twice in a row"
        gone = reading.facts_of(PREEMPTED)
        gone = gone[at_rest(reading.residency)[gone]]
        away = out - back - np.bincount(facts["request"][gone], minlength=count)
        findings.append(say((away < 0) | (away > 1), twice, "swap out what runs, and back what was swapped out"))
        findings.append(say((finished > 0) & (away != 0), "finishes in host memory", "let it come back first"))
    elif (finished > 0).any():
        findings.append(lacking("whether each request is admitted (no admissions were recorded)"))
    if not cut:
        gone = (arrived == 1) & (finished + rejected + left == 0)
        findings.append(say(gone, "arrives and never ends: it is lost", "finish it, or reject it with a reason"))
    findings.append(_reasons(reading, rejected > 0, "rejected"))
    findings.append(_reasons(reading, lost > 0, "lost"))
    findings.append(_after_arrival(reading, count))
    findings.append(instants_of_requests(reading))
    return merged(*findings, _before_horizon(reading), numbers_told(reading), lost_as_declared(reading))


def _admitted_first(reading: Reading) -> Finding:
    """No step carries a request before it was admitted for the first time."""
    pieces, facts = reading.pieces, reading.history.facts
    if pieces is None or facts is None or not len(pieces):
        return NOTHING
    begun, request = pieces.begin[pieces.opens], pieces.request[pieces.opens]
    first = reading.residency.first_ns(int(request.max()) + 1, ADMITTED)[request]
    return judged(
        0, (first > begun) & (first < np.iinfo(np.int64).max), "request {request}",
        "a step carries it from {begun:,} ns, and it is admitted at {first:,} ns", "admit it first", request=request,
        begun=begun, first=first,
    )  # fmt: skip


def _ended_last(reading: Reading, count: int) -> Finding:
    """No request is admitted after it has finished."""
    facts = reading.history.facts
    assert facts is not None
    latest = np.full(count, np.iinfo(np.int64).min)
    rows = reading.facts_of(ADMITTED)
    np.maximum.at(latest, facts["request"][rows], facts["time_ns"][rows])
    ends = reading.facts_of(FINISHED)
    request, time = facts["request"][ends], facts["time_ns"][ends]
    return judged(
        0, latest[request] > time, "request {request}",
        "finishes at {time:,} ns, and is admitted at {latest:,} ns", "finish what was admitted, and end it there",
        request=request, time=time, latest=Rows(latest, request),
    )  # fmt: skip


def _before_horizon(reading: Reading) -> Finding:
    """Nothing is recorded that is decided, or starts, after the history was cut; what runs then may end later."""
    horizon, history = reading.declared.horizon_ns, reading.history
    if horizon is None:
        return NOTHING
    runs, spans = reading.runs, history.spans
    kinds: list[tuple[str, Int64Array]] = []
    if history.facts is not None:
        kinds.append(("a fact", history.facts["time_ns"]))
    if runs is not None:
        kinds.append(("a step", runs.start))
    if spans is not None:
        kinds.append(("an operator", spans.columns["start_ns"]))
    latest = np.array([int(times.max(initial=0)) for _, times in kinds], np.int64)
    return judged(
        0, latest > horizon, "horizon {horizon:,} ns",
        "{kind[0]} is recorded at {latest:,} ns, after the history was cut",
        "record what happened up to the horizon; what is unfinished then stays so", horizon=horizon, kind=kinds,
        latest=latest,
    )  # fmt: skip


def _reasons(reading: Reading, ended: BoolArray, word: str) -> Finding:
    """Judge whether each request that ended in a way has a reason for it."""
    facts, requests = reading.history.facts, reading.history.requests
    assert facts is not None
    explained = np.zeros(len(ended), bool)
    if "explained" in facts:
        explained[facts["request"][is_any(facts["kind"], (REJECTED, LOST)) & (facts["explained"] > 0)]] = True
    elif requests is not None and "explained" in requests:
        explained[: len(requests["explained"])] = requests["explained"] > 0
    elif ended.any():
        told = {"rejected": "rejections have", "lost": "losses have"}[word]
        return lacking(f"whether {told} a reason (none was recorded)")
    broken = ended & ~explained
    return judged(0, broken, "request {at}", "is {word} without a reason", f"say why it was {word}", word=word)


def _expected(reading: Reading, present: BoolArray) -> BoolArray:
    """Return which requests must arrive: all, or those before the horizon; where it is not known, those that do."""
    requests, horizon = reading.history.requests, reading.declared.horizon_ns
    found = present.copy()
    if requests is None:
        return found
    known = len(requests["prompt_tokens"])
    if horizon is None:
        found[:known] = requests["listed"] > 0 if "listed" in requests else True
    elif "arrives_ns" in requests:
        found[:known] |= requests["arrives_ns"] < horizon
    return found


def _after_arrival(reading: Reading, count: int) -> Finding:
    """Nothing is decided for a request before it arrives."""
    facts = reading.history.facts
    assert facts is not None
    came, never = reading.residency.first_ns(count, ARRIVED), np.iinfo(np.int64).max
    kind, request, time = facts["kind"], facts["request"], facts["time_ns"]
    arrived, rejected = kind == ARRIVED, kind == REJECTED
    alone = rejected & (came[request] == never)  # turned away on arrival, with one row for both
    np.minimum.at(came, request[alone], time[alone])
    rows = np.flatnonzero(~arrived & ~alone)
    since = came[facts["request"][rows]]
    early = (facts["time_ns"][rows] < since) & (since < never)
    due = reading.history.requests
    late = NOTHING
    if due is not None and "arrives_ns" in due:
        wanted = due["arrives_ns"]
        late = judged(
            len(wanted), (came[: len(wanted)] != wanted) & (came[: len(wanted)] < never), "request {at}",
            "arrives at {came:,} ns, and in the workload at {wanted:,} ns",
            "let requests arrive when the workload says", came=came, wanted=wanted,
        )  # fmt: skip
    return merged(
        late,
        judged(
            0,
            early,
            "request {fact.request}",
            "something is decided for it at {fact.time_ns:,} ns, before it arrives",
            "decide about a request once it has arrived",
            fact=Rows(facts, rows),
        ),
    )


def repeatable(reading: Reading) -> Finding:
    """RUN-5: what is recorded, and what was recorded of the same run elsewhere or again, is the same."""
    digests = reading.history.digests
    if len(digests) < 2:
        return NOTHING
    (name, digest), *others = digests
    differs = np.array([other != digest for _, other in others], bool)
    return judged(
        len(others), differs, "{other[0]}",
        "the timeline {other[0]} has digest {other[1]:.12}, the one {name} {digest:.12}",
        "repeat a run with its scenario and seed, and nothing else", other=others, name=name, digest=digest,
    )  # fmt: skip
