"""What a declared scheduler decides: decodes, chunks, and who is taken up, gives way, leaves for its host or is back.

Worked out a second time, of the policy in words and of what a replica has; nothing here is shared with the scheduler
that decided. Of one stage or several, in order of arrival or ranked, with blocks of one owner or of each SP rank.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from clustersim.legality.declared.policy import Policy
from clustersim.legality.history import ADMITTED, PREEMPTED, REUSED, SWAPPED_IN, Declared
from clustersim.legality.timeline_rules.policy.declared import WHOLE
from clustersim.legality.timeline_rules.policy.sequences import Blocks, Sequence
from clustersim.legality.timeline_rules.policy.swaps import SPARE

RANK: Final = attrgetter("rank")
Told = tuple[int, int, int]
"""Kind of a fact, request, and blocks in use right after it."""
Carried = tuple[list[Sequence], list[tuple[Sequence, int]]]
"""Who decodes in a step, and who computes how many tokens of a prompt."""


class Choices:
    """Who waits, runs and is away on a replica, and what it decides.

    Parameters
    ----------
    declared : Declared
        Of its pool, with all limits.
    policy : Policy
    blocks : Blocks
    host : int
        Blocks of each owner in host memory.

    Attributes
    ----------
    told : list of Told
        What the decision that was taken last is to tell.
    swapped, outbound, inbound
        Who was swapped out and is not on its way back; of these who is on its way there, with its blocks; and back.
    """

    def __init__(self, declared: Declared, policy: Policy, blocks: Blocks, host: int) -> None:
        self.blocks, self.host = blocks, [host] * len(blocks.free)
        self.stages, self.alone = declared.pp, declared.decode_overlap == "none"
        self.places, self.budget = declared.max_batch_requests or 0, declared.max_batch_tokens or 0
        self.scheduler, self.swaps, self.keeps_room = policy.scheduler, policy.swaps, policy.keeps_room
        self.by_arrival, self.first_chunk = policy.order == "arrival", policy.first_chunk
        self.longest = policy.long_prompt_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.batch: list[Sequence] = []
        self.swapped: list[Sequence] = []
        self.outbound: dict[int, tuple[Sequence, int]] = {}
        self.inbound: dict[int, Sequence] = {}
        self.receiving = self.decodes_in_flight = 0
        self.told: list[Told] = []
        self.short: set[int] = set()
        self.evicted = False

    def enter(self, one: Sequence) -> None:
        """Let a sequence wait."""
        insort(self.waiting, one, key=RANK)

    def decide(self) -> Carried | None:
        """Return what the next step carries; None where there is nothing to run."""
        self.told, away = [], len(self.swapped)
        found = self._again()
        if found is None and len(self.swapped) < away and not self.swapped:
            found = self._again()
        if found is not None:
            for one in found[0]:
                one.flies = True
            for one, _ in found[1]:
                one.flies = True
            self.decodes_in_flight += bool(found[0])
        return found

    def _again(self) -> Carried | None:
        """Decide until something is to run, or nobody gave way in vain."""
        while True:
            decodes, chunks = self._once()
            if decodes or chunks:
                return decodes, chunks
            if not self.evicted:
                return None

    def _once(self) -> Carried:
        self.evicted = False
        self.short.clear()
        if self.scheduler == "static" and not self.running and not self.batch:
            self._make_up()
        if self.scheduler in WHOLE:
            chunks = self._chunks(self.budget, [], self.budget)
            decodes = [] if chunks else self._decodes()
        else:
            decodes, chunks = self._decodes(), []
            if not self.evicted:
                left = self.budget - len(decodes)
                chunks = self._chunks(left, decodes, self.longest or left)
        if self.swaps and not self.evicted and not (chunks and self.scheduler in WHOLE):
            self._come_back()
        return decodes, chunks

    def _make_up(self) -> None:
        """Choose the next batch: as many in order as have a place, and room for all of their tokens."""
        free = list(self.blocks.free)
        for one in self.waiting[: self.places]:
            needed = self.blocks.at_end(one)
            owner = max(range(len(free)), key=lambda place: (free[place], -place))
            if needed > free[owner]:
                break
            free[owner] -= needed
            one.owner = owner
            self.batch.append(one)

    def _decodes(self) -> list[Sequence]:
        """Choose who decodes: in the order in which they came to run, an even share of all where stages are several."""
        found: list[Sequence] = []
        if self.alone and self.decodes_in_flight:
            return found
        can = [one for one in self.running if one.decodes]
        most = min(-(-len(can) // self.stages), self.budget)
        idle = [one for one in can if not one.flies]
        for one in idle[:most] if self.by_arrival else idle:
            if len(found) == most:
                break
            room = one.computed < one.blocks * self.blocks.size
            if room or (one.blocks and self._grow(one, one.computed + 1, found)):
                found.append(one)
        return found

    def _chunks(self, budget: int, decodes: list[Sequence], longest: int) -> list[tuple[Sequence, int]]:
        """Choose chunks: of prompts that were begun, then of those that wait, as they come and fit."""
        found: list[tuple[Sequence, int]] = []
        lacking = set()
        for one in [one for one in self.running if not one.decodes and not one.flies]:
            count = min(one.left, budget, longest)
            if count == 0 or not one.blocks:
                continue
            if self._grow(one, one.computed + count, [*decodes, *(other for other, _ in found)]):
                found.append((one, count))
                budget -= count
            elif self._goes_itself(one):
                self._give_way(one)
            else:
                lacking.add(one.owner)
        while budget > 0 and not self.evicted:
            taken = self._taken_up(budget, longest, lacking, first=not found)
            if taken is None:
                break
            found.append(taken)
            budget -= taken[1]
        return found

    def _taken_up(self, budget: int, longest: int, lacking: set[int], *, first: bool) -> tuple[Sequence, int] | None:
        """Take the next one up that waits, with so many tokens; None where it has to wait on."""
        static, size = self.scheduler == "static", self.blocks.size
        queue = self.batch if static else self.waiting
        if not queue or (not static and not self._has_place()):
            return None
        one = queue[0]
        if not static:
            one.owner = self.blocks.chosen_owner(one)
        cached = self.blocks.cached(one, one.owner)
        left = one.left - cached * size
        count = min(left, budget, longest)
        if self.scheduler in WHOLE and count < left and not (left > self.budget and first):
            return None
        if one.owner in lacking or (self.keeps_room and self._promised(one) > self.blocks.free_beside(one, cached)):
            return None
        if not self.first_chunk and self.blocks.needed(left) + cached > self.blocks.free_beside(one, cached):
            return None
        if not self.blocks.take_up(one, cached, count):
            return None
        self.waiting.remove(one)
        self.batch = self.batch[1:]
        self.running.append(one)
        self.told.append((ADMITTED, one.request, self.blocks.used))
        if cached:
            self.told.append((REUSED, one.request, self.blocks.used))
        return one, count

    def _promised(self, one: Sequence) -> int:
        """Return how many blocks more those that run with one that waits may come to need."""
        mine = (other for other in self.running if other.owner == one.owner)
        return self.blocks.at_end(one) + sum(self.blocks.at_end(other) - other.blocks for other in mine)

    def _has_place(self) -> bool:
        there = len(self.running) + max(len(self.inbound), self.receiving)
        return not self.swapped and there < self.places

    def _grow(self, one: Sequence, tokens: int, chosen: list[Sequence]) -> bool:
        """Give a sequence the blocks of so many entries, if need be those of such as come after it."""
        missing = self.blocks.needed(tokens) - one.blocks
        if missing > 0 and one.owner in self.short:
            return False
        while not self.blocks.take(one, tokens):
            coming = sum(blocks for other, blocks in self.outbound.values() if other.owner == one.owner)
            if coming and missing <= self.blocks.free[one.owner] + coming:
                self.short.add(one.owner)
                return False
            victim = next((other for other in self._behind(one) if self._may_go(other, one, chosen)), None)
            if victim is None:
                return False
            self._give_way(victim)
        return True

    def _behind(self, one: Sequence) -> Iterator[Sequence]:
        """Yield who comes after a sequence, the last one first."""
        if self.by_arrival:
            yield from reversed(self.running[self.running.index(one) + 1 :])
        else:
            yield from sorted((other for other in self.running if other.rank > one.rank), key=RANK, reverse=True)

    def _goes_itself(self, one: Sequence) -> bool:
        """Return whether a prompt that lacks blocks gives up its own: nobody comes after it, but some do before."""
        order = self.running if self.by_arrival else sorted(self.running, key=RANK)
        behind = order[order.index(one) + 1 :]
        return (
            self.first_chunk
            and not self.swaps
            and order[0] is not one
            and all(other.owner != one.owner for other in behind)
        )

    @staticmethod
    def _may_go(other: Sequence, one: Sequence, chosen: list[Sequence]) -> bool:
        return other.owner == one.owner and other.blocks > 0 and not other.flies and other not in chosen

    def _give_way(self, one: Sequence) -> None:
        self.evicted = True
        self.running.remove(one)
        if self.swaps and one.computed and one.blocks <= self.host[one.owner]:
            self.host[one.owner] -= one.blocks
            self.outbound[one.request] = one, one.blocks
            one.blocks = 0
            insort(self.swapped, one, key=RANK)
            return
        self.blocks.release(one)
        one.computed = 0
        self.enter(one)
        self.told.append((PREEMPTED, one.request, self.blocks.used))

    def _come_back(self) -> None:
        """Let those in host memory come back as far as there is room."""
        while self.swapped and len(self.running) + len(self.inbound) < self.places:
            one = self.swapped[0]
            spare = self.blocks.each // SPARE if self.running or self.inbound else 0
            if one.request in self.outbound or one.owner in self.short:
                return
            if self.blocks.needed(one.computed + 1) + spare > self.blocks.free[one.owner]:
                return
            del self.swapped[0]
            self.blocks.take(one, one.computed)
            self.inbound[one.request] = one
            self.told.append((SWAPPED_IN, one.request, self.blocks.used))

    def out(self, request: int) -> bool:
        """Let the blocks of a sequence be free that has been copied out; return whether one was on its way."""
        one, many = self.outbound.pop(request, (None, 0))
        if one is not None:
            self.blocks.free[one.owner] += many
        return one is not None

    def back(self, request: int) -> None:
        """Let a sequence run that has been copied back."""
        one = self.inbound.pop(request)
        self.host[one.owner] += one.blocks
        self.running.append(one)

    def leave(self, one: Sequence) -> None:
        """Let go of a sequence, wherever it is, with its blocks."""
        if one in self.swapped:
            self.swapped.remove(one)
            self.host[one.owner] += self.blocks.needed(one.computed)
        for known in (self.running, self.waiting, self.batch):
            if one in known:
                known.remove(one)
        self.blocks.release(one)

    def ended(self, carried: Carried, given_up: set[int]) -> list[Sequence]:
        """Account for a step that ended; return who leaves with it, in order."""
        decodes, chunks = carried
        self.decodes_in_flight -= bool(decodes)
        done = []
        for one in decodes:
            one.flies = False
            one.computed += 1
            one.tokens += 1
            done += [one] if one.tokens >= one.output else []
        for one, count in chunks:
            one.flies = False
            one.computed += count
            self.blocks.fill(one)
            if one.left == 0:
                one.tokens += one.tokens < one.output
                done += [one] if one.tokens >= one.output else []
        done = [one for one in done if not (one.goes_on and one.request in given_up)]
        for one in done:
            self.running.remove(one)
        return done
