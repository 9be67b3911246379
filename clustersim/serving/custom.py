"""A scheduler that asks a user's: it shows the state, checks the answer by the rules, and carries it out.

What no scheduler may decide is refused with the rule that it breaks; nothing of a refused decision is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Final, NoReturn

from clustersim.errors import IllegalDecisionError, InputError, Problem
from clustersim.serving.blocks import BlockPool
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import Decision
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

Answer = tuple[dict[int, int], tuple[int, ...], bool]
"""``Choice.tokens``, ``preempt`` and ``again``."""
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
        self.vain: dict[int, tuple[int, int]] = {}
        """Request → most tokens it ever had computed when it was preempted, and preemptions since then."""

    def view(self, now: int) -> SchedulerView:
        """Return what the user's scheduler is shown."""
        waiting, pool, config = self.waiting, self.pool, self.config
        return SchedulerView(
            now,
            _shown(waiting, map(self._to_reuse, waiting)) if waiting else (),
            _shown(self.running, repeat(0)),
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
        super()._note(now, kind, sequence, tokens)

    def _decide(self, now: int) -> Decision:
        self.evicted = []
        if self.standing and self._has_room():
            return Decision(decodes=self.standing, prefills=(), steady=True)
        running = {sequence.request: sequence for sequence in self.running}
        waiting = {sequence.request: sequence for sequence in self.waiting} if self.waiting else {}
        tokens, victims, again = self._answer(now)
        found, size = [*map(running.get, tokens)], self.pool.block_tokens
        others: list[Asked] = [  # all but decodes as they should be that have their blocks
            (request, count, sequence)
            for sequence, (request, count) in zip(found, tokens.items(), strict=True)
            if sequence is None
            or sequence.in_flight
            or type(count) is not int
            or count != 1
            or not sequence.generated
            or sequence.prompt_tokens + sequence.generated != sequence.computed + 1
            or sequence.computed >= sequence.blocks * size
        ]
        if others and not {type(count) for _, count, _ in others} <= PLAIN:
            others = self.user.asked(partial(_numbered, others))
            tokens |= {request: count for request, count, _ in others}
        fault = next(self._faults(tokens, victims, running, waiting, others), None)
        if fault is not None:
            self._refuse(now, fault)
        for request in victims:
            self._count_preemption(running[request])
            self._preempt(now, running[request])
        prefills = []
        for request, count, sequence in others:
            if sequence is None:
                self._take_in(now, waiting[request], count)
                prefills.append((waiting[request], count))
                continue
            if sequence.computed + count > sequence.blocks * size and not self._take_up(sequence, 0, count):
                self._lacks_blocks(now, sequence, count)
            if not sequence.decodes:
                prefills.append((sequence, count))
        computing = {sequence.request for sequence, _ in prefills}
        decodes = tuple([one for one in found if one is not None and one.request not in computing])
        self.standing = decodes if again and self.stages == 1 and not prefills else ()
        # one that only preempts is asked again: there is room now
        steady = bool(self.standing) and not self.evicted
        return Decision(decodes=decodes, prefills=tuple(prefills), steady=steady, evicted=tuple(self.evicted))

    def _take_in(self, now: int, sequence: Sequence, count: int) -> None:
        """Admit a sequence that waits, with the blocks for so many tokens."""
        sequence.owner = self._owner(sequence)
        if not self._take_up(sequence, self._cached(sequence), count):
            self._lacks_blocks(now, sequence, count)
        self.waiting.remove(sequence)
        self._admit(now, sequence)

    def _has_room(self) -> bool:
        """Whether all that decode again have their blocks; then they take them."""
        size, free = self.pool.block_tokens, [*self.pool.free]
        entering = [one for one in self.standing if one.computed == one.blocks * size]
        for sequence in entering:
            free[sequence.owner] -= 1
        if min(free) < 0:
            return False
        for sequence in entering:
            self._take(sequence, sequence.computed + 1)
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
        decided = self.user.asked(lambda: self.decider.decide(view))
        answer = self.user.asked(lambda: _exact(decided) or _plain(decided))
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

    def _faults(
        self,
        tokens: Mapping[int, int],
        victims: tuple[int, ...],
        running: Mapping[int, Sequence],
        waiting: Mapping[int, Sequence],
        others: list[Asked],
    ) -> Iterator[str]:
        """Yield what is illegal in an answer, the rule first; what is not among ``others`` is a decode of one token."""
        for place, request in enumerate(victims):
            if request not in running:
                yield f"KV-7: request {told(request)} is preempted, but is not running"
            elif running[request].in_flight:
                yield f"PH-3: request {request} is preempted while a step carries it"
            elif request in victims[:place]:
                yield f"KV-7: request {request} is preempted twice"
            elif request in tokens:
                yield f"KV-2: request {request} is preempted and computed in one decision"
        for request, count, found in others:
            sequence = found or waiting.get(request)
            if sequence is None:
                yield (
                    f"RUN-4: request {told(request)}"
                    " is not here: it has not come, has finished, or is on another replica"
                )
            elif sequence.in_flight:
                yield f"PH-3: request {request} is computed while a step carries it"
            elif type(count) is not int or count < 1:
                yield f"KV-3: {told(count)} tokens of request {request} are computed; expected a whole number from 1"
            elif sequence.decodes and count > 1:
                yield (
                    f"PH-2: {told(count)} tokens of request {request} are computed in a decode step, which carries one"
                )
            elif count > (left := sequence.to_compute - (0 if request in running else self._to_reuse(sequence))):
                yield (
                    f"KV-1: {told(count)} tokens of request {request} are asked for, but only {left} are known and not "
                    f"computed; ask for at most {left}"
                )
        total = sum(tokens.values())
        if total > self.config.max_batch_tokens:
            yield f"KV-6: {total} tokens in one step, more than max_batch_tokens ({self.config.max_batch_tokens})"
        kept = len(running) - len(set(victims)) + sum([request in waiting for request, _, _ in others])
        if kept > self.config.max_batch_requests:
            yield f"KV-6: {kept} sequences running, more than max_batch_requests ({self.config.max_batch_requests})"
        alone = self.decodes_in_flight and not self.decode_overlap
        if alone and any(running[request].decodes for request in tokens if request in running):
            yield "PP-3: a decode step is decided while another one is in flight, and decode_overlap is none"


def _exact(decided: object) -> Answer | None:
    """Return an answer that is made of a dict, a tuple and numbers alone, which takes no call to check."""
    if type(decided) is not Choice:
        return None
    tokens, victims, again = decided.tokens, decided.preempt, decided.again
    if type(tokens) is not dict or type(victims) is not tuple or type(again) is not bool:
        return None
    return (tokens.copy(), victims, again) if {*map(type, tokens), *map(type, victims)} <= PLAIN else None


def _plain(decided: object) -> Answer | None:
    """Return any answer made of these; None where that is not what a user's scheduler decided."""
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
    return None if len(plain) < len(asked) or len(preempted) < len(given) else (plain, preempted, again)


def _numbered(others: Iterable[Asked]) -> list[Asked]:
    """Return what is asked for with plain numbers of tokens; what is none stays as it is."""
    numbers = [(one, whole_number(one[1])) for one in others]
    return [one if number is None else (one[0], number, one[2]) for one, number in numbers]


def _shown(sequences: Iterable[Sequence], cached: Iterable[int]) -> tuple[SequenceView, ...]:
    made = tuple.__new__  # in a third of the time of a call of the class
    return tuple([
        made(SequenceView, (
            one.request, one.arrived_ns, one.priority, one.prompt_tokens, one.generated, one.computed, one.blocks,
            one.owner, one.preemptions, one.in_flight, reused,
        ))
        for one, reused in zip(sequences, cached, strict=False)
    ])  # fmt: skip
