"""RUN-5: each decision of a replica is the one that the declared scheduler takes of what is there.

What happened on a replica is gone through instant by instant: steps and copies that end, who comes and who leaves. ::

    completions ─► copies, hand-overs ─► arrivals ─► departures ─► a decision, if a step can begin

Whenever a step can begin the decision is worked out anew (``choices``), and compared with the step that begins then, or
with none, and with the facts of that instant in their order. So nobody waits who could go on, and nobody goes on who
should wait. Judged as far as ``MOST`` goes, since it takes time as the replay did; and as long as it is known where
those go that lose their replica (``moved``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from clustersim.legality.finding import Fault, Finding, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FACTS,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.policy.choices import Carried, Choices
from clustersim.legality.timeline_rules.policy.declared import keeps_whole
from clustersim.legality.timeline_rules.policy.instants import (
    BACK,
    COMES,
    FAILS,
    FREE,
    REVIVES,
    STEP,
    WITHIN,
    Fact,
    Instants,
    Steps,
)
from clustersim.legality.timeline_rules.policy.moved import Moved
from clustersim.legality.timeline_rules.policy.queues import rank_of
from clustersim.legality.timeline_rules.policy.sequences import Blocks, Sequence
from clustersim.legality.timeline_rules.views.reading import Reading

FIX: Final = "let each decision be the one that the declared scheduler takes of who waits, runs and is away"
MOST: Final = 10_000
"""About so many sequences in steps of a pool are looked at, from its beginning on."""


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


def _replicas(reading: Reading) -> range:
    """Return of which replicas decisions follow from what is declared and recorded."""
    history, declared, policy = reading.history, reading.declared, reading.declared.policy
    named = policy is not None and policy.scheduler is not None
    recorded = (history.facts, history.folded, history.chunks, history.decodes, history.requests, reading.runs)
    limits = (declared.block_tokens, declared.pool_blocks, declared.max_batch_requests, declared.max_batch_tokens)
    if not named or any(one is None for one in (*recorded, *limits)):
        return range(0)
    if declared.prefix_caching is not False and reading.prefixes.contents is None:
        return range(0)
    return range(declared.first_replica, declared.first_replica + declared.dp)


class Walk:
    """A walk through what happened on one replica; ``faults`` has what is wrong, at most one thing.

    Parameters
    ----------
    reading : Reading
        Of its pool.
    replica : int
    arrived : mapping
        When each request arrived, in whichever pool.
    moved : Moved
    """

    def __init__(self, reading: Reading, replica: int, arrived: Mapping[int, int], moved: Moved) -> None:
        declared, policy, requests = reading.declared, reading.declared.policy, reading.history.requests
        assert policy is not None
        assert requests is not None
        self.declared, self.policy, self.replica, self.arrived = declared, policy, replica, arrived
        self.moved, self.alone, self.steps = (
            moved,
            moved.alone,
            Steps(reading, replica, MOST // declared.dp, moved.until),
        )
        self.instants = Instants(reading, replica, self.steps, moved)
        self.contents = reading.prefixes.contents if declared.prefix_caching else None
        self.prompt, self.output = requests["prompt_tokens"], requests["output_tokens"]
        self.priority = requests.get("priority")
        self.members: dict[int, Sequence] = {}
        self.flight: dict[int, tuple[Carried, int]] = {}
        """Runs of steps under way: what they carry, and how many steps of each have ended."""
        tables = reading.history.folded
        self.together = tables is not None and tables.lockstep > 1
        self.at = self.looked_at = 0
        self.within = -1
        """The run of steps of which one begins at this instant that is not its first; −1: none."""
        self.goes_on = True
        self.faults: list[Fault] = []
        self._fresh()

    def _fresh(self) -> None:
        """Begin with nothing in blocks, queues and stages, and all members not computed."""
        declared, owners = self.declared, self.declared.sp if keeps_whole(self.declared) else 1
        self.blocks = Blocks((declared.pool_blocks or 0) // owners, owners, declared.block_tokens or 1, self.contents)
        self.choices = Choices(declared, self.policy, self.blocks, (declared.host_blocks or 0) // owners)
        self.free, self.frozen, self.down = True, False, False
        self.broken_off: list[tuple[int, int, int]] = []
        """What gave blocks back at this instant that were for what was on its way."""
        self.flight.clear()
        if not self.alone:
            self.members.clear()
        for one in self.members.values():
            one.computed, one.blocks, one.flies = 0, 0, False

    def go(self) -> None:
        """Walk until something is wrong, or what follows is not known."""
        now = -1
        for time, _, _, kind, which, value in self.instants.events:
            if time != now and now >= 0:
                self._decide(now)
            now = time
            if self.faults or not self.goes_on:
                return
            self._happens(now, kind, which, value)
        if now >= 0:
            self._decide(now)

    def _wrong(self, message: str) -> None:
        """Tell what is wrong."""
        self.faults.append(Fault(where=f"replica {self.replica}", message=message, fix=FIX))

    def _happens(self, now: int, kind: int, which: int, value: int) -> None:
        choices, one = self.choices, self.members.get(which)
        if kind == STEP:
            self._ends(now, which)
        elif kind == FREE:
            self.free = True
        elif kind == WITHIN:
            self._goes_on(which, value)
        elif kind == BACK:
            if which in choices.inbound:
                choices.back(which)
        elif kind == FAILS:
            self._fresh()
            self.down = True
        elif kind == REVIVES:
            self.down = False
            for other in self.members.values():
                choices.enter(other)
        elif kind == ARRIVED and self.down:
            if self.alone:  # elsewhere it waits in front, for any of them
                self._comes(which)
        elif kind in (ARRIVED, COMES):
            choices.enter(self._comes(which, max(value, 0) if kind == COMES else 0))
        elif one is None:
            return
        elif kind == RECEIVED:
            choices.receiving -= 1
            choices.running.append(one)
            one.away = False
        elif kind == PREEMPTED:
            if one.away:
                self._breaks_off(now, one)
        elif kind == SWAPPED_OUT:
            if not choices.out(which) and not self.frozen:
                self._wrong(f"tells request {which} to be in host memory at {now:,} ns, for which it was not to leave")
        elif kind in (HANDED_OVER, CANCELLED, REJECTED, LOST):
            choices.leave(one)
            del self.members[which]

    def _comes(self, request: int, tokens: int = 0) -> Sequence:
        """Make a sequence of a request that comes, with so many tokens."""
        prompt, output = int(self.prompt[request]), int(self.output[request])
        urgent = 0 if self.priority is None else int(self.priority[request])
        goes_on = self.declared.role == "prefill" and output > tokens + 1
        rank = rank_of(self.policy, request, self.arrived.get(request, 0), prompt, urgent)
        output = tokens + 1 if goes_on else output
        one = Sequence(request=request, prompt=prompt, output=output, rank=rank, goes_on=goes_on, tokens=tokens)
        self.members[request] = one
        return one

    def _breaks_off(self, now: int, one: Sequence) -> None:
        """Let blocks be free of what was on its way when a replica failed, or nobody was left to take it."""
        self.blocks.release(one)
        self.broken_off.append((now, PREEMPTED, one.request))
        if self.declared.role == "decode":
            self.choices.receiving -= 1
            del self.members[one.request]

    def _ends(self, now: int, at: int) -> None:
        """Let a run of steps end."""
        if at not in self.flight:
            return
        carried, done = self.flight.pop(at)
        self._advance(carried, self.steps.many[at] - 1 - done)
        told = []
        for one in self.choices.ended(carried, self.instants.given_up.get(now, set())):
            one.away = one.goes_on
            if not one.goes_on:
                self.blocks.release(one)
                told.append((one.request, self.blocks.used))
                del self.members[one.request]
        recorded = self.instants.finished.get(now, [])
        if told != recorded:
            self._wrong(f"tells at {now:,} ns who finishes: {_ended(recorded)}; and {_ended(told)} does")

    def _advance(self, carried: Carried, steps: int) -> None:
        for one in carried[0]:
            one.computed += steps
            one.tokens += steps
            if not self.blocks.take(one, one.computed + 1):
                self._wrong(f"decodes on with request {one.request} when it lacks a block")

    def _goes_on(self, at: int, done: int) -> None:
        """Let so many steps of a run have ended."""
        if at in self.flight:
            carried, before = self.flight[at]
            self._advance(carried, done - before)
            self.flight[at] = carried, done
            self.within = at

    def _decide(self, now: int) -> None:
        """Compare what is decided at an instant with what was recorded, if a step can begin then."""
        within, self.within = self.within, -1
        late = self.at < len(self.steps) and self.steps.begin[self.at] < now
        if late and not self.faults:
            self._wrong(f"begins a step at {self.steps.begin[self.at]:,} ns, when none could begin")
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
            one = self._comes(request)
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
            self._wrong(
                f"begins nothing at {now:,} ns, where {_carried(due)} is due, and ends by {alone + lasts:,} ns, before "
                f"anything cuts it off at {cut:,} ns"
            )

    def _compare(self, now: int, within: int, found: Carried | None) -> None:
        """Compare what a decision carries with the step that goes on or begins, or with none."""
        steps = self.steps
        if within >= 0:
            decodes, chunks = found or ([], [])  # nothing: of replicas in lockstep, a step beside those of others
            if chunks or decodes != self.flight[within][0][0]:
                self._wrong(f"goes on with its step at {now:,} ns, where {_carried(found)} is due")
        elif self.at < len(steps) and steps.begin[self.at] == now:
            self._begins(now, *(found or ([], [])))
        elif found is not None and self._cut_off(now):
            self._ends_before(now, found)
            self.frozen = any(since > now for since, _ in steps.downs)
            self.goes_on = self.frozen
        elif found is not None:
            self._wrong(f"begins nothing at {now:,} ns, where {_carried(found)} is due")

    def _begins(self, now: int, decodes: list[Sequence], chunks: list[tuple[Sequence, int]]) -> None:
        """Compare the step that begins with the one that is to."""
        steps, at = self.steps, self.at
        listed = [(one.request, one.computed, count) for one, count in chunks]
        recorded, many = steps.chunks.get(steps.step[at], []), steps.columns["decode_tokens"][at]
        left_out = next((one.request for one in decodes if not steps.decodes(at, one.request)), None)
        if listed != recorded:
            self._wrong(f"prefills {_chunks(recorded)} from {now:,} ns on, where {_chunks(listed)} is due")
        elif len(decodes) != many:
            self._wrong(f"decodes {many:,} sequences from {now:,} ns on, where {len(decodes):,} are due")
        elif left_out is not None:
            self._wrong(f"leaves out request {left_out} at {now:,} ns, which is to decode")
        self._counts(now, at)
        self.flight[at] = (decodes, chunks), 0
        self.at += 1
        self.free = self.declared.pp == 1

    def _compare_told(self, now: int, recorded: list[tuple[int, int, int]]) -> None:
        """Compare the facts of a decision with those that are to be told."""
        if recorded != self.choices.told:
            self._wrong(f"tells at {now:,} ns: {_said(recorded)}; and {_said(self.choices.told)} is due")
        for request in [request for kind, request, _ in self.choices.told if kind == ADMITTED]:
            due = self.members[request].owner
            if self.instants.owners.get((request, now), due) != due:
                self._wrong(f"keeps request {request} on another SP rank than {due} from {now:,} ns on")

    def _counts(self, now: int, at: int) -> None:
        choices = self.choices
        there = {
            "waiting": len(choices.waiting) + len(choices.swapped) + len(choices.inbound),
            "running": len(choices.running),
            "kv_blocks_used": self.blocks.used,
        }
        for name, due in there.items():
            if self.steps.columns.get(name, [due] * (at + 1))[at] != due:
                self._wrong(f"tells {self.steps.columns[name][at]:,} as {name} at {now:,} ns, where {due:,} is due")


def _carried(found: Carried | None) -> str:
    decodes, chunks = found or ([], [])
    return f"a step with {len(decodes):,} decodes and {len(chunks):,} chunks"


def _chunks(chunks: list[tuple[int, int, int]]) -> str:
    each = (f"request {request} from token {start:,} on, {count:,} of them" for request, start, count in chunks)
    return "; ".join(each) or "nothing"


def _ended(told: list[tuple[int, int]]) -> str:
    return ", ".join(f"request {request} ({used:,} blocks in use)" for request, used in told) or "nobody"


def _said(told: list[tuple[int, int, int]]) -> str:
    each = (f"request {request} {FACTS[kind]} ({used:,} blocks in use)" for kind, request, used in told)
    return ", ".join(each) or "nothing"
