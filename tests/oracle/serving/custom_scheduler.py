"""A scheduler that asks a user's: it shows the state, and carries out what it answers.

Nothing of a refused decision (``serving.custom``) is carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NoReturn

from clustersim.serving.config import ServingConfig
from clustersim.serving.custom import Asked, CustomDecisions
from clustersim.serving.decision import CANCELLED, FINISHED, PREEMPTED
from clustersim.serving.stall import Stall
from clustersim.serving.user_class import UserClass
from clustersim.serving.view import SchedulerView, SequenceView
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

LEAVES: Final = frozenset((PREEMPTED, FINISHED, CANCELLED))
"""What ends the run of a sequence."""

Named = tuple[int, int, Sequence | None]
"""A request, the tokens of it that are asked for, and what runs of it."""


class CustomScheduler(Scheduler):
    """Carries out what a user's scheduler decides.

    Parameters
    ----------
    config, pool, stages, decode_overlap
        As of :class:`~tests.oracle.serving.scheduler.Scheduler`.
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
        self.own = CustomDecisions(user, config, decode_overlap=decode_overlap)
        self.asked_ns: int | None = None
        """When it was asked last."""
        self.standing: tuple[Sequence, ...] = ()
        """Who decodes again in each step until something happens (``Choice.again``)."""
        self.decoding: dict[int, Sequence] = {}
        """Request → what runs of it, where that is known to decode …"""
        self.begun: dict[int, Sequence] = {}
        """… and of the others that run."""

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
        return Stall(who=self.own.who, file=self.own.user.path, view=self.view(asked))

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
        self.asked_ns = now
        tokens, victims, again, counted = self.own.answer(self.view(now))
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
        if fault := self.own.fault(tokens, victims, self._known(waiting, others)):
            self.own.refuse(now, fault)
        for victim in [decoding.get(request) or begun[request] for request in victims]:
            self.own.count_preemption(victim.request, victim.computed)
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

    def _known(self, waiting: dict[int, Sequence], others: list[Named]) -> Asked[Sequence]:
        return Asked(
            lambda request: self.decoding.get(request) or self.begun.get(request), waiting,
            lambda sequence: sequence.to_compute - self._to_reuse(sequence), others, len(self.running),
            self.decodes_in_flight,
        )  # fmt: skip

    def _in_turn(self, asked: list[Named]) -> list[Named]:
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
        self.own.refuse_blocks(now, sequence.request, count, missing, self.pool.free[sequence.owner])

    def _to_reuse(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence that waits would take over if it was admitted now."""
        if self.caching is None:
            return 0
        return self.pool.block_tokens * self.caching.cached_blocks(self._owner(sequence), sequence)


def _shown(sequences: Iterable[Sequence]) -> list[SequenceView]:
    made = tuple.__new__  # in a third of the time of a call of the class
    return [
        made(SequenceView, (
            one.request, one.arrived_ns, one.priority, one.prompt_tokens, one.generated, one.computed, one.blocks,
            one.owner, one.preemptions, one.in_flight, 0,
        ))
        for one in sequences
    ]  # fmt: skip
