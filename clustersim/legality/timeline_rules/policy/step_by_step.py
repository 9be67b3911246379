"""RUN-5: each decision of a replica is the one that the declared scheduler takes of what is there.

What happened on a replica is gone through instant by instant: steps and copies that end, who comes and who leaves. ::

    completions ─► copies, hand-overs ─► arrivals ─► departures ─► a decision, if a step can begin

Whenever a step can begin the decision is worked out anew (``choices``), and compared with the step that begins then, or
with none, and with the facts of that instant in their order. So nobody waits who could go on, and nobody goes on who
should wait. Judged as far as ``MOST`` goes, since it takes time as the replay did; and as long as it is known where
those go that lose their replica (``moved``). Who is there is kept by :class:`Members`.
"""

from __future__ import annotations

from collections.abc import Iterable

from clustersim.legality.finding import Finding, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    FACTS,
)
from clustersim.legality.timeline_rules.policy.choices import Carried
from clustersim.legality.timeline_rules.policy.instants import (
    Fact,
)
from clustersim.legality.timeline_rules.policy.members import Members
from clustersim.legality.timeline_rules.policy.moved import Moved
from clustersim.legality.timeline_rules.policy.sequences import Sequence
from clustersim.legality.timeline_rules.views.reading import Reading


def as_it_must(whole: Reading, parts: Iterable[Reading]) -> Finding:
    """Judge every decision of all replicas, one after the other.

    Parameters
    ----------
    whole : Reading
    parts : iterable of Reading
        What happened inside the replicas of each pool.
    """
    facts, found = whole.history.facts, []
    came = whole.facts_of(ARRIVED)
    arrived = dict(zip(*(facts[name][came].tolist() for name in ("request", "time_ns")), strict=True)) if facts else {}
    for reading in parts:
        replicas = _replicas(reading)
        moved = Moved(whole, reading.declared, told=bool(replicas))
        for number in replicas:
            walk = Walk(reading, number, arrived, moved)
            walk.go()
            found.append(Finding(looked_at=walk.looked_at, faults=tuple(walk.faults[:1])))
    return merged(*found)


def _replicas(reading: Reading) -> list[int]:
    """Return of which replicas decisions follow from what is declared and recorded."""
    history, declared, policy = reading.history, reading.declared, reading.declared.policy
    named = policy is not None and policy.scheduler is not None
    recorded = (history.facts, history.folded, history.chunks, history.decodes, history.requests, reading.runs)
    limits = (declared.block_tokens, declared.pool_blocks, declared.max_batch_requests, declared.max_batch_tokens)
    if not named or any(one is None for one in (*recorded, *limits)):
        return []
    if declared.prefix_caching is not False and reading.prefixes.contents is None:
        return []
    return reading.replicas_of(declared)


class Walk(Members):
    """A walk through what happened on one replica, with each decision that was taken there."""

    def go(self) -> None:
        """Walk until something is wrong, or what follows is not known."""
        now = -1
        for time, _, _, kind, which, value in self.instants.events:
            if time != now and now >= 0:
                self._decide(now)
            now = time
            if self.faults or not self.goes_on:
                return
            self.happens(now, kind, which, value)
        if now >= 0:
            self._decide(now)

    def _decide(self, now: int) -> None:
        """Compare what is decided at an instant with what was recorded, if a step can begin then."""
        within, self.within = self.within, -1
        late = self.at < len(self.steps) and self.steps.begin[self.at] < now
        if late and not self.faults:
            self.wrong(f"begins a step at {self.steps.begin[self.at]:,} ns, when none could begin")
        busy = within < 0 and (not self.free or len(self.flight) >= self.declared.pp)
        if self.faults or busy or self.frozen or self.down:
            return
        if self.together and self._cut_off(now):  # a step that the others take may be under way, and is not recorded
            self.goes_on = False
            return
        facts = [fact for fact in self.instants.decided.get(now, []) if (now, *fact[:2]) not in self.broken_off]
        aside = [fact for fact in facts if fact[0] == ADMITTED and fact[1] not in self.members]
        first = bool(aside) and aside[0][2] - self.blocks.needed(aside[0][3]) == self.blocks.used
        self._set_aside(aside if first else [])
        if within >= 0:
            self._land(within)
        self.looked_at += 1
        self._compare(now, within, self.choices.decide())
        self._compare_told(now, [fact[:3] for fact in facts if fact not in aside])
        self._set_aside([] if first else aside)

    def _land(self, at: int) -> None:
        """Let what a run of steps decodes be there for another decision."""
        for one in self.flight[at][0][0]:
            one.flies = False
        self.choices.decodes_in_flight -= 1

    def _set_aside(self, aside: list[Fact]) -> None:
        """Give blocks to such as are computed elsewhere."""
        for _, request, _, value in aside:
            one = self.comes(request)
            one.computed, one.tokens = value, value - one.prompt + 1
            one.owner = self.blocks.chosen_owner(one)
            self.goes_on &= self.blocks.take(one, value)
            one.away = True
            self.choices.receiving += 1

    def _cut(self, now: int) -> int | None:
        """Return when something cuts off what is under way, or judging ends; None where nothing does."""
        cuts = [
            *[since for since, _ in self.steps.downs if since > now][:1],
            self.steps.until,
            self.declared.horizon_ns,
        ]
        return min((cut for cut in cuts if cut is not None), default=None)

    def _cut_off(self, now: int) -> bool:
        """Return whether a step that begins may not have been recorded: it is under way when something cuts it off."""
        cut = self._cut(now)
        return cut is not None and (self.at == len(self.steps) or self.steps.begin[self.at] >= cut)

    def _ends_before(self, now: int, due: Carried) -> None:
        """Find a step that was not recorded though it would have ended before something cuts it off."""
        cut, (decodes, chunks) = self._cut(now), due
        carried = [(one.computed, one.owner) for one in decodes]
        lasts = self.moved.lasts([(one.computed, count) for one, count in chunks], carried)
        alone = max((self.steps.end[at] for at in self.flight), default=now)  # behind those that are in its stages
        if lasts is not None and cut is not None and alone + lasts <= cut:
            self.wrong(
                f"begins nothing at {now:,} ns, where {_carried(due)} is due, and ends by {alone + lasts:,} ns, before "
                f"anything cuts it off at {cut:,} ns"
            )

    def _compare(self, now: int, within: int, found: Carried | None) -> None:
        """Compare what a decision carries with the step that goes on or begins, or with none."""
        steps = self.steps
        if within >= 0:
            decodes, chunks = found or ([], [])  # nothing: of replicas in lockstep, a step beside those of others
            if chunks or decodes != self.flight[within][0][0]:
                self.wrong(f"goes on with its step at {now:,} ns, where {_carried(found)} is due")
        elif self.at < len(steps) and steps.begin[self.at] == now:
            self._begins(now, *(found or ([], [])))
        elif found is not None and self._cut_off(now):
            self._ends_before(now, found)
            self.frozen = any(since > now for since, _ in steps.downs)
            self.goes_on = self.frozen
        elif found is not None:
            self.wrong(f"begins nothing at {now:,} ns, where {_carried(found)} is due")

    def _begins(self, now: int, decodes: list[Sequence], chunks: list[tuple[Sequence, int]]) -> None:
        """Compare the step that begins with the one that is to."""
        steps, at = self.steps, self.at
        listed = [(one.request, one.computed, count) for one, count in chunks]
        recorded, many = steps.chunks.get(steps.step[at], []), steps.columns["decode_tokens"][at]
        left_out = next((one.request for one in decodes if not steps.decodes(at, one.request)), None)
        if listed != recorded:
            self.wrong(f"prefills {_chunks(recorded)} from {now:,} ns on, where {_chunks(listed)} is due")
        elif len(decodes) != many:
            self.wrong(f"decodes {many:,} sequences from {now:,} ns on, where {len(decodes):,} are due")
        elif left_out is not None:
            self.wrong(f"leaves out request {left_out} at {now:,} ns, which is to decode")
        self._counts(now, at)
        self.flight[at] = (decodes, chunks), 0
        self.at += 1
        self.free = self.declared.pp == 1

    def _compare_told(self, now: int, recorded: list[tuple[int, int, int]]) -> None:
        """Compare the facts of a decision with those that are to be told."""
        if recorded != self.choices.told:
            self.wrong(f"tells at {now:,} ns: {_said(recorded)}; and {_said(self.choices.told)} is due")
        for request in [request for kind, request, _ in self.choices.told if kind == ADMITTED]:
            due = self.members[request].owner
            if self.instants.owners.get((request, now), due) != due:
                self.wrong(f"keeps request {request} on another SP rank than {due} from {now:,} ns on")

    def _counts(self, now: int, at: int) -> None:
        choices = self.choices
        there = {
            "waiting": len(choices.waiting) + len(choices.swapped) + len(choices.inbound),
            "running": len(choices.running),
            "kv_blocks_used": self.blocks.used,
        }
        for name, due in there.items():
            if self.steps.columns.get(name, [due] * (at + 1))[at] != due:
                self.wrong(f"tells {self.steps.columns[name][at]:,} as {name} at {now:,} ns, where {due:,} is due")


def _carried(found: Carried | None) -> str:
    decodes, chunks = found or ([], [])
    return f"a step with {len(decodes):,} decodes and {len(chunks):,} chunks"


def _chunks(chunks: list[tuple[int, int, int]]) -> str:
    each = (f"request {request} from token {start:,} on, {count:,} of them" for request, start, count in chunks)
    return "; ".join(each) or "nothing"


def _said(told: list[tuple[int, int, int]]) -> str:
    each = (f"request {request} {FACTS[kind]} ({used:,} blocks in use)" for kind, request, used in told)
    return ", ".join(each) or "nothing"
