"""Serving code that ignores what the scenario declares is noticed (RUN-5); the same scenario without it is legal.

Each mutation is a few lines that somebody could have written: a limit that nobody reads, another order, another choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clustersim.legality.timeline_rules.policy import loads
from clustersim.plan.pool import PoolRule
from clustersim.replay.instant import now_ns
from clustersim.serving.order import Order
from clustersim.simulation import legality
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import some
from tests.laws.random_scenarios import LLAMA, scenario_of
from tests.legality.timeline.test_replay_mutations import EVENTS, FOLDED, PIPE, broken_by, document, nothing
from tests.oracle.events.pipelines import is_free
from tests.oracle.events.replica import Replica
from tests.oracle.events.run import EventReplay
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.replay.deadlines import Patience
from tests.oracle.serving import queues, routers
from tests.oracle.serving.disaggregated import PoolMembers
from tests.oracle.serving.members import Members
from tests.oracle.serving.preemption import Preemption
from tests.oracle.serving.prefix_cache import NOTHING, PrefixCache
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence
from tests.oracle.serving.static import StaticScheduler
from tests.oracle.serving.swapping import SwappingScheduler

pytestmark = pytest.mark.usefixtures("oracle")

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def configured(**changes: Any) -> Mutation:
    """Let schedulers work under another configuration than was declared."""

    def mutate(patch: Patch) -> None:
        make = Scheduler.__init__

        def careless(self: Scheduler, config: Any, *arguments: Any, **more: Any) -> None:
            make(self, replace(config, **changes), *arguments, **more)

        patch.setattr(Scheduler, "__init__", careless)

    return mutate


def shorter_chunks(patch: Patch) -> None:
    """A step leaves a part of its budget to nobody."""
    prefills = Scheduler._prefills
    patch.setattr(
        Scheduler,
        "_prefills",
        lambda self, now, budget, decodes, *, whole: prefills(self, now, max(1, budget // 2), decodes, whole=whole),
    )


def partial_prompts(patch: Patch) -> None:
    """Whole prompts are taken in parts, as chunks are."""
    prefills = Scheduler._prefills

    def parts(self: Scheduler, now: int, budget: int, decodes: list[Sequence], *, whole: bool) -> Any:
        del whole
        return prefills(self, now, budget, decodes, whole=False)

    patch.setattr(Scheduler, "_prefills", parts)


def prefills_beside_decodes(patch: Patch) -> None:
    """A step decodes besides the prompts that it takes whole."""

    def decide(self: Scheduler, now: int) -> Any:
        found = original(self, now)
        if found.prefills and not found.decodes:
            left = self.config.max_batch_tokens - found.tokens
            return found._replace(decodes=tuple(self._decodes(now, left)))
        return found

    original = Scheduler._decide
    patch.setattr(Scheduler, "_decide", decide)


def lazy_decodes(patch: Patch) -> None:
    """Only two sequences decode in a step, though more could."""
    decodes = Scheduler._decodes
    patch.setattr(Scheduler, "_decodes", lambda self, now, budget: decodes(self, now, min(budget, 2)))


def greedy_stage(patch: Patch) -> None:
    """A micro-batch takes all that can decode, and leaves the other stages nothing."""
    decodes = Scheduler._decodes

    def greedy(self: Scheduler, now: int, budget: int) -> list[Sequence]:
        stages, self.stages = self.stages, 1
        try:
            return [s for s in decodes(self, now, budget) if not s.in_flight]
        finally:
            self.stages = stages

    patch.setattr(Scheduler, "_decodes", greedy)


def one_decode(patch: Patch) -> None:
    """With stages, a micro-batch decodes one sequence, not an even share."""
    decodes = Scheduler._decodes

    def single(self: Scheduler, now: int, budget: int) -> list[Sequence]:
        return decodes(self, now, budget if self.stages == 1 else min(budget, 1))

    patch.setattr(Scheduler, "_decodes", single)


def in_flight_at_most(of: Callable[[int], int]) -> Mutation:
    """Let more or fewer steps be in flight than there are stages."""

    def mutate(patch: Patch) -> None:
        def schedule(self: Replica) -> None:
            while is_free(self._pipeline) and self.in_flight < of(len(self._pipeline.stages)):
                decision = self.scheduler.schedule(now_ns(self.env))
                if decision is None:
                    return
                self._step(decision, self.batch_of(decision))

        patch.setattr(Replica, "schedule", schedule)

    return mutate


def last_first(patch: Patch) -> None:
    """The queue is a stack."""

    def add(self: Members, sequence: Sequence) -> None:
        sequence.rank = (0, 0, -sequence.request)
        self.waiting.appendleft(sequence)  # type: ignore[union-attr]

    patch.setattr(Members, "add", add)


def ranked_by(rank: Callable[[Order, Sequence], tuple[int, int, int]]) -> Mutation:
    return lambda patch: patch.setattr(queues, "rank_in", rank)


def reluctant(patch: Patch) -> None:
    """One place of the batch stays empty."""

    def admits(self: PoolMembers, sequence: Sequence) -> bool:
        del sequence
        return len(self.running) + self.receiving < self.config.max_batch_requests - 1

    patch.setattr(PoolMembers, "_admits", admits)


def late_blocks(patch: Patch) -> None:
    """A decode replica that is at work sets blocks aside before every third step alone."""
    reserve = PoolMembers.reserve

    def lazy(self: PoolMembers, now: int) -> None:
        self.turns = getattr(self, "turns", 0) + bool(self.arriving)  # type: ignore[attr-defined]
        if self.turns % 3 == 0 or not self.running:  # type: ignore[attr-defined]
            reserve(self, now)

    patch.setattr(PoolMembers, "reserve", lazy)


def last_leaves_first(patch: Patch) -> None:
    """What fails is left by the last sequence first."""
    evict = Members.evict

    def turned(self: Members, now: int) -> Any:
        self.running.reverse()
        return evict(self, now)

    patch.setattr(Members, "evict", turned)


def room_for(factor: float) -> Mutation:
    """Sequences are taken to come to need another number of blocks than they do."""

    def mutate(patch: Patch) -> None:
        whole, most = Members._whole, Sequence.most_tokens.fget
        patch.setattr(Members, "_whole", lambda self, sequence: max(1, round(whole(self, sequence) * factor)))
        patch.setattr(Sequence, "most_tokens", property(lambda self: max(1, round(most(self) * factor))))

    return mutate


def joins_the_batch(patch: Patch) -> None:
    """Whoever waits joins the static batch that is under way."""

    def admits(self: StaticScheduler, sequence: Sequence) -> bool:
        self.owners.setdefault(sequence.request, 0)
        return len(self.running) < self.config.max_batch_requests

    patch.setattr(StaticScheduler, "_admits", admits)


def other_victims(patch: Patch) -> None:
    """The sequence that came first gives way."""
    after = Preemption._after
    patch.setattr(Preemption, "_after", lambda self, sequence: after(self, sequence)[::-1])


def next_victims(patch: Patch) -> None:
    """The sequence right behind the one that lacks a block gives way, and those behind it stay in the step."""
    patch.setattr(Preemption, "_after", lambda self, sequence: self.running[self.running.index(sequence) + 1 :])


def two_victims(patch: Patch) -> None:
    """Where one has given way, the next one does, too."""
    grow = Preemption._grow

    def both(self: Preemption, now: int, sequence: Sequence, tokens: int, chosen: list[Sequence]) -> bool:
        before = len(self.running)
        found = grow(self, now, sequence, tokens, chosen)
        if found and len(self.running) < before and self._may_preempt(self.running[-1], sequence, [sequence, *chosen]):
            self._preempt(now, self.running[-1])
        return found

    patch.setattr(Preemption, "_grow", both)


def computed_anew(patch: Patch) -> None:
    """Nothing is kept in host memory, though there is room."""
    patch.setattr(SwappingScheduler, "_preempt", Preemption._preempt)


def last_comes_back(patch: Patch) -> None:
    """Who was swapped out last comes back first."""
    swap_in = SwappingScheduler._swap_in

    def wrong(self: SwappingScheduler, now: int) -> None:
        if len(self.swapped) > 1:
            last = max(self.swapped, key=lambda one: one.rank)
            self.swapped.remove(last)
            self.swapped.appendleft(last)  # type: ignore[union-attr]
        swap_in(self, now)

    patch.setattr(SwappingScheduler, "_swap_in", wrong)


def limit_of_queues(of: Callable[[int], int | None]) -> Mutation:
    def mutate(patch: Patch) -> None:
        def crowded(self: EventReplay, replica: Any) -> str | None:
            limit = of(self.input.entry.serving.queue_limit or 0)
            return "full" if limit is not None and replica.waiting >= limit else None

        patch.setattr(EventReplay, "_crowded", crowded)

    return mutate


def window_of(of: Callable[[int | None], int | None]) -> Mutation:
    """Let who decides what can never run take another context window."""

    def mutate(patch: Patch) -> None:
        own = Members.refusal

        def wrong(self: Members, sequence: Any) -> str | None:
            declared = self.config
            self.config = replace(declared, context_window=of(declared.context_window))
            try:
                return own(self, sequence)
            finally:
                self.config = declared

        patch.setattr(Members, "refusal", wrong)

    return mutate


def timeouts(of: Callable[[int], int | None]) -> Mutation:
    def mutate(patch: Patch) -> None:
        own = Patience.__init__

        def wrong(self: Patience, *given: Any, **more: Any) -> None:
            own(self, *given, **more)
            self.timeout_ns = of(self.timeout_ns or 0)

        patch.setattr(Patience, "__init__", wrong)

    return mutate


def crowd_in_the_loop(patch: Patch) -> None:
    """One request too many is in flight."""
    release = EventReplay._release
    patch.setattr(EventReplay, "_release", lambda self, count: release(self, count + (self.next_request == 0)))


def admitted_before_those_away(patch: Patch) -> None:
    """Requests are admitted while others wait in host memory."""

    def admits(self: SwappingScheduler, sequence: Sequence) -> bool:
        del sequence
        return len(self.running) + len(self.inbound) < self.config.max_batch_requests

    patch.setattr(SwappingScheduler, "_admits", admits)


def routed_by(route: Callable[[Any, Any], Any]) -> Mutation:
    """Let routers choose another replica; of two pools in both."""

    def mutate(patch: Patch) -> None:
        for made in (routers.Least, routers.PowerOfTwo, routers.PrefixAware):
            patch.setattr(made, "route", lambda self, now, request, loads: route(self, loads).index)

    return mutate


def fullest(self: Any, loads: Any) -> Any:
    return max(loads, key=lambda load: (load.outstanding, load.index))


def in_turn(self: Any, loads: Any) -> Any:
    self.turn = getattr(self, "turn", -1) + 1
    return loads[self.turn % len(loads)]


def fewest_tokens(self: Any, loads: Any) -> Any:
    return min(loads, key=lambda load: (load.outstanding, load.index))


def fewest_running(self: Any, loads: Any) -> Any:
    return min(loads, key=lambda load: (load.running, load.index))


def another_draw(patch: Patch) -> None:
    """The router draws from another stream."""
    make = routers.PowerOfTwo.__init__
    patch.setattr(routers.PowerOfTwo, "__init__", lambda self, seed, stream="router": make(self, seed + 1, stream))


def always_balanced(patch: Patch) -> None:
    """Nobody looks at the loads where a prefix is cached."""
    patch.setattr(routers.PrefixAware, "_unbalanced", lambda self, loads: False)


def any_prefix(patch: Patch) -> None:
    """A prefix is followed however short it is."""
    make = routers.PrefixAware.__init__

    def careless(self: Any, routing: Any) -> None:
        make(self, replace(routing, cache_threshold=0.0))

    patch.setattr(routers.PrefixAware, "__init__", careless)


def last_of_equals(patch: Patch) -> None:
    """Of replicas with equal loads the last one is taken."""

    def route(self: routers.Least, now: int, request: Any, loads: Any) -> int:
        index: int = min(loads, key=lambda load: (self.of(load), -load.index)).index
        return index

    patch.setattr(routers.Least, "route", route)


def stuck_turn(patch: Patch) -> None:
    """The router in turn stays with one replica for two requests."""

    def route(self: routers.RoundRobin, now: int, request: Any, loads: Any) -> int:
        self.turn += 1
        index: int = loads[(self.turn - 1) // 2 % len(loads)].index
        return index

    patch.setattr(routers.RoundRobin, "route", route)


def away_from_prefixes(patch: Patch) -> None:
    """Nobody looks at what is cached."""
    patch.setattr(routers.PrefixAware, "_with_longest", lambda self, request, loads: loads)


def fewer_blocks(patch: Patch) -> None:
    """One block less is taken over than is cached."""
    leading = PrefixCache.leading
    patch.setattr(PrefixCache, "leading", lambda self, keys, most: max(0, leading(self, keys, most) - 1))


def half_a_prompt_at_most(patch: Patch) -> None:
    """No more than one block of a prompt is ever taken over."""
    leading = PrefixCache.leading
    patch.setattr(PrefixCache, "leading", lambda self, keys, most: leading(self, keys, min(most, 1)))


def nothing_cached(patch: Patch) -> None:
    """Every prompt is computed in full."""
    patch.setattr(PrefixCache, "leading", lambda self, keys, most: 0)


def taking(chosen: Callable[[PrefixCache], int]) -> Mutation:
    """Blocks are taken from a place in the queue of free ones, or from the first of the run that has it."""
    take = PrefixCache.take

    def wrong(self: PrefixCache, blocks: int) -> None:
        while blocks:
            place = chosen(self)
            key, _ = self.free[place]
            first = place if key == NOTHING else self.runs[key].free[0]
            self.free.move_to_end(first, last=False)
            taken = min(blocks, self.free[first][1])
            take(self, taken)
            blocks -= taken

    return lambda patch: patch.setattr(PrefixCache, "take", wrong)


def newest(cache: PrefixCache) -> int:
    """Return what came free last."""
    return next(reversed(cache.free))


def all_but_the_oldest(cache: PrefixCache) -> int:
    """Return blank blocks, or what came free after the first."""
    blank = next((place for place, (key, _) in cache.free.items() if key == NOTHING), None)
    return [*cache.free][:2][-1] if blank is None else blank


def contents(cache: PrefixCache) -> int:
    """Return what holds something, as long as there is any."""
    return min(cache.free, key=lambda place: cache.free[place][0] == NOTHING)


def other_transfer(patch: Patch) -> None:
    """What is to be handed over whole goes layer by layer, and the other way round."""
    make = HandOvers.__init__

    def wrong(self: HandOvers, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        self.layerwise = not self.layerwise
        for index in self.prepared.pools[0].replicas:
            self.replicas[index].on_launch = self._launched if self.layerwise else None

    patch.setattr(HandOvers, "__init__", wrong)


def half_a_pool(patch: Patch) -> None:
    """Half of the memory that is to hold K/V is left to nobody, in the sum that the audit sees as well."""
    blocks = legality.kv_pool_blocks
    patch.setattr(legality, "kv_pool_blocks", lambda *given, **more: blocks(*given, **more) // 2)


def serving(**changes: Any) -> dict[str, Any]:
    return {"serving": changes}


LONG = serving(long_prompt_tokens=6)
WHOLE = serving(scheduler="continuous")
FOUR = {"tp": 1, "pp": 4}
STATIC = serving(scheduler="static", max_batch_requests=3)
CROWD = {"workload": {"arrivals": {"process": "all_at_once"}, "requests": 12}}
FEW = serving(max_batch_requests=2) | CROWD
URGENT = serving(max_batch_requests=2, order={"by": "priority", "patience": "1 ms"}) | {
    "workload": {"priority": {"values": [0, 1, 2]}, "requests": 16}
}
SHORTEST = serving(max_batch_requests=2, order={"by": "shortest_prompt", "patience": "1 ms"}) | CROWD
LIMITED = serving(max_batch_requests=2, queue_limit=3) | CROWD
TIMED = serving(max_batch_requests=2, queue_timeout="3 ms") | CROWD
LOOP = {"workload": {"arrivals": {"process": "closed_loop", "concurrency": 3}, "requests": 12}}
SHORT = {
    "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"uniform": {"low": 4, "high": 16}},
    "output_tokens": {"uniform": {"low": 20, "high": 30}}, "requests": 16,
}  # fmt: skip
WINDOWED = serving(context_window=36) | {"workload": SHORT}
CRAMPED = serving(kv_blocks=40) | {"workload": SHORT}
RANKED = serving(kv_blocks=40, order={"by": "shortest_prompt", "patience": "unlimited"}) | {"workload": SHORT}
KEPT = serving(kv_blocks=40, preemption="never") | {"workload": SHORT}
KEPT_WHOLE = serving(kv_blocks=40, preemption="never", scheduler="continuous") | {"workload": SHORT}
KEPT_SHARED = serving(kv_blocks=40, preemption="never", prefix_caching=True, max_batch_requests=6) | {
    "workload": {**SHORT, "shared_prefixes": {"groups": 4, "tokens": 12}}
}
CRAMPED_WHOLE = serving(kv_blocks=40, scheduler="continuous") | {"workload": SHORT}
LATE = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 40, "output_tokens": 20, "requests": 6}
CUT = serving(kv_blocks=18, max_batch_tokens=8) | {"workload": LATE}
CUT_FIRST = serving(kv_blocks=18, max_batch_tokens=8, admission="first_chunk") | {"workload": LATE}
AWAY = serving(kv_blocks=40, preemption="swap", host_kv="1 GiB", max_batch_requests=6) | {"workload": SHORT}
LONG_AWAY = serving(kv_blocks=30, preemption="swap", host_kv="1 GiB", max_batch_requests=6, admission="first_chunk") | {
    "workload": {"output_tokens": {"uniform": {"low": 20, "high": 30}}, "requests": 12}
}


def keeping_its_own(patch: Patch) -> None:
    """A prompt that lacks blocks waits with those that it has."""
    patch.setattr(Preemption, "_gives_up", lambda *_: False)


def fleet(name: str, **more: Any) -> dict[str, Any]:
    """Three replicas behind a router, and more requests than they can take at once."""
    return {
        "plan": {"dp": 3}, "serving": {"router": name, "max_batch_requests": 2, **more},
        "workload": {"requests": 24},
    }  # fmt: skip


def pools(prefill: str, decode: str, **more: Any) -> dict[str, Any]:
    """Two replicas behind a router in each of two pools."""
    named = {"prefill": {"router": prefill}, "decode": {"router": decode}}
    return {
        "plan": {"prefill": {"dp": 2}, "decode": {"dp": 2}},
        "serving": {"scheduler": "disaggregated", **named, **more}, "workload": {"requests": 24},
    }  # fmt: skip


def given_up(transfer: str, router: str) -> dict[str, Any]:
    """Three decode replicas, and clients that give up on the way from pool to pool and anywhere else."""
    found = pools("round_robin", router, transfer=transfer)
    found["plan"]["decode"]["dp"] = 3
    return found | {"workload": {"requests": 60, "cancel_after": {"share": 0.5, "fixed": "1 ms"}}}


SHORT_OF_BLOCKS = pools("round_robin", "fewest_waiting", transfer="layerwise")
"""Some prompts get decode blocks at the instant at which they are routed, and some wait for them."""
SHORT_OF_BLOCKS["serving"]["decode"] |= {"max_batch_requests": 2, "kv_blocks": 20}


def shared(**options: Any) -> dict[str, Any]:
    """Replicas that cache prefixes, which a router follows."""
    found = fleet("prefix_aware", prefix_caching=True, router_options=options)
    return found | {"workload": {"requests": 24, "shared_prefixes": {"groups": 5, "tokens": 16}}}


def cached(blocks: int, groups: int = 4) -> dict[str, Any]:
    """One replica that caches prefixes, in a pool with few blocks."""
    return {
        "serving": {"prefix_caching": True, "kv_blocks": blocks, "max_batch_requests": 2},
        "workload": {"requests": 40, "shared_prefixes": {"groups": groups, "tokens": 24}},
    }  # fmt: skip


FAILING_DECODE = SHORT_OF_BLOCKS | {"faults": [{"device": 3, "at": "9.3 ms", "until": "12 ms"}]}
DOWN = CROWD | {"faults": [{"device": 0, "at": "3.3 ms", "until": "5 ms"}]}
DOWN_IN_POOLS = pools("round_robin", "round_robin") | {"faults": [{"device": 3, "at": "9.3 ms", "until": "12 ms"}]}
MUTATIONS: dict[str, tuple[Mutation, dict[str, Any], dict[str, Any]]] = {
    "long_prompt_tokens is ignored": (configured(long_prompt_tokens=None), LONG, FOLDED),
    "long_prompt_tokens is twice as many": (configured(long_prompt_tokens=12), LONG, FOLDED),
    "long_prompt_tokens is half as many": (configured(long_prompt_tokens=3), LONG, FOLDED),
    "long_prompt_tokens is of nobody's": (configured(long_prompt_tokens=6), {}, EVENTS),
    "half a budget is prefilled": (shorter_chunks, {}, EVENTS),
    "continuous takes parts of prompts": (partial_prompts, WHOLE, EVENTS),
    "static takes parts of prompts": (partial_prompts, STATIC, EVENTS),
    "continuous decodes beside prompts": (
        prefills_beside_decodes, serving(scheduler="continuous", kv_block_tokens=128), EVENTS,
    ),
    "continuous instead of chunked_prefill": (configured(scheduler="continuous"), {}, FOLDED),
    "chunked_prefill instead of continuous": (configured(scheduler="chunked_prefill"), WHOLE, FOLDED),
    "a sequence that could decode is left out": (lazy_decodes, {}, EVENTS),
    "a micro-batch takes all that can decode": (greedy_stage, {"plan": PIPE} | CROWD, EVENTS),
    "a micro-batch decodes one sequence": (one_decode, {"plan": PIPE} | CROWD, EVENTS),
    "one step is in flight on two stages": (in_flight_at_most(lambda _: 1), {"plan": PIPE}, EVENTS),
    "two steps are in flight on four stages": (in_flight_at_most(lambda _: 2), {"plan": FOUR} | CROWD, EVENTS),
    "one step too many is in flight": (in_flight_at_most(lambda stages: stages + 1), {"plan": PIPE} | CROWD, EVENTS),
    "the queue is a stack": (last_first, FEW, EVENTS),
    "priorities are ignored": (ranked_by(lambda _, s: (0, s.arrived_ns, s.request)), URGENT, EVENTS),
    "priorities are the other way round": (
        ranked_by(lambda one, s: (0, s.arrived_ns - one.patience_ns * s.priority, s.request)), URGENT, EVENTS,
    ),
    "the patience is another one": (
        ranked_by(lambda one, s: (0, s.arrived_ns + 9 * one.patience_ns * s.priority, s.request)), URGENT, EVENTS,
    ),
    "the patience has no limit": (ranked_by(lambda _, s: (s.priority, s.arrived_ns, s.request)), URGENT, EVENTS),
    "the longest prompt goes first": (ranked_by(lambda _, s: (0, -s.prompt_tokens, s.request)), SHORTEST, EVENTS),
    "a place of the batch stays empty": (reluctant, FEW, EVENTS),
    "half of the places stay empty": (configured(max_batch_requests=4), CROWD, FOLDED),
    "half of the budget is used": (configured(max_batch_tokens=16), CROWD, FOLDED),
    "others join a static batch": (joins_the_batch, STATIC | {"workload": {"requests": 12}}, EVENTS),
    "the first sequence gives way": (other_victims, CRAMPED, EVENTS),
    "the first sequence gives way in a ranked queue": (other_victims, RANKED, EVENTS),
    "the first prompt gives way to its successors": (other_victims, CRAMPED_WHOLE, EVENTS),
    "the next sequence gives way": (next_victims, CRAMPED, EVENTS),
    "the next sequence gives way in the folded replay": (next_victims, CRAMPED_WHOLE, FOLDED),
    "the next sequence leaves for its host": (next_victims, AWAY, EVENTS),
    "more give way than has to": (two_victims, CRAMPED, EVENTS),
    "a first chunk is enough": (configured(admission="first_chunk"), CUT, EVENTS),
    "a first chunk is enough in the folded replay": (configured(admission="first_chunk"), CUT, FOLDED),
    "a first chunk is not enough": (configured(admission="whole_prompt"), CUT_FIRST, EVENTS),
    "a prompt that lacks blocks keeps its own": (keeping_its_own, CUT_FIRST, EVENTS),
    "room is kept for nobody": (configured(preemption="recompute"), KEPT, EVENTS),
    "room is kept for nobody in the folded replay": (configured(preemption="recompute"), KEPT, FOLDED),
    "room is kept for nobody beside prompts that go alone": (configured(preemption="recompute"), KEPT_WHOLE, EVENTS),
    "room is kept for nobody where prefixes are shared": (configured(preemption="recompute"), KEPT_SHARED, EVENTS),
    "room is kept for nobody on two stages": (configured(preemption="recompute"), KEPT | {"plan": PIPE}, EVENTS),
    "room is kept for everybody": (configured(preemption="never"), CRAMPED, EVENTS),
    "room is kept for everybody in the folded replay": (configured(preemption="never"), CRAMPED, FOLDED),
    "too little room is kept": (room_for(0.8), KEPT, EVENTS),
    "too little room is kept in the folded replay": (room_for(0.8), KEPT, FOLDED),
    "too much room is kept": (room_for(1.3), KEPT, EVENTS),
    "too much room is kept in the folded replay": (room_for(1.3), KEPT, FOLDED),
    "too much room is kept where prefixes are shared": (room_for(1.5), KEPT_SHARED, EVENTS),
    "the first sequence leaves for its host": (other_victims, AWAY, EVENTS),
    "nothing is kept in host memory": (computed_anew, AWAY, EVENTS),
    "who was swapped out last comes back first": (last_comes_back, LONG_AWAY, EVENTS),
    "requests go to the fullest replica": (routed_by(fullest), fleet("least_outstanding"), EVENTS),
    "requests go in turn, not where fewest tokens are": (routed_by(in_turn), fleet("least_outstanding"), EVENTS),
    "requests go where fewest tokens are, not where fewest wait": (
        routed_by(fewest_tokens), fleet("fewest_waiting"), EVENTS,
    ),
    "nobody counts who waits": (routed_by(fewest_running), fleet("fewest_waiting"), EVENTS),
    "the best of three is taken, not of two": (routed_by(fewest_tokens), fleet("power_of_two"), EVENTS),
    "two others are drawn": (another_draw, fleet("power_of_two"), EVENTS),
    "requests go in turn, not where prefixes are": (routed_by(in_turn), shared(), EVENTS),
    "requests go to the fullest replica, not where prefixes are": (routed_by(fullest), shared(), EVENTS),
    "requests go where fewest tokens are, not where prefixes are": (away_from_prefixes, shared(), EVENTS),
    "requests go in turn before a replica fails": (
        routed_by(in_turn), fleet("least_outstanding") | {"faults": [{"device": 0, "at": "8 ms"}]}, EVENTS,
    ),
    "loads are never unbalanced": (always_balanced, shared(balance_abs_threshold=0, balance_rel_threshold=0), EVENTS),
    "a short prefix is followed": (any_prefix, shared(cache_threshold=1.0), EVENTS),
    "prompts go to the fullest prefill replica": (
        routed_by(fullest), pools("least_outstanding", "round_robin"), EVENTS,
    ),
    "prompts go in turn, not where fewest wait": (routed_by(in_turn), pools("fewest_waiting", "round_robin"), EVENTS),
    "prompts go to the fullest decode replica": (routed_by(fullest), pools("round_robin", "least_outstanding"), EVENTS),
    "prompts go in turn to decode": (routed_by(in_turn), pools("round_robin", "fewest_waiting"), EVENTS),
    "the worse of two decode replicas is taken": (routed_by(fullest), pools("round_robin", "power_of_two"), EVENTS),
    "a decode replica gets two in turn": (
        stuck_turn, pools("least_outstanding", "round_robin"), EVENTS,
    ),
    "layers go to the fullest decode replica": (
        routed_by(fullest), pools("round_robin", "least_outstanding", transfer="layerwise"), EVENTS,
    ),
    "layers go to the last of equal replicas": (
        last_of_equals, pools("round_robin", "least_outstanding", transfer="layerwise"), EVENTS,
    ),
    "layers go to one of two others": (
        another_draw, given_up("layerwise", "power_of_two"), EVENTS,
    ),
    "prompts go to one of two others": (another_draw, given_up("whole", "power_of_two"), EVENTS),
    "layers go to the fullest replica while clients give up": (
        routed_by(fullest), given_up("layerwise", "fewest_waiting"), EVENTS,
    ),
    "prompts go to the last of equal replicas while clients give up": (
        last_of_equals, given_up("whole", "least_outstanding"), EVENTS,
    ),
    "layers go in turn, not where fewest wait": (routed_by(in_turn), SHORT_OF_BLOCKS, EVENTS),
    "blocks are set aside a step late": (late_blocks, pools("round_robin", "round_robin"), EVENTS),
    "blocks are set aside a step late where few are free": (late_blocks, SHORT_OF_BLOCKS, EVENTS),
    "blocks are set aside a step late for layers": (
        late_blocks, pools("round_robin", "round_robin", transfer="layerwise"), EVENTS,
    ),
    "the last sequence leaves first what fails": (last_leaves_first, DOWN, EVENTS),
    "the last sequence leaves first what fails in the folded replay": (last_leaves_first, DOWN, FOLDED),
    "the last sequence leaves first a decode replica that fails": (last_leaves_first, DOWN_IN_POOLS, EVENTS),
    "the queue of a decode replica is a stack when another one has failed": (last_first, FAILING_DECODE, EVENTS),
    "a block less is taken over": (fewer_blocks, cached(200), EVENTS),
    "one block of a prompt is taken over": (half_a_prompt_at_most, cached(200), EVENTS),
    "nothing is taken over": (nothing_cached, cached(200), EVENTS),
    "the newest block is forgotten first": (taking(newest), cached(60), EVENTS),
    "the oldest block is never forgotten": (taking(all_but_the_oldest), cached(60), EVENTS),
    "what is cached is forgotten before blank blocks are taken": (taking(contents), cached(200), EVENTS),
    "queue_limit is ignored": (limit_of_queues(lambda _: None), LIMITED, EVENTS),
    "queue_limit is one more": (limit_of_queues(lambda limit: limit + 1), LIMITED, EVENTS),
    "queue_limit is one less": (limit_of_queues(lambda limit: limit - 1), LIMITED, EVENTS),
    "queue_limit is nobody's": (limit_of_queues(lambda _: 3), FEW, EVENTS),
    "context_window is ignored": (window_of(lambda _: None), WINDOWED, EVENTS),
    "context_window is larger": (window_of(lambda window: window + 4), WINDOWED, EVENTS),
    "context_window is smaller": (window_of(lambda window: window - 4), WINDOWED, EVENTS),
    "context_window is nobody's": (window_of(lambda _: 30), {"workload": SHORT}, EVENTS),
    "queue_timeout is ignored": (timeouts(lambda _: None), TIMED, EVENTS),
    "queue_timeout is longer": (timeouts(lambda ns: ns + 1), TIMED, EVENTS),
    "queue_timeout is shorter": (timeouts(lambda ns: ns // 2), TIMED, EVENTS),
    "queue_timeout is nobody's": (timeouts(lambda _: 2_000_000), FEW, EVENTS),
    "a closed loop has one request too many": (crowd_in_the_loop, LOOP, EVENTS),
    "requests are admitted before those that are away": (admitted_before_those_away, AWAY, EVENTS),
}  # fmt: skip


TIMED_FOR_FOUR_LAYERS = (FAILING_DECODE,)
SMALL: dict[str, Any] = {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}}


def small(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario in which as much is decided, by one rank with two layers where it asks for nothing else."""
    if changes in TIMED_FOR_FOUR_LAYERS or changes.get("plan") is FOUR:
        return changes
    return {"plan": {"tp": 1}, "model": SMALL, **changes}


SCENARIOS = list({repr(more): more for _, *more in MUTATIONS.values()}.values())


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what routers see be looked at in parts of a few requests each."""
    monkeypatch.setattr(loads, "_MOST", 8)


@pytest.mark.parametrize("name", MUTATIONS)
def test_serving_that_ignores_what_is_declared_is_noticed(name: str) -> None:
    mutation, changes, run = MUTATIONS[name]
    rule = "RUN-3" if mutation is stuck_turn else "RUN-5"
    assert rule in broken_by(mutation, small(changes), run, (rule,))


@pytest.mark.parametrize(("changes", "run"), some(SCENARIOS))
def test_serving_as_it_is_declared_is_legal(changes: dict[str, Any], run: dict[str, Any]) -> None:
    assert broken_by(nothing, small(changes), run) == []


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
def test_a_hand_over_of_the_other_kind_is_noticed(transfer: str) -> None:
    assert broken_by(other_transfer, pools("round_robin", "round_robin", transfer=transfer), EVENTS, ("RUN-3",)) == [
        "RUN-3"
    ]


SHARES = [{}, {"share_of": "free", "outside": "2 GB"}, {"share_of": "static"}, {"share_of": "static", "margin": 0.01}]


@pytest.mark.parametrize("pool", SHARES)
def test_a_pool_that_leaves_memory_to_nobody_is_noticed(pool: dict[str, Any]) -> None:
    engine = {"name": "ideal", "pool": pool}
    scenario = scenario_of(document(serving={"kv_blocks": None, "memory_utilization": 0.8, "engine": engine}), **FOLDED)
    assert audit_run(simulate(scenario)).violations == ()
    with pytest.MonkeyPatch.context() as patch:
        half_a_pool(patch)
        found = audit_run(simulate(scenario)).violations
    assert {violation.rule for violation in found} == {"KV-6"}


@pytest.mark.parametrize("pool", SHARES)
def test_a_pool_by_the_rule_of_another_engine_is_noticed(pool: dict[str, Any]) -> None:
    engine = {"name": "ideal", "pool": pool}
    scenario = scenario_of(document(serving={"kv_blocks": None, "memory_utilization": 0.8, "engine": engine}), **FOLDED)
    other = PoolRule(share_of="all" if pool else "free")
    with pytest.MonkeyPatch.context() as patch:
        original = legality.kv_pool_blocks
        patch.setattr(legality, "kv_pool_blocks", lambda memory, **given: original(memory, **given | {"rule": other}))
        found = audit_run(simulate(scenario)).violations
    assert {violation.rule for violation in found} == {"KV-6"}


@pytest.mark.parametrize("horizon", ["3.4 ms", "3.8 ms"])
def test_a_decode_pool_whose_last_steps_are_cut_off_is_legal(horizon: str) -> None:
    """Blocks are set aside beside a step in a later stage that the horizon cuts off, so that it is not recorded."""
    cut = pools("fewest_waiting", "least_outstanding")
    cut["plan"] = {"prefill": {"dp": 1, "tp": 1, "pp": 2}, "decode": {"dp": 2, "tp": 1, "pp": 2}}
    cut["serving"]["decode"] |= {"max_batch_requests": 2}
    cut["workload"]["arrivals"] = {"process": "poisson", "rate": "4000/s"}
    scenario = scenario_of(document(**cut, seed=922, run={"horizon": horizon}))
    assert audit_run(simulate(scenario)).violations == ()


def test_each_rank_that_keeps_whole_sequences_has_a_host_of_its_own() -> None:
    """Thirteen blocks of a sequence fit neither of two hosts of seven, and each of two of fifteen."""
    sp = {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}
    narrow, wide = (
        {"plan": {"tp": 1, "sp": sp}, **serving(kv_blocks=40, preemption="swap", host_kv=host, max_batch_requests=6)}
        | {"workload": {"arrivals": {"process": "all_at_once"}, "output_tokens": 20, "requests": 8}}
        for host in ("500 kB", "1 MB")
    )
    assert broken_by(nothing, narrow, EVENTS) == broken_by(nothing, wide, EVENTS) == []
    assert broken_by(computed_anew, wide, EVENTS, ("RUN-5",)) == ["RUN-5"]
