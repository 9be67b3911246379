"""Pricing and the choice of collective with one mistake, and durations that were changed: RUN-2 derives its own.

What a run pays is worked out again inside ``legality`` from what the scenario declares, so that nothing that prices,
chooses or remembers prices is trusted. Without the mistake each scenario is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from clustersim.cluster.device import Device
from clustersim.collective import algorithms
from clustersim.collective import communications as comm
from clustersim.cost import kernels
from clustersim.cost.engine import Engine
from clustersim.cost.precision import Precision
from clustersim.cost.roofline import RooflineCost
from clustersim.cost.table import TableCost
from clustersim.graph import operators
from clustersim.graph.blueprint import Node
from clustersim.graph.expand import step_blueprints
from clustersim.graph.passes import expert
from clustersim.graph.prices import attention, step_table
from clustersim.graph.prices import pricer as pricing
from clustersim.graph.prices import table as price_table
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.step_table import StepTable
from clustersim.legality.audit import check_history
from clustersim.legality.finding import Fault
from clustersim.legality.history import History
from clustersim.legality.timeline_rules.operators.priced import as_priced
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.plan import experts, routing
from clustersim.plan.exchange import Exchange
from clustersim.serving.halves import halves_of
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import simulate
from clustersim.timeline.record import Recorder
from tests.effort import is_whole, some
from tests.laws.random_scenarios import DEEPSEEK, GEMMA, GPT_OSS, scenario_of
from tests.legality.timeline.asked import broken, replay_by_events
from tests.legality.timeline.notation import declaring
from tests.legality.timeline.test_replay_mutations import EXPERTS, PIPE, RING, document, patched
from tests.oracle.events import decode_jumps, lockstep, stepper

pytestmark = pytest.mark.usefixtures("oracle")

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def scaled(module: Any, name: str, factor: float) -> Mutation:
    """Multiply what a function returns."""

    def mutate(patch: Patch) -> None:
        original = getattr(module, name)
        patch.setattr(module, name, lambda *some, **more: original(*some, **more) * factor)

    return mutate


def given(module: Any, name: str, factor: float, *keys: str) -> Mutation:
    """Multiply what a formula is given under some keys."""

    def mutate(patch: Patch) -> None:
        original = getattr(module, name)
        patch.setattr(
            module, name, lambda *some, **more: original(*some, **more | {key: more[key] * factor for key in keys})
        )

    return mutate


def by_events(mutation: Mutation) -> Mutation:
    """Replay by events: prices and steps of the core are worked out elsewhere (and mutated with its corpus)."""

    def mutate(patch: Patch) -> None:
        replay_by_events(patch)
        mutation(patch)

    return mutate


def instead(module: Any, name: str, value: Any) -> Mutation:
    """Put something else in the place of a function."""
    return lambda patch: patch.setattr(module, name, value)


UNPADDED = instead(Pricer, "padded", lambda self, features, _: features)
"""Price what there is."""


def payloads(factor: float) -> Mutation:
    """Let collectives carry another part of their payload."""

    def mutate(patch: Patch) -> None:
        original = comm.CommTable.seconds
        patch.setattr(comm.CommTable, "seconds", lambda self, number, payload: original(self, number, payload * factor))

    return mutate


def first_of_all(plans: Any, payload: Any) -> Any:
    """Choose the first algorithm, whatever it takes."""
    return np.zeros(np.shape(payload), np.int64), plans[0].seconds(payload)


def unlimited(plans: Any, payload: Any) -> Any:
    """Choose the fastest algorithm, whatever its buffers hold."""
    seconds = np.stack([one.seconds(payload) for one in plans])
    return seconds.argmin(axis=0), seconds.min(axis=0)


def without(*names: str) -> Mutation:
    """Forget some algorithms."""
    known = {
        kind: {name: one for name, one in some.items() if name not in names or len(some) == 1}
        for kind, some in algorithms.ALGORITHMS.items()
    }
    return instead(algorithms, "ALGORITHMS", known)


def constant(family: str, name: str, factor: float) -> Mutation:
    """Multiply a constant of a family of algorithms."""

    def mutate(patch: Patch) -> None:
        original = algorithms.family

        def changed(device: Any, of: str, ranks: int | None = None) -> Any:
            found = original(device, of, ranks)
            return replace(found, **{name: getattr(found, name) * factor}) if of == family else found

        patch.setattr(algorithms, "family", changed)

    return mutate


def swapped_rows(patch: Patch) -> None:
    """A step that prefills is given the durations of the one before it."""
    last: dict[int, int] = {}
    original = Recorder.numbers_of

    def numbers_of(self: Recorder, template: int, rows: Any) -> list[int]:
        found = original(self, template, rows)
        before, last[template] = [last.get(template, found[0]), *found[:-1]], found[-1]
        return before

    patch.setattr(Recorder, "numbers_of", numbers_of)


def short_key(patch: Patch) -> None:
    """Prices are remembered by too few of the counts that they depend on."""
    original = StepTable.__init__

    def init(self: StepTable, *some: Any, graph: bool = False) -> None:
        original(self, *some, graph=graph)
        self.pick = lambda counts: counts[1:2]

    patch.setattr(StepTable, "__init__", init)


def launched_apart(patch: Patch) -> None:
    """Fused operators are launched, and have a floor."""
    original = Pricer._compute

    def compute(self: Pricer, group: Any, *more: Any) -> Any:
        return original(self, replace(group, fused=np.zeros(len(group.classes), bool)), *more)

    patch.setattr(Pricer, "_compute", compute)


def fused_post_norms(patch: Patch) -> None:
    """Norms behind attention and FFN run inside a neighbour's kernel."""
    original = operators._Work.norm

    def norm(self: Any, name: str, *more: Any) -> Node:
        return replace(original(self, name, *more), fused="_post_" in name)

    patch.setattr(operators._Work, "norm", norm)


def linear(factor: float, name: str) -> Mutation:
    """Give products another shape."""

    def mutate(patch: Patch) -> None:
        original = price_table.price_groups

        def groups(classes: Any) -> Any:
            return tuple(
                replace(one, shape=one.shape | {name: one.shape[name] * factor}) if one.op == "gemm" else one
                for one in original(classes)
            )

        for module in (pricing, step_table, attention):
            patch.setattr(module, "price_groups", groups)

    return mutate


def keys_short_by_one(patch: Patch) -> None:
    """Decodes do not attend to their own new token."""
    original = attention.decode_ns

    def decode_ns(terms: Any, numbers: Any, batch: int, keys: int, *more: Any) -> Any:
        return original(terms, numbers, batch, keys - batch, *more)

    patch.setattr(attention, "decode_ns", decode_ns)


def uncut(patch: Patch) -> None:
    """Halves are cut behind the first sequence."""
    patch.setattr("clustersim.serving.halves.cut_of", lambda tokens: 1)


def thresholds(**least: int) -> Mutation:
    """Split steps from another number of tokens on than was declared."""

    def mutate(patch: Patch) -> None:
        for module in (stepper, decode_jumps, lockstep):
            patch.setattr(module, "halves_of", lambda decision, plan: halves_of(decision, replace(plan, **least)))

    return mutate


def latent_as_heads(patch: Patch) -> None:
    """Decode attention over latents has the constants of other attention."""
    original = RooflineCost.attention
    patch.setattr(RooflineCost, "attention", lambda self, family: original(self, family.replace("latent", "attention")))


def wide_kv(patch: Patch) -> None:
    """The K/V cache is read as wide as activations are."""
    original = RooflineCost.attention

    def attention(self: RooflineCost, family: str) -> Any:
        c, peak, bandwidth, (_, operand) = original(self, family)
        return c, peak, bandwidth, (operand, operand)

    patch.setattr(RooflineCost, "attention", attention)


def quantised_anyway(patch: Patch) -> None:
    """Activations are brought into the narrower format by kernels of their own, whatever the engine fuses."""
    original = Device.running
    patch.setattr(Device, "running", lambda self, engine, quantises=True: original(self, engine))


def untimed_points(patch: Patch) -> None:
    """Measured points are not as much longer as an engine's kernels are."""
    original = TableCost.__init__

    def init(self: TableCost, points: Any, fallback: RooflineCost, grids: Any = ()) -> None:
        times, fallback.times = fallback.times, 1.0
        original(self, points, fallback, grids)
        fallback.times = times

    patch.setattr(TableCost, "__init__", init)


def limitless(patch: Patch) -> None:
    """All-reduces are limited as the device's file says, whatever the engine says."""
    original = algorithms.family
    patch.setattr(algorithms, "family", lambda device, of, ranks=None: original(device, of))


def untabled(op: str) -> Mutation:
    """Measured points of an operator are not looked at."""

    def mutate(patch: Patch) -> None:
        curves, seconds = TableCost.curves, TableCost.seconds
        patch.setattr(
            TableCost, "curves", lambda self, of, shape: (None, True) if of == op else curves(self, of, shape)
        )
        patch.setattr(
            TableCost,
            "seconds",
            lambda self, of, shape: (self.fallback.seconds if of == op else partial(seconds, self))(of, shape),
        )

    return mutate


def first_curve(patch: Patch) -> None:
    """Points of the shortest batch stand for all."""
    original = TableCost.curves

    def curves(self: TableCost, op: str, shape: Any) -> Any:
        found, known = original(self, op, shape)
        if found is None:
            return found, known
        ends = {name: getattr(found, name)[: found.starts[1]] for name in ("place", "inner", "ratio")}
        return replace(found, outer=found.outer[:1], starts=found.starts[:2], **ends), known

    patch.setattr(TableCost, "curves", curves)


def placing(*changed: tuple[Any, str, Any]) -> Mutation:
    """Put other functions, given the ones they replace, among those that place experts and count their visits."""

    def mutate(patch: Patch) -> None:
        for name in ("expert_hosts", "_balanced"):  # as they are, without what they remember
            patch.setattr(experts, name, getattr(experts, name).__wrapped__)
        patch.setattr(expert, "rank_loads", experts.rank_loads.__wrapped__)
        plain = experts.rank_visits.__wrapped__
        for module in (experts, expert):
            patch.setattr(module, "rank_visits", plain)
        for module, name, change in changed:
            patch.setattr(module, name, partial(change, getattr(module, name)))

    return mutate


def a_copy_of_each(original: Any, often: Any, ranks: int, redundant: int) -> list[int]:
    """Copy experts in turn, however often they are visited."""
    return [1 + redundant // len(often) + (number < redundant % len(often)) for number, _ in enumerate(often)]


def copied_by_whole_visits(original: Any, often: Any, ranks: int, redundant: int) -> list[int]:
    """Copy the most visited expert on every rank before the next one has a copy."""
    copies = [1] * len(often)
    for number in sorted(range(len(often)), key=lambda one: -often[one]):
        copies[number] += min(ranks - 1, redundant - sum(copies) + len(often))
    return copies


def dealt(original: Any, often: Any, ranks: int, redundant: int) -> Any:
    """Deal experts and copies out in turn, whatever a rank has already."""
    copies = experts._copies(often, ranks, redundant)
    found, at = [], 0
    for many in copies:
        found.append(tuple((at + one) % ranks for one in range(many)))
        at += many
    return tuple(found)


def turned(original: Any, *some: Any) -> Any:
    """Give each rank the experts of the next one."""
    hosts = original(*some)
    ranks = 1 + max(max(mine) for mine in hosts)
    return tuple(tuple((rank + 1) % ranks for rank in mine) for mine in hosts)


def one_home(original: Any, *some: Any) -> Any:
    """Let tokens visit the first copy of an expert alone."""
    return tuple(mine[:1] for mine in original(*some))


def half_gathered(patch: Patch) -> None:
    """An all-gather of tokens for experts carries half of them."""
    original = expert._gathered
    patch.setattr(expert, "_gathered", lambda node, element: original(node, element / 2))


def a_copy_for_each_rank(patch: Patch) -> None:
    """A token crosses to a node as often as it reaches ranks there."""
    original = Exchange.reached
    patch.setattr(Exchange, "reached", lambda self, ranks: sum(original(self, [rank]) for rank in ranks))


def other_kernels(patch: Patch) -> None:
    """Low latency takes the constants of the normal kernels."""
    patch.setattr(Exchange, "family", property(lambda self: f"normal_{self.name}"))


def no_dummies(patch: Patch) -> None:
    """Replicas that have nothing to run bring nothing."""
    original = lockstep.together

    def together(parts: Any) -> Any:
        found = original(parts)
        mine = tuple(part.decode_sequences[0] for part in parts)
        return replace(found, decode_sequences=mine) if any(mine) else found

    patch.setattr(lockstep, "together", together)


def whole(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario; number formats are a section that others don't have."""
    more = dict(changes)
    return document(**{name: more.pop(name) for name in changes if name != "precision"}) | more


ENGINE = {"serving": {"engine": "vllm-0.19"}}
PADDED = {"serving": {"engine": {"name": "vllm-0.19", "graph_sizes": [3, {"by": 5}]}}}
WIDE = {"topology": {"name": "dgx-h100", "nodes": 2}, "plan": {"tp": 16, "sp": 1}} | {
    "model": {
        "name": "tiny", "source": "a test",
        "config": {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 2,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
        },
    }
}  # fmt: skip
BIG = {
    "serving": {"max_batch_tokens": 4096, "kv_blocks": 9000},
    "workload": {"prompt_tokens": {"fixed": 2000}, "requests": 4},
}
NODE = {"plan": {"tp": 8}, "model": WIDE["model"]}
ACROSS = {"topology": {"name": "dgx-h100", "nodes": 4}, "plan": {"tp": 4, "placement": [0, 8, 16, 24]}}
LATENT = {"model": {"name": "tiny", "source": "a test", "config": DEEPSEEK | {"num_hidden_layers": 2}}}
SLIDING = {"model": {"name": "tiny", "source": "a test", "config": GPT_OSS | {"num_hidden_layers": 4}}}
NORMED = {"model": {"name": "tiny", "source": "a test", "config": GEMMA | {"num_hidden_layers": 2}}}
SPREAD = {"plan": {"tp": 2, "ep": 2}, "model": EXPERTS}
SKEWED = {"plan": {"tp": 2, "ep": {"degree": 2, "routing": {"zipf": 1.2}}}, "model": EXPERTS}


def placed(zipf: float, **more: Any) -> dict[str, Any]:
    """Return a scenario of four replicas that share their experts."""
    ep = {"degree": 4, "scope": "global", "routing": {"zipf": zipf}, **more}
    return {"plan": {"dp": 4, "tp": 1, "ep": ep}, "model": EXPERTS}


PLACED, COPIED = placed(1.2), placed(0.5, redundant=4)
LOCKSTEP = {"plan": {"dp": 2, "tp": 1, "ep": {"degree": 2, "scope": "global"}}, "model": EXPERTS}
DEEPEP = {
    "topology": {"name": "dgx-h100", "nodes": 2}, "model": EXPERTS,
    "plan": {"dp": 8, "tp": 1, "placement": [0, 1, 2, 3, 8, 9, 10, 11],
             "ep": {"degree": 8, "scope": "global", "exchange": "deepep_normal", "dispatch": "fp8"}},
}  # fmt: skip
KEPT = {"plan": {"tp": 4, "ep": {"degree": 4, "exchange": "all_reduce"}}, "model": EXPERTS}
GATHERED = BIG | DEEPEP | {"plan": {"dp": 8, "ep": {"degree": 8, "scope": "global", "exchange": "all_gather"}}}
STRAIGHT = DEEPEP | {"plan": {**DEEPEP["plan"], "ep": {**DEEPEP["plan"]["ep"], "exchange": "deepep_low_latency"}}}
HALVES = {"plan": {"dp": 1, "tp": 2, "ep": {"degree": 2, "overlap": "two_batch"}}, "model": EXPERTS}
LATE_HALVES = {
    "plan": {"dp": 1, "tp": 2, "ep": {"degree": 2, "overlap": "two_batch", "overlap_decode_tokens": 3,
                                      "overlap_prefill_tokens": 20}},
    "model": EXPERTS,
}  # fmt: skip
LOCKSTEP_HALVES = {
    "plan": {"dp": 2, "tp": 1, "ep": {"degree": 2, "scope": "global", "overlap": "two_batch",
                                      "overlap_decode_tokens": 2}},
    "model": EXPERTS, "workload": {"requests": 16},
}  # fmt: skip
FEW = {"workload": {"requests": 3}}
GROUPED = {
    "model": {
        "name": "tiny", "source": "a test",
        "config": {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 4096, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        },
    },
    "plan": {"tp": 1}, "serving": {"engine": "vllm-0.19"},
}  # fmt: skip
GRID_DECODES = GROUPED | {"topology": {"name": "dgx-a100", "nodes": 1}, "workload": {"requests": 12}}
GRID_PROMPTS = GROUPED | {"topology": {"name": "l40s-node", "nodes": 1}}
GRID_EXPERTS = {"model": EXPERTS, "plan": {"tp": 1}, "topology": {"name": "dgx-a100", "nodes": 1}} | ENGINE
SLOWER = {"serving": {"engine": {"name": "vllm-0.19", "kernel_time": 1.1}}}
SLOWER_GRID = GRID_DECODES | SLOWER
BIG_AHEAD = {
    "serving": {"engine": "trtllm-0.14", "max_batch_tokens": 512, "kv_blocks": 9000},
    "workload": {"prompt_tokens": {"fixed": 500}, "requests": 4},
}
AHEAD = {"precision": {"weights": "fp8"}, "serving": {"engine": "trtllm-0.14"}}

SOURCE: list[tuple[str, Mutation, dict[str, Any]]] = [
    ("measured decodes are not looked at", untabled("attention_decode"), GRID_DECODES),
    ("measured prompts are not looked at", untabled("attention_prefill"), GRID_PROMPTS),
    ("measured experts are not looked at", untabled("grouped_gemm"), GRID_EXPERTS),
    ("decodes are as measured alone", first_curve, GRID_DECODES),
    ("products take 3 % less", scaled(kernels, "gemm", 0.97), {}),
    ("products take 3 % more", scaled(kernels, "gemm", 1.03), {}),
    ("products are half as wide", linear(0.5, "n"), {}),
    ("products are half as deep", linear(0.5, "k"), {}),
    ("grouped products read all experts", instead(pricing, "active_experts", lambda node, rows: node.experts), SPREAD),
    ("grouped products read an expert per row", instead(pricing, "active_experts", lambda node, rows: rows), SPREAD),
    ("experts are visited evenly", instead(expert, "rank_loads", lambda *_: None), SKEWED),
    ("as many experts are read as if visited evenly", instead(expert, "rank_visits", lambda *_: None), SKEWED),
    ("each rank has the experts of the next one", placing((experts, "expert_hosts", turned)), PLACED),
    ("experts are strided", placing((experts, "expert_hosts", lambda _, many, top_k, ep, layer: tuple(
        (number % ep.degree,) for number in range(many)))), PLACED),
    ("layers rank their experts alike", placing((experts, "layer_visits", lambda original, many, top_k, ep, layer:
        original(many, top_k, ep, 0))), PLACED),
    ("experts are ranked in order", placing((routing, "_mixed", lambda _, number: number)), PLACED),
    ("a token visits an expert more than once", placing((experts, "visits", lambda _, weights, top_k: tuple(
        weight / sum(weights) * top_k for weight in weights))), placed(2.0)),
    ("each expert is copied in turn", placing((experts, "_copies", a_copy_of_each)), COPIED),
    ("one expert is copied to all ranks first", placing((experts, "_copies", copied_by_whole_visits)), COPIED),
    ("copies are dealt out", placing((experts, "_balanced", dealt)), COPIED),
    ("ranks have the copies of the next one", placing((experts, "_balanced", turned)), COPIED),
    ("only the first copy is visited", placing((experts, "expert_hosts", one_home)), COPIED),
    ("the gap before kernels is dropped", instead(Pricer, "gap_s", lambda self, *, graph: 0.0), ENGINE),
    ("nothing runs as a graph", instead(Pricer, "in_graph", lambda self, decodes: False), ENGINE),
    ("a graph of one sequence is too large", instead(Pricer, "in_graph", lambda self, some: sum(some) > 1), ENGINE),
    ("each request costs the host nothing", instead(Pricer, "_host", lambda self, group, features: [
        self.engine.schedule_s if group.op == "schedule" else self.engine.sample_s for _ in group.classes]), ENGINE),
    ("stages cost the first one's host nothing", instead(Engine, "of_stages", lambda self, stages: self),
     {"plan": PIPE} | ENGINE),
    ("fused operators are launched", launched_apart, ENGINE),
    ("decodes do not attend to their new token", keys_short_by_one, {}),
    ("prompts attend to twice as many pairs", by_events(given(kernels, "attention_prefill", 2.0, "pairs")),
     {"plan": RING | {"pp": 2}, **BIG}),
    ("norms behind attention and FFN are fused", fused_post_norms, NORMED | ENGINE),
    ("latents are priced as heads", latent_as_heads, LATENT),
    ("what is fused is quantised once more", quantised_anyway, AHEAD),
    ("kernels take what the device's file says", instead(kernels, "lasting", lambda constants, _: constants), SLOWER),
    ("measured decodes take what the device's file says", untimed_points, SLOWER_GRID),
    ("the cache is read too wide", wide_kv, {"precision": {"kv_cache": "fp8"}}),
    ("steps share durations by their chunks alone", short_key, {}),
    ("a step gets another one's durations", swapped_rows, {}),
    ("payloads are halved", payloads(0.5), BIG),
    ("payloads are 3 % larger", payloads(1.03), BIG),
    ("the first algorithm is chosen", instead(comm, "cheapest", first_of_all), BIG),
    ("the limit of buffers is not looked at", instead(comm, "cheapest", unlimited), BIG),
    ("custom all-reduces are forgotten", without("one_shot", "two_shot"), {}),
    ("two levels are forgotten", without("hierarchical"), WIDE | BIG),
    ("trees are forgotten", without("tree"), ACROSS),
    ("a switch starts at once", constant("in_switch", "base_s", 0.5), NODE | BIG),
    ("a network is as good as its links", constant("ring", "network_efficiency", 1.1), ACROSS | BIG),
    ("an engine's own limits of all-reduces are not looked at", limitless, NODE | AHEAD | BIG_AHEAD),
    ("a custom all-reduce starts later", constant("one_shot", "base_s", 1.03), {}),
    ("a rank is sent a token for each of its experts", instead(Exchange, "reached", lambda self, ranks: min(
        1.0, self.top_k / self.ranks * len(ranks))), DEEPEP | BIG),
    ("a node is sent a token for each of its ranks", a_copy_for_each_rank, DEEPEP | BIG),
    ("all ranks get half of the tokens", half_gathered, GATHERED),
    ("tokens are dispatched in bf16", instead(Precision, "dispatch_bytes", lambda self, dispatch: 2.0), DEEPEP | BIG),
    ("messages have no header", instead(expert, "MESSAGE_BYTES", 0), STRAIGHT | BIG),
    ("DeepEP is taken for NCCL", instead(Node, "communication", property(lambda self: self.op)), DEEPEP),
    ("the kernels of low latency are the normal ones", other_kernels, STRAIGHT),
    ("rendezvous between nodes costs nothing", constant("normal_dispatch", "network_step_s", 0.0), DEEPEP),
    ("halves are cut behind the first sequence", uncut, HALVES),
    ("every step that can be is split", thresholds(overlap_decode_tokens=0, overlap_prefill_tokens=0), LATE_HALVES),
    ("decodes are split one token late", thresholds(overlap_decode_tokens=4), LATE_HALVES),
    ("prompts are never split", thresholds(overlap_prefill_tokens=10_000), LATE_HALVES),
    ("decodes in lockstep are split too late", thresholds(overlap_decode_tokens=3), LOCKSTEP_HALVES),
    ("replicas that idle bring nothing", by_events(no_dummies), LOCKSTEP | FEW),
    ("graphs compute no padding", instead(Engine, "padded", lambda self, tokens: tokens), PADDED),
    ("graphs of other sizes are captured", instead(Engine, "padded", lambda self, tokens: -(-tokens // 4) * 4), PADDED),
    ("replicas in lockstep are not padded", UNPADDED, LOCKSTEP | PADDED),
    ("halves are not padded", UNPADDED, LOCKSTEP_HALVES | PADDED),
]  # fmt: skip
SAME: list[tuple[str, Mutation, dict[str, Any]]] = [
    ("measured decodes are priced by arrays", instead(attention, "constants", lambda *_: {}), GRID_DECODES),
    ("measured prompts are priced by arrays", instead(attention, "constants", lambda *_: {}), GRID_PROMPTS),
    ("one expert is copied to all ranks first", placing((experts, "_copies", copied_by_whole_visits)),
     placed(1.2, redundant=4)),
    ("sizes of graphs are multiples of one", instead(Engine, "padded", lambda self, tokens: tokens),
     {"serving": {"engine": PADDED["serving"]["engine"] | {"graph_sizes": [{"by": 1}]}}}),
    ("every expert is on every rank", placing((experts, "_balanced", turned)), placed(0.5, redundant=24)),
    ("all are visited alike", placing((experts, "layer_visits", lambda original, many, top_k, ep, layer:
        original(many, top_k, ep, 0))), placed(0.0, redundant=8)),
]  # fmt: skip
"""Mistakes where they change nothing: another way to the same experts on the same ranks."""


SPREAD_OUT: dict[str, Any] = {
    "plan": {"tp": 1, "sp": {"degree": 2, "scheme": "all_gather", "partition": "striped", "decode": "dp"}},
}
PLANS: dict[str, dict[str, Any]] = {
    "tensor": ENGINE,
    "stages": {"plan": PIPE} | ENGINE,
    "ring": {"plan": RING},
    "gathered": {"plan": {"tp": 1, "sp": {"degree": 2, "scheme": "all_gather", "partition": "contiguous",
                                          "decode": "idle"}}},
    "by heads": {"plan": {"tp": 1, "sp": {"degree": 2, "scheme": "all_to_all", "partition": "contiguous",
                                          "decode": "idle"}}},
    "spread": SPREAD_OUT,
    "spread and padded": SPREAD_OUT | PADDED,
    "experts": SPREAD,
    "lockstep": LOCKSTEP,
    "copies": COPIED,
    "deepep": DEEPEP,
    "kept": KEPT,
    "low latency": STRAIGHT,
    "halves": HALVES,
    "padded": PADDED,
    "padded in lockstep": LOCKSTEP_HALVES | PADDED,
    "latent": LATENT,
    "windows": SLIDING,
    "normed": NORMED | ENGINE,
    "normed stages": NORMED | {"plan": PIPE} | ENGINE,
}  # fmt: skip


@cache
def recorded(plan: str, replay: str) -> History:
    """Return what a run under a plan recorded."""
    return history_of_run(simulate(scenario_of(whole(PLANS[plan] | FEW), replay=replay)))


def faults(history: History, **changed: Any) -> tuple[Fault, ...]:
    """Return what is found in durations that were changed."""
    assert history.folded is not None
    return as_priced(Reading(replace(history, folded=replace(history.folded, **changed)))).faults


@pytest.mark.parametrize(
    ("plan", "replay"), [*((one, "folded") for one in PLANS), *((one, "full") for one in some(list(PLANS)))]
)
def test_every_class_of_operator_is_compared(plan: str, replay: str) -> None:
    """Durations of one row, 3 % or 3 ns more or less, are found one by one, in each template that was used.

    Templates take turns with more and less, and ``--long=1`` tries both in all.
    """
    history = recorded(plan, replay)
    tables = history.folded
    assert tables is not None
    assert not faults(history)
    for number, template in enumerate(tables.templates):
        used = np.unique(tables.passes["row"][tables.passes["template"] == number])
        for row in used[-1:].tolist():
            varies = tables.column_sets[tables.rows["columns"][row]]
            classes = np.setdiff1d(np.unique(template.instance_class), varies)
            names = np.array([template.symbols[template.class_symbol[cls]][0] for cls in classes])
            at = int(tables.rows["at"][row]) + classes
            lasts = tables.row_values[at]
            told = (lasts > 3) & ~((names == "attention_decode") & (plan in UNTOLD))
            for sign in (-1, 1) if is_whole() else (1 - 2 * (number % 2),):
                values = tables.row_values.copy()
                values[at[told]] += sign * np.maximum(3, lasts[told] * 3 // 100)
                found = faults(history, row_values=values)
                assert len(found) >= told.sum()
                assert {fault.message.split(" ")[0] for fault in found} >= set(names[told].tolist())


UNTOLD = {"halves"}
"""The record does not tell which sequences are in which half: only the sum of their keys is known."""


@pytest.mark.parametrize("plan", PLANS)
def test_every_duration_that_varies_is_compared(plan: str) -> None:
    history = recorded(plan, "folded")
    assert history.folded is not None
    for at in range(0, len(history.folded.varying), 29):
        for factor in (0.97, 1.03) if is_whole() else (0.97 if at % 2 else 1.03,):
            values = history.folded.varying.copy()
            values[at] = round(values[at] * factor)
            assert faults(history, varying=values)


@pytest.mark.parametrize("plan", ["tensor", "stages", "experts"])
def test_steps_that_exchange_their_durations_are_found(plan: str) -> None:
    """Each refers to durations of the same template that are those of another step."""
    history = recorded(plan, "folded")
    assert history.folded is not None
    passes, rows = history.folded.passes, history.folded.passes["row"]
    for at in range(0, len(rows) - 1, 5):
        later = np.flatnonzero((passes["template"] == passes["template"][at]) & (rows != rows[at]))
        later = later[later > at]
        if len(later):
            other = rows.copy()
            other[[at, later[0]]] = rows[[later[0], at]]
            assert faults(history, passes={**passes, "row": other})


def test_all_operators_of_a_class_in_all_steps_at_half_their_time_are_found() -> None:
    history = recorded("tensor", "folded")
    tables = history.folded
    assert tables is not None
    for number, template in enumerate(tables.templates):
        at = tables.rows["at"][tables.rows["template"] == number]
        for cls in range(template.num_classes):
            values = tables.row_values.copy()
            values[at + cls] //= 2
            if (values[at + cls] > 3).any():
                assert faults(history, row_values=values)


def test_a_record_that_declares_nothing_says_what_is_not_compared() -> None:
    history = recorded("tensor", "folded")
    found = as_priced(Reading(declaring(history, deployment=None)))
    assert found.looked_at == 0
    assert "what operators cost" in found.lacks[0]


NAMED = {
    "halving_doubling": (NODE, "all_reduce", "ring"),
    "torus": (NODE | {"topology": {"name": "tpu-v5p", "dims": [2, 2, 2]}}, "all_reduce", "ring"),
    "pairwise": ({"plan": {"dp": 8, "ep": {"degree": 8, "scope": "global"}}, "model": EXPERTS}, "all_to_all", "direct"),
}


@pytest.mark.parametrize("algorithm", NAMED)
def test_an_algorithm_that_is_named_is_the_one_that_is_compared(algorithm: str) -> None:
    """No shipped scenario chooses these: the second opinion of each runs here alone."""
    changes, kind, other = NAMED[algorithm]
    base = document(**{key: value for key, value in changes.items() if key != "topology"}) | changes
    took, declared = (
        history_of_run(simulate(scenario_of(base | {"collectives": {kind: name}}))) for name in (algorithm, other)
    )
    assert check_history(took).violations == ()
    found = check_history(replace(took, pools=declared.pools)).violations
    assert "RUN-2" in {violation.rule for violation in found}


def forget() -> None:
    """Expand graphs anew that were expanded before."""
    step_blueprints.cache_clear()
    operators.single_device.cache_clear()


@contextmanager
def priced_by(mutation: Mutation) -> Iterator[None]:
    """Let a mutation hold for graphs that are expanded inside alone."""
    forget()
    with patched(mutation):
        yield
    forget()


def test_unmutated_code_is_legal() -> None:
    for changes in some(list({repr(changes): changes for _, _, changes in SOURCE}.values())):
        assert audit_run(simulate(scenario_of(whole(changes)))).violations == (), changes


@pytest.mark.parametrize(("name", "mutation", "changes"), SOURCE, ids=[one[0] for one in SOURCE])
def test_audit_catches_mutated_prices(name: str, mutation: Mutation, changes: dict[str, Any]) -> None:
    del name
    scenario = scenario_of(whole(changes))
    with priced_by(mutation):
        result = simulate(scenario)
    assert "RUN-2" in broken(result, ("RUN-2",))


@pytest.mark.parametrize(("name", "mutation", "changes"), SAME, ids=[one[0] for one in SAME])
def test_another_way_to_the_same_prices_is_legal(name: str, mutation: Mutation, changes: dict[str, Any]) -> None:
    del name
    with priced_by(mutation):
        result = simulate(scenario_of(whole(changes)))
    assert audit_run(result).violations == ()
