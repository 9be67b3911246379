"""Serving code that ignores what the scenario declares is noticed (RUN-5); the same scenario without it is legal.

Each mutation is a few lines that somebody could have written: a limit that nobody reads, another order, another choice.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from clustersim.legality.timeline_rules.policy import loads
from clustersim.plan.pool import PoolRule
from clustersim.replay.core_pools import KvRoutes
from clustersim.replay.instant import now_ns
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.serving.capacity import ReplicaCapacity
from clustersim.serving.router import DrawnPairs
from clustersim.simulation import legality
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import is_whole, some
from tests.laws.random_scenarios import LLAMA, scenario_of
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_replay_mutations import FOLDED, FULL, PIPE, broken_by, document, nothing
from tests.oracle.events.pipelines import is_free
from tests.oracle.events.replica import Replica

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]

EVENTS = FULL if is_whole() else FOLDED
"""Operator by operator with ``--long=1``."""
BY_ORACLE: dict[str, Any] = FOLDED | {"by": "events"}


def core(module: str, old: str, new: str) -> Mutation:
    """Let a text of a module of the core be another one."""
    return lambda patch: changed(patch, Change(f"clustersim.core.{module}", old, new))


def configured(**changes: Any) -> Mutation:
    """Let replicas work under another configuration than was declared."""

    def mutate(patch: Patch) -> None:
        declared = PreparedPool.capacity.fget
        assert declared is not None

        def careless(self: PreparedPool) -> ReplicaCapacity:
            found: ReplicaCapacity = declared(self)
            return replace(found, config=replace(found.config, **changes))

        patch.setattr(PreparedPool, "capacity", property(careless))

    return mutate


SHARE = "+ rep.stages - 1) // rep.stages, budget)"
FREE = "if rep.flying == rep.stages or"
RANKED_BY = "s.ranks[at], seq.arrived + s.thens[at]"
AFTER = "return other\n            if comes_before(s, one, other) and (found < 0 or comes_before(s, found, other)):"
TAKEN = "at = extents[NOTHING].behind\n        extent"

shorter_chunks = core(
    "scheduler", "base, rep.max_tokens - rep.decodes)", "base, max(1, (rep.max_tokens - rep.decodes) // 2))"
)
"""A step leaves a part of its budget to nobody."""
partial_prompts = core("scheduler", "if rep.chunked == 0 and count", "if False and count")
"""Whole prompts are taken in parts, as chunks are."""
prefills_beside_decodes = core("scheduler", "if rep.chunked:", "if True:")
"""A step decodes besides the prompts that it takes whole."""
lazy_decodes = core("scheduler", SHARE, SHARE.replace("budget", "budget, 2"))
"""Only two sequences decode in a step, though more could."""
greedy_stage = core("scheduler", SHARE, SHARE.replace("// rep.stages", "// 1"))
"""A micro-batch takes all that can decode, and leaves the other stages nothing."""
one_decode = core("scheduler", SHARE, SHARE.replace("budget", "budget, 1"))
"""With stages, a micro-batch decodes one sequence, not an even share."""
one_in_flight = core("steps", FREE, "if rep.flying == 1 or")
two_in_flight = core("steps", FREE, "if rep.flying == 2 or")


def one_more_in_flight(patch: Patch) -> None:
    """A step is launched while as many are in flight as there are stages: in the oracle, since the core lacks room."""

    def schedule(self: Replica) -> None:
        while is_free(self._pipeline) and self.in_flight <= len(self._pipeline.stages):
            decision = self.scheduler.schedule(now_ns(self.env))
            if decision is None:
                return
            self._step(decision, self.batch_of(decision))

    patch.setattr(Replica, "schedule", schedule)


last_first = core("queue", "return mine.request < theirs.request", "return mine.request > theirs.request")
"""The queue is a stack."""


def ranked_by(rank: str) -> Mutation:
    """Rank those that wait by something else."""
    return core("steps", RANKED_BY, rank)


reluctant = core("scheduler", "rep.running < places", "rep.running < places - 1")
"""One place of the batch stays empty."""
late_blocks = core("steps", "if rep.arriving > 0:", "if rep.arriving > 0 and (rep.step % 3 == 0 or rep.running == 0):")
"""A decode replica that is at work sets blocks aside before every third step alone."""
last_leaves_first = core("outages", "one = order[0]", "one = order[rep.running - 1]")
"""What fails is left by the last sequence first."""


def room_for(factor: float) -> Mutation:
    """Sequences are taken to come to need another number of blocks than they do."""
    whole = "blocks_of(rep, seq.prompt + max(seq.output - 1, 0))"
    return core("progress", f"return {whole}", f"return max(1, round({factor} * {whole}))")


joins_the_batch = core("scheduler", "if rep.static and seq.batch != rep.batch:", "if False:")
"""Whoever waits joins the static batch that is under way."""
other_victims = core(
    "scheduler", AFTER, AFTER.replace("return other", "found = other").replace("found, other", "other, found")
)
"""The sequence that came first gives way."""
next_victims = core("scheduler", "return other", "found = other")
"""The sequence right behind the one that lacks a block gives way, and those behind it stay in the step."""
two_victims = core(
    "scheduler",
    "preempt(s, r, victim)\n",
    "preempt(s, r, victim)\n"
    "        if last_behind(s, r, one) >= 0:\n"
    "            preempt(s, r, last_behind(s, r, one))\n",
)
"""Where one has given way, the next one does, too."""
computed_anew = core("scheduler", "if seq.computed > 0 and blocks", "if False and blocks")
"""Nothing is kept in host memory, though there is room."""
last_comes_back = core("swapping", "one = s.swapped[r][0]", "one = s.swapped[r][rep.swapped - 1]")
"""Who was swapped out last comes back first."""
crowd_in_the_loop = core("clock", "clock.freed > 0 if", "clock.freed >= 0 if")
"""One request too many is in flight."""
admitted_before_those_away = core("scheduler", " if rep.swapped == 0 else 0", "")
"""Requests are admitted while others wait in host memory."""


def routed_by(replica: str) -> Mutation:
    """Let routers that look at loads choose another replica; of two pools in both."""
    living = "s.living[pool.first : pool.first + pool.living]"
    chosen = replica.replace("LIVING", living)
    first = "turn, place = pool.choices, pool.first\n"
    return core("routing", first, f"{first}    if pool.router > 0:\n        return {chosen}\n")


fullest = routed_by("max(LIVING, key=lambda r: (s.replicas[r].outstanding, r))")
in_turn = routed_by("LIVING[turn % pool.living]")
fewest_tokens = routed_by("min(LIVING, key=lambda r: (s.replicas[r].outstanding, r))")
fewest_running = routed_by("min(LIVING, key=lambda r: (s.replicas[r].running, r))")
last_of_equals = routed_by("min(LIVING, key=lambda r: (s.replicas[r].outstanding, -r))")
"""Of replicas with equal loads the last one is taken."""


def another_draw(patch: Patch) -> None:
    """The router draws from another stream."""
    make = DrawnPairs.__init__
    patch.setattr(DrawnPairs, "__init__", lambda self, seed, stream="router": make(self, seed + 1, stream))


always_balanced = core("routing", "if most - least > routing", "if False and most - least > routing")
"""Nobody looks at the loads where a prefix is cached."""
any_prefix = core("routing", "if tokens >= routing.cache_threshold * s.prompts[request]", "if True")
"""A prefix is followed however short it is."""
stuck_turn = core("routing", "living[place + turn % pool.living]", "living[place + turn // 2 % pool.living]")
"""The router in turn stays with one replica for two requests."""
away_from_prefixes = core("routing", "return found if tokens", "return emptiest if tokens")
"""Nobody looks at what is cached."""
fewer_blocks = core("prefix_cache", "return min(found, most)", "return max(0, min(found, most) - 1)")
"""One block less is taken over than is cached."""
half_a_prompt_at_most = core("prefix_cache", "return min(found, most)", "return min(found, most, 1)")
"""No more than one block of a prompt is ever taken over."""
nothing_cached = core("prefix_cache", "return min(found, most)", "return 0")
"""Every prompt is computed in full."""
newest = core("prefix_cache", TAKEN, TAKEN.replace("behind", "before"))
"""What came free last is taken first."""
all_but_the_oldest = core(
    "prefix_cache",
    TAKEN,
    "at = extents[NOTHING].behind\n"
    "        other = extents[at].behind\n"
    "        while extents[at].run != NOTHING and other != NOTHING and extents[other].run == extents[at].run:\n"
    "            other = extents[other].behind\n"
    "        at = other if extents[at].run != NOTHING and other != NOTHING else at\n"
    "        extent",
)
"""What came free first is taken last."""
contents = core(
    "prefix_cache",
    TAKEN,
    "at = extents[NOTHING].behind\n"
    "        while extents[at].run == NOTHING and extents[at].behind != NOTHING:\n"
    "            at = extents[at].behind\n"
    "        extent",
)
"""What holds something is taken first."""


def other_transfer(patch: Patch) -> None:
    """What is to be handed over whole goes layer by layer, and the other way round."""
    make = KvRoutes.__init__

    def wrong(self: KvRoutes, prepared: Prepared, storage: Any) -> None:
        pool = prepared.pools[0].input
        other = "whole" if pool.serving.transfer == "layerwise" else "layerwise"
        first = replace(pool, serving=replace(pool.serving, transfer=other))
        fake = copy(prepared)
        fake.input = replace(prepared.input, pools=(first, *prepared.input.pools[1:]))
        make(self, fake, storage)

    patch.setattr(KvRoutes, "__init__", wrong)


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


keeping_its_own = core("scheduler", "elif rep.gives_up and", "elif False and")
"""A prompt that lacks blocks waits with those that it has."""


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
    "one step is in flight on two stages": (one_in_flight, {"plan": PIPE}, EVENTS),
    "two steps are in flight on four stages": (two_in_flight, {"plan": FOUR} | CROWD, EVENTS),
    "one step too many is in flight": (one_more_in_flight, {"plan": PIPE} | CROWD, BY_ORACLE),
    "the queue is a stack": (last_first, FEW, EVENTS),
    "priorities are ignored": (ranked_by("0, seq.arrived"), URGENT, EVENTS),
    "priorities are the other way round": (
        ranked_by("0, seq.arrived - s.thens[at]"), URGENT, EVENTS,
    ),
    "the patience is another one": (
        ranked_by("0, seq.arrived + 9 * s.thens[at]"), URGENT, EVENTS,
    ),
    "the patience has no limit": (ranked_by("s.thens[at], seq.arrived"), URGENT, EVENTS),
    "the longest prompt goes first": (ranked_by("0, -seq.prompt"), SHORTEST, EVENTS),
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
    "requests go to the fullest replica": (fullest, fleet("least_outstanding"), EVENTS),
    "requests go in turn, not where fewest tokens are": (in_turn, fleet("least_outstanding"), EVENTS),
    "requests go where fewest tokens are, not where fewest wait": (
        fewest_tokens, fleet("fewest_waiting"), EVENTS,
    ),
    "nobody counts who waits": (fewest_running, fleet("fewest_waiting"), EVENTS),
    "the best of three is taken, not of two": (fewest_tokens, fleet("power_of_two"), EVENTS),
    "two others are drawn": (another_draw, fleet("power_of_two"), EVENTS),
    "requests go in turn, not where prefixes are": (in_turn, shared(), EVENTS),
    "requests go to the fullest replica, not where prefixes are": (fullest, shared(), EVENTS),
    "requests go where fewest tokens are, not where prefixes are": (away_from_prefixes, shared(), EVENTS),
    "requests go in turn before a replica fails": (
        in_turn, fleet("least_outstanding") | {"faults": [{"device": 0, "at": "8 ms"}]}, EVENTS,
    ),
    "loads are never unbalanced": (always_balanced, shared(balance_abs_threshold=0, balance_rel_threshold=0), EVENTS),
    "a short prefix is followed": (any_prefix, shared(cache_threshold=1.0), EVENTS),
    "prompts go to the fullest prefill replica": (
        fullest, pools("least_outstanding", "round_robin"), EVENTS,
    ),
    "prompts go in turn, not where fewest wait": (in_turn, pools("fewest_waiting", "round_robin"), EVENTS),
    "prompts go to the fullest decode replica": (fullest, pools("round_robin", "least_outstanding"), EVENTS),
    "prompts go in turn to decode": (in_turn, pools("round_robin", "fewest_waiting"), EVENTS),
    "the worse of two decode replicas is taken": (fullest, pools("round_robin", "power_of_two"), EVENTS),
    "a decode replica gets two in turn": (
        stuck_turn, pools("least_outstanding", "round_robin"), EVENTS,
    ),
    "layers go to the fullest decode replica": (
        fullest, pools("round_robin", "least_outstanding", transfer="layerwise"), EVENTS,
    ),
    "layers go to the last of equal replicas": (
        last_of_equals, pools("round_robin", "least_outstanding", transfer="layerwise"), EVENTS,
    ),
    "layers go to one of two others": (
        another_draw, given_up("layerwise", "power_of_two"), EVENTS,
    ),
    "prompts go to one of two others": (another_draw, given_up("whole", "power_of_two"), EVENTS),
    "layers go to the fullest replica while clients give up": (
        fullest, given_up("layerwise", "fewest_waiting"), EVENTS,
    ),
    "prompts go to the last of equal replicas while clients give up": (
        last_of_equals, given_up("whole", "least_outstanding"), EVENTS,
    ),
    "layers go in turn, not where fewest wait": (in_turn, SHORT_OF_BLOCKS, EVENTS),
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
    "the newest block is forgotten first": (newest, cached(60), EVENTS),
    "the oldest block is never forgotten": (all_but_the_oldest, cached(60), EVENTS),
    "what is cached is forgotten before blank blocks are taken": (contents, cached(200), EVENTS),
    "queue_limit is ignored": (configured(queue_limit=None), LIMITED, EVENTS),
    "queue_limit is one more": (configured(queue_limit=4), LIMITED, EVENTS),
    "queue_limit is one less": (configured(queue_limit=2), LIMITED, EVENTS),
    "queue_limit is nobody's": (configured(queue_limit=3), FEW, EVENTS),
    "context_window is ignored": (configured(context_window=None), WINDOWED, EVENTS),
    "context_window is larger": (configured(context_window=40), WINDOWED, EVENTS),
    "context_window is smaller": (configured(context_window=32), WINDOWED, EVENTS),
    "context_window is nobody's": (configured(context_window=30), {"workload": SHORT}, EVENTS),
    "queue_timeout is ignored": (configured(queue_timeout_ns=None), TIMED, EVENTS),
    "queue_timeout is longer": (configured(queue_timeout_ns=3_000_001), TIMED, EVENTS),
    "queue_timeout is shorter": (configured(queue_timeout_ns=1_500_000), TIMED, EVENTS),
    "queue_timeout is nobody's": (configured(queue_timeout_ns=2_000_000), FEW, EVENTS),
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
