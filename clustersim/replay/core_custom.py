"""A user's own router and schedulers, shown what is in the state of the core, which goes on with their answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from clustersim.clock import Int64Array
from clustersim.core.state import State
from clustersim.serving.capacity import ReplicaCapacity
from clustersim.serving.custom import Asked, CustomDecisions
from clustersim.serving.router import CustomRouter
from clustersim.serving.stall import Stall
from clustersim.serving.user_class import UserClass
from clustersim.serving.view import ReplicaView, RouterView, SchedulerView, SequenceView
from clustersim.workload.requests import Requests

LOADS: Final = (
    "is_down", "waiting", "running", "outstanding", "free", "taken", "blocks", "prefilling", "away", "arriving",
    "receiving", "cached", "block_tokens",
)  # fmt: skip
"""Fields of replicas that a router is shown, and how many of its sequences are not through with their prompts."""
KNOWN: Final = ("prompt", "generated", "computed")
SHOWN: Final = (
    "request", "arrived", "prompt", "generated", "computed", "blocks", "owner", "preemptions", "busy", "cached",
)  # fmt: skip
"""Fields of sequences that a scheduler is shown."""
STATE: Final = ("waiting", "running", "decodes_in_flight")
ORDER: Final = ("rank", "then", "request")
ORDERED: Final = attrgetter(*ORDER)
REQUEST: Final = itemgetter(0)
REMAINING: Final = attrgetter("to_compute")
"""Of a :class:`SequenceView`."""

Named = tuple[int, int, SequenceView | None]
"""A request, the tokens of it that are asked for, and what runs of it."""


class AskedRouter:
    """A user's router.

    Parameters
    ----------
    router : CustomRouter
    requests : Requests
    replicas : sequence of int
        Their numbers, by their places in the state.
    mine : range
        Places of those that it chooses from.
    """

    def __init__(self, router: CustomRouter, requests: Requests, replicas: Sequence[int], mine: range) -> None:
        self.router = router
        self.requests = requests
        self.replicas = [*replicas]
        self.mine = mine

    def choose(self, s: State, now: int, request: int) -> int:
        """Return the place of the replica that takes a request."""
        loads = zip(*fields_of(s.replicas, self.mine, LOADS), strict=True)
        priorities = self.requests.priorities
        view = RouterView(
            now_ns=now,
            request=request,
            prompt_tokens=int(self.requests.prompt_tokens[request]),
            priority=0 if priorities is None else int(priorities[request]),
            replicas=tuple(
                [self._view(s, r, *load) for r, (down, *load) in zip(self.mine, loads, strict=True) if not down]
            ),
        )
        return self.replicas.index(self.router.choose(view))

    def _view(
        self, s: State, r: int, waiting: int, running: int, outstanding: int, free: int, taken: int, blocks: int,
        prefilling: int, away: int, arriving: int, receiving: int,
        cached: int, block_tokens: int,
    ) -> ReplicaView:  # fmt: skip
        tokens = 0
        if waiting:
            prompts, generated, computed = fields_of(s.sequences, s.queues[r][:waiting], KNOWN)
            tokens = sum(prompts) + sum(generated) - sum(computed)
        if prefilling:
            begun = zip(*fields_of(s.sequences, s.order[r][:running], KNOWN), strict=True)
            left = [(prompt + more - done, more) for prompt, more, done in begun]
            tokens += sum([one for one, more in left if one > 1 or more == 0])
        return ReplicaView(
            replica=self.replicas[r], waiting=waiting + away + arriving, running=running + receiving,
            outstanding_tokens=outstanding,
            waiting_tokens=tokens, free_blocks=free - taken, pool_blocks=blocks, cached_tokens=cached * block_tokens,
        )  # fmt: skip


class SchedulerInput(NamedTuple):
    """What a scheduler is shown: of sequences those that run, then those that wait.

    Parameters
    ----------
    view : SchedulerView
    sequences : list of SequenceView
    numbers : list of int
        Theirs in the state.
    place : dict
        Request → where it is among these.
    """

    view: SchedulerView
    sequences: list[SequenceView]
    numbers: list[int]
    place: dict[int, int]

    def runs(self, request: int) -> SequenceView | None:
        """Return what runs of a request."""
        at = self.place.get(request, -1)
        return self.sequences[at] if 0 <= at < len(self.view.running) else None


class AskedScheduler:
    """A user's scheduler of one replica.

    Parameters
    ----------
    capacity : ReplicaCapacity
        Of its replica; its configuration names the class.
    r : int
        The replica's place in the state.
    requests : Requests
    outage : int
        The replica's last one.
    """

    def __init__(self, capacity: ReplicaCapacity, r: int, requests: Requests, outage: int = -1) -> None:
        config = capacity.config
        assert isinstance(config.scheduler, UserClass)
        self.own = CustomDecisions(config.scheduler, config, decode_overlap=capacity.decode_overlap)
        self.capacity = capacity
        self.block_tokens = capacity.block_tokens
        self.r = r
        self.outage = outage
        self.priorities = [0] * len(requests) if requests.priorities is None else requests.priorities.tolist()
        self.asked_ns: int | None = None
        """When it was asked last."""
        self.decoding: dict[int, None] = {}
        """What decodes, in the order in which it first did since it was admitted …"""
        self.first: list[int] = []
        """… and what did so when it was asked last."""
        self.answered: tuple[SchedulerInput, dict[int, int]]
        """What it was shown then, and the tokens that it asked for."""

    def show(self, s: State, now: int) -> SchedulerInput:
        """Return what it is shown."""
        r, capacity = self.r, self.capacity
        config = capacity.config
        waiting, running, decodes = of_one(s.replicas, r, STATE)
        numbers, found = self._shown(s.sequences, s.order[r][:running], in_order(s.sequences, s.queues[r][:waiting]))
        view = SchedulerView(
            now, tuple(found[running:]), tuple(found[:running]), self._free(s), capacity.blocks, self.block_tokens,
            config.max_batch_tokens, config.max_batch_requests, capacity.stages, decodes,
        )  # fmt: skip
        return SchedulerInput(view, found, numbers, dict(zip(map(REQUEST, found), range(len(found)), strict=True)))

    def _free(self, s: State) -> tuple[int, ...]:
        """Return the free blocks of each owner."""
        if self.capacity.owners == 1:
            return tuple(of_one(s.replicas, self.r, ("free",)))
        (first,) = of_one(s.replicas, self.r, ("first_owner",))
        return tuple([of_one(s.owners, first + owner, ("free",))[0] for owner in range(self.capacity.owners)])

    def _shown(self, sequences: Any, running: Any, waiting: Any) -> tuple[list[int], list[SequenceView]]:
        """Return numbers of sequences, and what is shown of them."""
        made, priorities, size = (
            tuple.__new__,
            self.priorities,
            self.block_tokens,
        )  # in a third of the time of a call of the class
        if isinstance(running, list):
            numbers = running + waiting
            return numbers, [
                made(SequenceView, (
                    one.request, one.arrived, priorities[one.request], one.prompt, one.generated, one.computed,
                    one.blocks, one.owner, one.preemptions, one.busy > 0, size * one.cached,
                ))
                for one in [sequences[number] for number in numbers]
            ]  # fmt: skip
        found = np.concatenate((running, waiting)) if len(waiting) else running
        request, arrived, prompt, generated, computed, blocks, owner, preemptions, busy, cached = fields_of(
            sequences, found, SHOWN
        )
        columns = (
            request, arrived, map(priorities.__getitem__, request), prompt, generated, computed, blocks, owner,
            preemptions, map(bool, busy), map(size.__mul__, cached),
        )  # fmt: skip
        return found.tolist(), [*map(partial(made, SequenceView), zip(*columns, strict=False))]

    def stall(self, s: State, now: int) -> Stall | None:
        """Return what it left alone when it decided nothing; None where there is nothing to run."""
        view = self.show(s, now if self.asked_ns is None else self.asked_ns).view
        if not view.waiting and not view.running:
            return None
        return Stall(who=self.own.who, file=self.own.user.path, view=view)

    def decide(self, s: State) -> None:
        """Ask it for the next step, and put its answer where the core goes on.

        Raises
        ------
        IllegalDecisionError
            When no scheduler may decide so.
        InputError
            When it raises, or decides nothing that can be read.
        """
        (now,) = of_one(s.clock, 0, ("now",))
        self.asked_ns = now
        shown, decoding = self.show(s, now), self.decoding
        tokens, victims, again, counted = self.own.answer(shown.view)
        for request in decoding.keys() - shown.place.keys():
            del decoding[request]
        others = self._checked(shown, tokens, victims, counted)
        place, numbers = shown.place, shown.numbers
        for one in [shown.sequences[place[request]] for request in victims]:
            self.own.count_preemption(one.request, one.computed)
            decoding.pop(one.request, None)
        self.answered, self.first = (shown, tokens), [*decoding]
        if len(others) > 1:  # a user names them in a mapping, whose order says nothing
            others.sort(key=lambda one: place[one[0]])
        chunks = []
        for request, count, found in others:
            if found is not None and found.decodes:
                decoding[request] = None
            else:
                chunks.append((numbers[place[request]], count))
        decodes = [numbers[place[request]] for request in decoding if request in tokens]
        self._put(s, [numbers[place[request]] for request in victims], decodes, chunks, again)

    def _checked(
        self, shown: SchedulerInput, tokens: dict[int, int], victims: tuple[int, ...], counted: bool
    ) -> list[Named]:
        """Return what is asked for besides a token of each that is known to decode, with which nothing is wrong."""
        view = shown.view
        known = self.decoding if counted and not view.decodes_in_flight else {}
        others: list[Named] = [
            (request, count, shown.runs(request))
            for request, count in tokens.items() if request not in known or count != 1
        ]  # fmt: skip
        waiting = dict(zip(map(REQUEST, view.waiting), view.waiting, strict=True)) if others else {}
        asked = Asked(shown.runs, waiting, REMAINING, others, len(view.running), view.decodes_in_flight)
        if fault := self.own.fault(tokens, victims, asked):
            self.own.refuse(view.now_ns, fault)
        return others

    def lacks_blocks(self, s: State, one: int) -> NoReturn:
        """Refuse tokens of what runs, or of a sequence that waits, whose blocks are not there.

        What runs takes its blocks first, by admission, then what waits, in the order in which it waits; but all that
        decode are first of all where they are named so, and there is room for them.

        Raises
        ------
        IllegalDecisionError
        """
        shown, tokens = self.answered
        now, free = shown.view.now_ns, [*self._free(s)]
        if one >= 0:
            request = shown.sequences[shown.numbers.index(one)].request
            (owner,) = of_one(s.sequences, one, ("owner",))
            self.own.refuse_blocks(now, request, tokens[request], -(-tokens[request] // self.block_tokens), free[owner])
        known = len(self.first)
        named = [(request, count, shown.runs(request)) for request, count in tokens.items()]
        first = [found for request, count, found in named[:known] if found is not None and count == 1]
        entering = [one for one in first if one.computed >= one.blocks * self.block_tokens]
        ordered = [one.request for one in first] == self.first and not shown.view.decodes_in_flight
        left = [count - sum(one.owner == owner for one in entering) for owner, count in enumerate(free)]
        if ordered and min(left) >= 0:
            free, named = left, named[known:]
        running = [(request, count, found) for request, count, found in named if found is not None]
        for request, count, found in sorted(running, key=lambda one: shown.place[one[0]]):
            more = max(-(-(found.computed + count) // self.block_tokens) - found.blocks, 0)
            if more > free[found.owner]:
                self.own.refuse_blocks(now, request, count, more, free[found.owner])
            free[found.owner] -= more
        raise AssertionError(f"{self.own.who} asks for blocks that are there")

    def _put(
        self, s: State, victims: list[int], decodes: list[int], chunks: list[tuple[int, int]], again: bool
    ) -> None:
        """Put an answer where the core goes on."""
        who = [*victims, *decodes, *[one for one, _ in chunks]]
        s.choice[: len(who)] = who
        answer = len(victims), len(decodes), len(chunks), int(again), 1
        if isinstance(s.sequences, np.ndarray):
            for name, value in zip(("evicted", "decodes", "chunks", "steady", "has_chosen"), answer, strict=True):
                s.replicas[name][self.r] = value
            taken = s.sequences["taken"]
            for one, count in chunks:
                taken[one] = count
            return
        rep = s.replicas[self.r]
        rep.evicted, rep.decodes, rep.chunks, rep.steady, rep.has_chosen = answer
        for one, count in chunks:
            s.sequences[one].taken = count


def in_order(sequences: Any, heap: Any) -> Any:
    """Return sequences that wait in the order of the queue, in which their heap is not."""
    if len(heap) < 2:
        return heap
    if isinstance(sequences, np.ndarray):
        return heap[np.lexsort(fields_of(sequences, heap, ORDER)[::-1])]
    return sorted(heap, key=lambda one: ORDERED(sequences[one]))


def fields_of(records: Any, places: Any, names: tuple[str, ...]) -> list[Sequence[int]]:
    """Return fields of some of the records of a list, a column each."""
    if isinstance(records, np.ndarray):
        whole = records.view(np.int64).reshape(len(records), -1)
        found: list[Sequence[int]] = whole.take(places, 0).take(places_of(records.dtype, names), 1).T.tolist()
        return found
    return [*zip(*map(attrgetter(*names), [records[place] for place in places]), strict=True)]


def of_one(records: Any, at: int, names: tuple[str, ...]) -> list[int]:
    """Return fields of one of the records of a list."""
    if isinstance(records, np.ndarray):
        return [records[name].item(at) for name in names]
    return [getattr(records[at], name) for name in names]


@cache
def places_of(kind: np.dtype[Any], names: tuple[str, ...]) -> Int64Array:
    """Return where fields are in a record of whole numbers."""
    assert kind.names is not None
    return np.array([kind.names.index(name) for name in names], np.int64)
