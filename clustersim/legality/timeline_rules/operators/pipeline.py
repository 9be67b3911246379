"""PP-2, PP-3, PP-4: stages wait for one another and follow in order; a sequence is in one micro-batch."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, judged, lacking, merged
from clustersim.legality.history import KINDS, STREAMS, SpanTable
from clustersim.legality.timeline_rules.operators.halves import halves_apart
from clustersim.legality.timeline_rules.transfers.carried import payloads
from clustersim.legality.timeline_rules.views.arrivals import Arrivals
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.occupation import order_key
from clustersim.legality.timeline_rules.views.reading import Reading


def after_arrival(reading: Reading) -> Finding:
    """PP-2: a stage starts on a micro-batch when the whole output of the stage before has arrived on every rank."""
    arrivals = reading.arrivals
    return NOTHING if arrivals is None else merged(_in_time(reading, arrivals), _sent_early(reading), _payload(reading))


def _in_time(reading: Reading, arrivals: Arrivals) -> Finding:
    if reading.history.folded is None and not len(arrivals.sends.at):
        return lacking("when outputs arrive (no spans of the stream send were recorded)")
    words = (
        "starts at {start:,} ns on an output that stage {before.stage} never sent",
        "starts at {start:,} ns, but the output of stage {before.stage} arrives at {arrived:,} ns",
    )
    judging = FindingOfParts("start a stage when the output of the one before it has arrived on every rank")
    for some, passes, following in arrivals.parts():
        sends = arrivals.sends.of(some)
        arrived, sent = sends.ends.max(axis=1, initial=0), sends.has == 1  # outputs of ranks that idle need not arrive
        known = (passes.stage < reading.declared.pp - 1) & (following >= 0)
        start = np.where(known, arrivals.passes.start[following], 0)
        broken = known & (~sent | (start < arrived)) & (start >= passes.start)
        judging.look(
            int(known.sum()), broken, Rows(arrivals.passes, following), Rows(words, sent), start=start,
            before=Rows(passes), arrived=arrived,
        )  # fmt: skip
    return judging.finding


def _computed(spans: SpanTable) -> Int64Array:
    """Return the spans that make what a stage hands on: work on its layers, but for moves of K/V."""
    moves = np.array([name.startswith("kv_") for name, _, _ in spans.symbols], bool)
    columns = spans.columns
    found = (columns["stream"] == STREAMS.index("compute")) & (columns["layer"] >= 0)
    return np.flatnonzero(found & ~moves[columns["symbol"]])


def _sent_early(reading: Reading) -> Finding:
    """Judge whether a rank sends its output when it is computed; a send that names what it needs is RUN-2's."""
    spans = reading.history.spans
    if spans is None or not spans.numbered:
        return NOTHING
    columns = {name: values.astype(np.int64) for name, values in spans.columns.items() if name not in ("bytes",)}
    place = order_key(columns["replica"], columns["rank"], columns["step"])
    sends, made = np.flatnonzero(columns["stream"] == STREAMS.index("send")), _computed(spans)
    if spans.after is not None:
        sends = sends[~np.isin(sends, spans.after[1])]
    whole = Groups(place[made])
    at = whole.find(place[sends])
    ends = np.append(whole.most(columns["end_ns"][made]), 0)[at]
    start = columns["start_ns"][sends]

    return judged(
        int((at >= 0).sum()), (at >= 0) & (start < ends),
        "replica {send.replica}, stage {send.stage}, step {send.step}, rank {send.rank}",
        "sends its output at {start:,} ns, but computes it until {end:,} ns",
        "send the output of a stage when it is computed", send=Rows(columns, sends), start=start, end=ends,
    )  # fmt: skip


def _payload(reading: Reading) -> Finding:
    """Judge whether sends carry tokens × hidden × bytes: whole on every TP rank, or in parts that sum to it."""
    spans, runs, declared = reading.history.spans, reading.runs, reading.declared
    if reading.history.folded is not None:
        return payloads(reading)
    told = None if spans is None else spans.columns.get("bytes")
    if spans is None or told is None:
        return lacking("what was sent (no bytes of sends were recorded)")
    prefills = None if runs is None else runs.column("prefill_tokens")
    decodes = None if runs is None else runs.column("decode_tokens")
    if runs is None or prefills is None or decodes is None or declared.hidden_bytes is None:
        return lacking("what should have been sent (hidden_bytes, or the tokens of steps, were not told)")
    replica, stage, step = (spans.columns[name].astype(np.int64) for name in ("replica", "stage", "step"))
    sends = np.flatnonzero(spans.columns["stream"] == STREAMS.index("send"))
    sends = sends[runs.at(replica[sends], step[sends]) >= 0]
    passes = Groups(order_key(replica[sends], stage[sends], step[sends]))
    first = sends[passes.some]
    tokens = (prefills + decodes)[runs.at(replica[first], step[first])]
    sums = np.bincount(passes.find(order_key(replica[sends], stage[sends], step[sends])), told[sends])
    known = passes.least(told[sends]) >= 0
    wanted = tokens.astype(np.float64) * declared.hidden_bytes
    whole = " (or {whole:,.0f}, whole from each of {declared.tp} TP ranks)" if declared.tp > 1 else ""
    return judged(
        int(known.sum()), known & (sums != wanted) & (sums != wanted * declared.tp),
        "replica {replica}, stage {stage}, step {step}",
        "sends {sums:,.0f} bytes, where {tokens:,} tokens × {declared.hidden_bytes:,} bytes are {wanted:,.0f}" + whole,
        "send the hidden state of every token of the step", replica=Rows(replica, first), stage=Rows(stage, first),
        step=Rows(step, first), sums=sums, tokens=tokens, declared=declared, wanted=wanted, whole=wanted * declared.tp,
    )  # fmt: skip


def stages_in_order(reading: Reading) -> Finding:
    """PP-3: stages of a step follow in order; under ``decode_overlap: none`` one decode step is in flight at a time."""
    findings = []
    arrivals = reading.arrivals
    if arrivals is not None:
        if not len(arrivals.sends.at):
            findings.append(_apart(reading))
        judging, every = FindingOfParts("run the stages of a step in order"), arrivals.passes
        for _, passes, following in arrivals.parts():
            known = following >= 0
            judging.look(
                int(known.sum()), known & (every.start[following] < passes.start), Rows(every, following),
                "starts at {start:,} ns, before stage {known.stage} of the same step at {known.start:,} ns",
                known=Rows(passes),
            )  # fmt: skip
        findings.append(judging.finding)
    runs = reading.runs
    if runs is not None and reading.declared.decode_overlap == "none":
        tokens = runs.column("decode_tokens")
        kinds = runs.column("kind")
        decodes = tokens > 0 if tokens is not None else (kinds != KINDS.index("prefill") if kinds is not None else None)
        if decodes is not None:
            rows = np.flatnonzero(decodes)
            same = runs.replica[rows][1:] == runs.replica[rows][:-1]
            findings.append(judged(
                int(same.sum()), same & (runs.start[rows][1:] < runs.end[rows][:-1]), Rows(runs, rows[1:]),
                "a decode step starts at {start:,} ns, while that of step {before.last_step} is in flight until "
                "{before.end:,} ns",
                "wait for the decode step in flight, or declare decode_overlap: per_sequence", before=Rows(runs, rows),
            ))  # fmt: skip
    return merged(*findings)


def _apart(reading: Reading) -> Finding:
    """Judge, where no sends were recorded, whether a stage starts on a step when the one before it has computed it."""
    spans = reading.history.spans
    if spans is None:
        return NOTHING
    rows = _computed(spans)
    replica, stage, step, start, end = (
        spans.columns[name][rows].astype(np.int64) for name in ("replica", "stage", "step", "start_ns", "end_ns")
    )
    passes = Groups(order_key(replica, stage, step))
    before = passes.find(order_key(replica, stage - 1, step)[passes.some])
    at = np.flatnonzero((stage[passes.some] > 0) & (before >= 0))
    first, until = passes.least(start)[at], passes.most(end)[before[at]]
    begun = passes.least(start)[before[at]]  # one that starts before that is told as such
    some = passes.some[at]
    return judged(
        len(at), (first < until) & (first >= begun), "replica {replica}, stage {stage}, step {step}",
        "starts at {first:,} ns, but stage {before} computes the same step until {until:,} ns",
        "run the stages of a step one after the other", replica=Rows(replica, some), stage=Rows(stage, some),
        step=Rows(step, some), first=first, before=Rows(stage - 1, some), until=until,
    )  # fmt: skip


def in_one_batch(reading: Reading) -> Finding:
    """PP-4: no sequence is in two micro-batches at a time, and micro-batches of one step need nothing of each other."""
    pieces = reading.pieces
    if pieces is None:
        return halves_apart(reading)
    split = judged(
        len(pieces), reading.split, Rows(pieces),
        "request {request} is in another micro-batch from step {before.first_step} to {before.last_step}",
        "put each sequence into one micro-batch", before=Rows(pieces, range(-1, len(pieces))),
    )  # fmt: skip
    return merged(split, halves_apart(reading))
