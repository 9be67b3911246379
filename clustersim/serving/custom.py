"""A scheduler that asks a user's: it shows the state, checks the answer by the rules, and carries it out.

What no scheduler may decide is refused with the rule that it breaks; nothing of a refused decision is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from operator import countOf
from typing import Final, NoReturn

from clustersim.errors import IllegalDecisionError, InputError, Problem
from clustersim.serving.blocks import BlockPool
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import CANCELLED, FINISHED, PREEMPTED, Decision
from clustersim.serving.scheduler import Scheduler, Stall
from clustersim.serving.sequence import Sequence
from clustersim.serving.user_class import UserClass, whole_number
from clustersim.serving.user_class import shown as told
from clustersim.serving.view import Choice, DecidesSteps, SchedulerView, SequenceView
from clustersim.units import plural

MOST_VAIN_PREEMPTIONS: Final = 10_000
"""Preemptions of one request, none of which finds it further than before, after which a run is taken to be endless."""
PLAIN: Final = frozenset((int,))
"""Of what type requests are in most answers."""

LEAVES: Final = frozenset((PREEMPTED, FINISHED, CANCELLED))
"""What ends the run of a sequence."""

Answer = tuple[dict[int, int], tuple[int, ...], bool, bool]
"""``Choice.tokens``, ``preempt`` and ``again``; whether all tokens are whole numbers."""
Asked = tuple[int, int, Sequence | None]
"""A request, the tokens of it that are asked for, and what runs of it."""


class CustomScheduler(Scheduler):
    """Carries out what a user's scheduler decides.

    Parameters
    ----------
    config, pool, stages, decode_overlap
        As of :class:`~clustersim.serving.scheduler.Scheduler`.
    user : UserClass
        The user's, which has the method ``decide``.
    """

    def __init__(
        self,
        config: ServingConfig,
        pool: BlockPool,
        user: UserClass,
        *,
        stages: int = 1,
        decode_overlap: bool = True,
    ) -> None:
        super().__init__(config, pool, stages=stages, decode_overlap=decode_overlap)
        self.heeds_all = True
        self.user = user
        self.decider: DecidesSteps = user.made()
        self.asked_ns: int | None = None
        """When it was asked last."""
        self.standing: tuple[Sequence, ...] = ()
        """Who decodes again in each step until something happens (``Choice.again``)."""
        self.decoding: dict[int, Sequence] = {}
        """Request → what runs of it, where that is known to decode …"""
        self.begun: dict[int, Sequence] = {}
        """… and of the others that run."""
        self.vain: dict[int, tuple[int, int]] = {}
        """Request → most tokens it ever had computed when it was preempted, and preemptions since then."""

    def view(self, now: int) -> SchedulerView:
        """Return what the user's scheduler is shown."""
        pool, config, waiting = self.pool, self.config, _shown(self.waiting) if self.waiting else []
        if self.caching is not None:
            waiting = [one._replace(cached=self._to_reuse(of)) for one, of in zip(waiting, self.waiting, strict=True)]
        return SchedulerView(
            now,
            tuple(waiting),
            tuple(_shown(self.running)),
            tuple(pool.free),
            pool.blocks,
            pool.block_tokens,
            config.max_batch_tokens,
            config.max_batch_requests,
            self.stages,
            self.decodes_in_flight,
        )

    def stall(self, now: int) -> Stall | None:
        """Return what the user's scheduler left alone when it decided nothing; None where there is nothing to run."""
        if not self.waiting and not self.running:
            return None
        asked = now if self.asked_ns is None else self.asked_ns  # clocks go on to what is void by then
        return Stall(who=f"{self.user.name}.{self.user.method}", file=self.user.path, view=self.view(asked))

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        self.standing = ()
        super().add(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.standing = ()
        super().withdraw(sequence)

    def _note(self, now: int, kind: int, sequence: Sequence, tokens: int) -> None:
        self.standing = ()
        if kind in LEAVES:
            self.begun.pop(sequence.request, None)
            self.decoding.pop(sequence.request, None)
        super()._note(now, kind, sequence, tokens)

    def _admit(self, now: int, sequence: Sequence) -> None:
        self.begun[sequence.request] = sequence
        super()._admit(now, sequence)

    def _decide(self, now: int) -> Decision:
        self.evicted = []
        if self.standing and self._has_room(self.standing):
            return Decision(decodes=self.standing, prefills=(), steady=True)
        waiting = {sequence.request: sequence for sequence in self.waiting} if self.waiting else {}
        tokens, victims, again, counted = self._answer(now)
        begun, decoding = self.begun, self.decoding
        asked, counts, known = [*tokens], [*tokens.values()], len(decoding)
        # most answers name all that decode, and then others
        ordered = counted and asked[:known] == [*decoding] and counts[:known].count(1) == known
        if not ordered or self.decodes_in_flight:
            ordered, known = False, 0
        others = [
            (request, count, decoding.get(request) or begun.get(request))
            for request, count in zip(asked[known:], counts[known:], strict=True)
        ]
        if fault := self._fault(tokens, victims, waiting, others):
            self._refuse(now, fault)
        for victim in [decoding.get(request) or begun[request] for request in victims]:
            self._count_preemption(victim)
            self._preempt(now, victim)
        if ordered and not self._has_room(decoding.values()):
            others = [*((one.request, 1, one) for one in decoding.values()), *others]
        others = self._in_turn(others)
        prefills = []
        for request, count, sequence in others:
            if sequence is None:
                self._take_in(now, waiting[request], count)
                prefills.append((waiting[request], count))
                continue
            if not self._take(sequence, sequence.computed + count):
                self._lacks_blocks(now, sequence, count)
            if request in begun and sequence.decodes:
                decoding[request] = begun.pop(request)
            elif request in begun:
                prefills.append((sequence, count))
        decodes = tuple([one for request, one in decoding.items() if ordered or request in tokens])
        self.standing = decodes if again and self.stages == 1 and not prefills else ()
        # one that only preempts is asked again: there is room now
        steady = bool(self.standing) and not self.evicted
        return Decision(decodes, tuple(prefills), steady, tuple(self.evicted))

    def _in_turn(self, asked: list[Asked]) -> list[Asked]:
        """Return what is asked for in the order in which it takes blocks: what runs by admission, then as it waits.

        A user names requests in a mapping, whose order decides nothing.
        """
        if len(asked) < 2:
            return asked
        place = {one.request: at for at, one in enumerate((*self.running, *self.waiting))}
        return sorted(asked, key=lambda one: place[one[0]])

    def _take_in(self, now: int, sequence: Sequence, count: int) -> None:
        """Admit a sequence that waits, with the blocks for so many tokens."""
        sequence.owner = self._owner(sequence)
        if not self._take_up(sequence, self._cached(sequence), count):
            self._lacks_blocks(now, sequence, count)
        self.waiting.remove(sequence)
        self._admit(now, sequence)

    def _has_room(self, decodes: Collection[Sequence]) -> bool:
        """Whether all of these have the block of their next token; then they take it."""
        size, pool, free = self.pool.block_tokens, self.pool, [*self.pool.free]
        entering = [one for one in decodes if one.computed >= one.blocks * size]
        for sequence in entering:
            free[sequence.owner] -= 1
        if min(free) < 0:
            return False
        for sequence in entering:
            pool.take(sequence.owner, 1)
            sequence.blocks += 1
        return True

    def _lacks_blocks(self, now: int, sequence: Sequence, count: int) -> NoReturn:
        missing = self.pool.needed(sequence.computed + count) - sequence.blocks
        free = self.pool.free[sequence.owner]
        self._refuse(
            now,
            f"KV-6: {plural(count, 'token')} of request {sequence.request} need{'s' if count == 1 else ''} "
            f"{plural(missing, 'more block')}, and {free} {'is' if free == 1 else 'are'} free",
        )

    def _count_preemption(self, sequence: Sequence) -> None:
        """End a run in which a request is preempted again and again, and never gets further than before."""
        furthest, count = self.vain.get(sequence.request, (0, 0))
        count = 0 if sequence.computed > furthest else count + 1
        self.vain[sequence.request] = max(furthest, sequence.computed), count
        if count >= MOST_VAIN_PREEMPTIONS:
            message = (
                f"{self.user.name}.{self.user.method} preempted request {sequence.request} "
                f"{MOST_VAIN_PREEMPTIONS:,} times without letting it get a token further in between; "
                f"the simulation would never end"
            )
            raise InputError(Problem(file=self.user.path, message=message))

    def _to_reuse(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence that waits would take over if it was admitted now."""
        if self.caching is None:
            return 0
        return self.pool.block_tokens * self.caching.cached_blocks(self._owner(sequence), sequence)

    def _answer(self, now: int) -> Answer:
        """Ask the user's scheduler."""
        self.asked_ns = now
        view = self.view(now)
        decided, answer = self.user.asked(partial(_answered, self.decider, view))
        if answer is None:
            expected = (
                "expected Choice(tokens={request: tokens}, preempt=(request, …), again=True or False), "
                "requests as whole numbers"
            )
            raise self.user.wrong_answer(now, f"decided {told(decided)}; {expected}")
        return answer

    def _refuse(self, now: int, fault: str) -> NoReturn:
        rule, colon, _ = fault.partition(":")
        explained = f" (clustersim rules {rule} explains)" if colon and re.fullmatch(r"[A-Z]+-\d+", rule) else ""
        raise IllegalDecisionError(f"{self.user} at {now / 1e6:.6f} ms: {fault}{explained}")

    def _fault(
        self,
        tokens: Mapping[int, int],
        victims: tuple[int, ...],
        waiting: Mapping[int, Sequence],
        others: list[Asked],
    ) -> str:
        """Return what is illegal in an answer, its rule first; what isn't among ``others`` is a decode of one token."""
        for place, request in enumerate(victims):
            victim = self.decoding.get(request) or self.begun.get(request)
            if victim is None:
                return f"KV-7: request {told(request)} is preempted, but is not running"
            if victim.in_flight:
                return f"PH-3: request {request} is preempted while a step carries it"
            if request in victims[:place]:
                return f"KV-7: request {request} is preempted twice"
            if request in tokens:
                return f"KV-2: request {request} is preempted and computed in one decision"
        kept = len(self.running) - len(victims)
        for request, count, found in others:
            sequence = found or waiting.get(request)
            kept += found is None
            if sequence is None:
                return (
                    f"RUN-4: request {told(request)}"
                    " is not here: it has not come, has finished, or is on another replica"
                )
            if sequence.in_flight:
                return f"PH-3: request {request} is computed while a step carries it"
            if type(count) is not int or count < 1:
                return f"KV-3: {told(count)} tokens of request {request} are computed; expected a whole number from 1"
            if sequence.decodes and count > 1:
                return (
                    f"PH-2: {told(count)} tokens of request {request} are computed in a decode step, which carries one"
                )
            if count > (left := sequence.to_compute - (0 if found else self._to_reuse(sequence))):
                return (
                    f"KV-1: {told(count)} tokens of request {request} are asked for, but only {left} are known and not "
                    f"computed; ask for at most {left}"
                )
        total = sum(tokens.values())
        if total > self.config.max_batch_tokens:
            return f"KV-6: {total} tokens in one step, more than max_batch_tokens ({self.config.max_batch_tokens})"
        if kept > self.config.max_batch_requests:
            return f"KV-6: {kept} sequences running, more than max_batch_requests ({self.config.max_batch_requests})"
        if self.decodes_in_flight and not self.decode_overlap:
            known = [self.decoding.get(request) or self.begun.get(request) for request in tokens]
            if any(one.decodes for one in known if one is not None):
                return "PP-3: a decode step is decided while another one is in flight, and decode_overlap is none"
        return ""


def _answered(decider: DecidesSteps, view: SchedulerView) -> tuple[object, Answer | None]:
    """Return what is decided, and what is read of that."""
    decided = decider.decide(view)
    return decided, _exact(decided) or _plain(decided)


def _exact(decided: object) -> Answer | None:
    """Return an answer that is made of a dict, a tuple and numbers alone, which takes no call to check."""
    if type(decided) is not Choice:
        return None
    tokens, victims, again = decided.tokens, decided.preempt, decided.again
    if type(tokens) is not dict or type(victims) is not tuple or type(again) is not bool:
        return None
    whole = countOf(map(type, tokens), int) + countOf(map(type, tokens.values()), int) == 2 * len(tokens)
    return (tokens, victims, again, True) if whole and {*map(type, victims)} <= PLAIN else None


def _plain(decided: object) -> Answer | None:
    """Return any answer made of these; None where that is not what a user's scheduler decided.

    What is no number of tokens stays as it is.
    """
    if not isinstance(decided, Choice):
        return None
    tokens: object = decided.tokens
    preempt: object = decided.preempt
    again: object = decided.again
    if not isinstance(tokens, Mapping) or not isinstance(preempt, Iterable) or not isinstance(again, bool):
        return None
    asked, victims = dict(tokens), tuple(preempt)
    numbers, given = [*map(whole_number, asked)], [*map(whole_number, victims)]
    plain = {number: count for number, count in zip(numbers, asked.values(), strict=True) if number is not None}
    preempted = tuple([number for number in given if number is not None])
    if len(plain) < len(asked) or len(preempted) < len(given):
        return None
    counts = {number: whole_number(count) for number, count in plain.items()}
    plain |= {number: count for number, count in counts.items() if count is not None}
    return plain, preempted, again, None not in counts.values()


def _shown(sequences: Iterable[Sequence]) -> list[SequenceView]:
    made = tuple.__new__  # in a third of the time of a call of the class
    return [
        made(SequenceView, (
            one.request, one.arrived_ns, one.priority, one.prompt_tokens, one.generated, one.computed, one.blocks,
            one.owner, one.preemptions, one.in_flight, 0,
        ))
        for one in sequences
    ]  # fmt: skip
