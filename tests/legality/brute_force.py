"""Every plan in the neighbourhood of an illegal one, nearer than a given distance: what the nearest is held against.

What a distance is, and which values a field may take, is written here once more, from the table of
docs/reference/check.md.
Whether a candidate is legal is what ``check`` says of the scenario with its changes, as ``--set`` makes them; a few
necessary conditions, written anew, save most of these checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from math import log2
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.scenario.document import parse_json
from clustersim.scenario.load import build_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.scenario.text.flow import flow
from clustersim.simulation.legality import check_scenario, check_scenario_plan

MOST_CHANGED: Final = 3
"""Fields beside declarations that are changed at once."""
ROUNDED: Final = 2e-3
_DEGREES: Final = ("dp", "pp", "tp.degree", "sp.degree", "ep.degree")
_DECLARED: Final = {
    "sp.scheme": ("ring", "all_gather", "all_to_all"),
    "sp.partition": ("zigzag", "contiguous", "striped"),
    "sp.decode": ("idle", "dp"),
}
_SPLITS: Final = {"tp.embedding": ("vocab", "hidden"), "tp.attention_out": ("rows", "columns"),
                  "tp.ffn_up": ("columns", "rows"), "tp.ffn_down": ("rows", "columns"),
                  "tp.lm_head": ("vocab", "hidden")}  # fmt: skip
_LIMITS: Final = ("max_batch_tokens", "max_batch_requests", "kv_block_tokens", "kv_blocks", "memory_utilization")
_BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
State = dict[str, Any]
"""Path as ``--set`` takes it → value."""


def octaves(one: float, other: float) -> float:
    return abs(log2(one / other))


@dataclass
class Pool:
    """One plan as it is written, with everything that is not said at its default."""

    name: str
    plan: Any
    limits: Any

    def path(self, part: str, key: str) -> str:
        shared = key == "kv_block_tokens"
        return f"{part}.{self.name}.{key}" if self.name and not shared else f"{part}.{key}"

    def degrees(self, state: State) -> dict[str, int]:
        plan = self.plan
        now = dict(zip(_DEGREES, (plan.dp, plan.pp, plan.tp, plan.sp.degree, plan.ep.degree), strict=True))
        return {name: state.get(self.path("plan", name), value) for name, value in now.items()}

    def ranks(self, state: State) -> int:
        dp, pp, tp, sp, _ = self.degrees(state).values()
        return dp * pp * tp * sp


@dataclass
class BruteForce:
    """The neighbourhood of one scenario; ``looked_at`` counts what was enumerated, ``checked`` what ``check`` saw."""

    scenario: Scenario
    looked_at: int = 0
    checked: int = 0
    most_checked: int = 10**9
    truncated: bool = False
    pools: list[Pool] = field(init=False)

    def __post_init__(self) -> None:
        one = self.scenario
        self.pools = [Pool(pool.name, pool.plan, pool.serving) for pool in one.pools]
        self.devices = len(one.topology.devices)
        document = json.loads(json.dumps(one.document))
        for pool in self.pools:
            if pool.plan.ep.exchange_by_engine:  # a plan of one rank has none, and nobody asked for it
                (document["plan"][pool.name] if pool.name else document["plan"])["ep"]["exchange"] = None
        self.written = parse_json(json.dumps(document), "written")

    def nearer(self, told: State, most: float) -> Iterator[tuple[float, State]]:
        """Yield every legal combination of changes whose distance is less than ``most``."""
        fields: dict[str, list[tuple[float, Any]]] = {}
        for far, path, value in self._single(told):
            if far < most - ROUNDED:
                fields.setdefault(path, []).append((far, value))
        for values in fields.values():
            values.sort(key=lambda one: one[0])
        used = min(sum(pool.ranks({}) for pool in self.pools), self.devices)
        for far, state in self._combined(list(fields.items()), 0, 0.0, {}, MOST_CHANGED, most):
            idle = max(0.0, log2(used / sum(pool.ranks(state) for pool in self.pools))) / 4
            for declared in self._declared(state):
                total = far + idle + len(declared) / 100
                if (state or declared) and total < most - ROUNDED:
                    self.looked_at += 1
                    if self._possible(state | declared) and self.is_legal(state | declared):
                        yield total, state | declared
                    if self.checked >= self.most_checked:
                        self.truncated = True
                        return

    def _combined(
        self, fields: list[tuple[str, list[tuple[float, Any]]]], start: int, far: float, state: State, left: int,
        most: float,
    ) -> Iterator[tuple[float, State]]:  # fmt: skip
        yield far, state
        if left:
            for at in range(start, len(fields)):
                path, values = fields[at]
                for step, value in values:
                    if far + step >= most - ROUNDED:
                        break
                    yield from self._combined(fields, at + 1, far + step, state | {path: value}, left - 1, most)

    def _declared(self, state: State) -> Iterator[State]:
        """Yield all that may be said of sequence parallelism where the plan has it and says nothing."""
        missing = [
            (pool.path("plan", key), choices)
            for pool in self.pools
            if pool.degrees(state)["sp.degree"] > 1
            for key, choices in _DECLARED.items()
            if getattr(pool.plan.sp, key[3:]) is None
        ]
        for values in product(*(choices for _, choices in missing)):
            yield dict(zip((path for path, _ in missing), values, strict=True))

    def _single(self, told: State) -> Iterator[tuple[float, str, Any]]:
        """Yield every change of one field: any degree up to the devices, any choice, limits halved."""
        for pool in self.pools:
            for name, now in pool.degrees({}).items():
                for value in range(1, self.devices + 1):
                    if value != now:
                        yield self._degree(name, now, value), pool.path("plan", name), value
            for far, key, value in self._choices(pool):
                yield far, pool.path("plan", key), value
            for key, path in self._limits(pool):
                now = getattr(pool.limits, key)
                smaller = {now >> shift for shift in range(1, now.bit_length())} if isinstance(now, int) else set()
                if key == "kv_blocks" and now is not None:
                    smaller |= {int(now / 2 ** (step / 8)) for step in range(1, 8 * now.bit_length())}
                    smaller |= {told[path] + 1} if path in told else set()
                if key == "memory_utilization":
                    smaller = {0.9} if now < 0.9 else set()
                for value in smaller - {now, 0}:
                    yield 2 + octaves(value, now) / 4, path, value
        for name, far in (("fp8", 4), ("fp4", 5)):
            if _BYTES[name] < self.scenario.precision.weight_bytes:
                yield far, "precision.weights", name

    def _limits(self, pool: Pool) -> Iterator[tuple[str, str]]:
        """Yield the limits of a pool, each at every path that it can be changed at: for this pool, or for both."""
        written: Any = self.scenario.document["serving"]
        for key in _LIMITS:
            if pool is self.pools[0] and not any((written.get(one.name) or {}).get(key) for one in self.pools):
                yield key, f"serving.{key}"
            if pool.name and key != "kv_block_tokens":
                yield key, pool.path("serving", key)

    def _degree(self, name: str, now: int, value: int) -> float:
        raised = 0.5 * (value > now)
        if name == "dp":
            return raised + (1 + octaves(value, now)) / 2
        return raised + 1 + octaves(value, now) + (1 in (now, value))

    def _choices(self, pool: Pool) -> Iterator[tuple[float, str, Any]]:
        plan, kinds = pool.plan, self.scenario.topology.device_names()
        if plan.sp.degree > 1:
            for key, choices in _DECLARED.items():
                if getattr(plan.sp, key[3:]) is not None:
                    yield from ((2, key, value) for value in choices if value != getattr(plan.sp, key[3:]))
        for key, choices in _SPLITS.items():
            yield from ((2, key, value) for value in choices if value != getattr(plan.split, key[3:]))
        yield from ((0.5, "ep.scope", value) for value in ("global", "replica") if value != plan.ep.scope)
        if isinstance(plan.ep.placement, tuple):
            yield from ((0.5, "ep.placement", value) for value in ("contiguous", "strided"))
        if plan.ep.routing is not None:
            yield 0.5, "ep.routing", "balanced"
        if plan.ep.overlap != "none":
            yield 0.5, "ep.overlap", "none"
        for key in ("overlap_decode_tokens", "overlap_prefill_tokens"):
            if getattr(plan.ep, key):
                yield 0.1, f"ep.{key}", 0
        if plan.ep.exchange != "all_to_all" and not plan.ep.exchange_by_engine:
            yield 0.5, "ep.exchange", "all_to_all"
        if plan.ep.dispatch is not None:
            yield 0.1, "ep.dispatch", None
        if plan.ep.redundant:
            for value in {*range(2 * plan.ep.redundant + 8)} - {plan.ep.redundant}:
                yield 0.25 + octaves(value + 1, plan.ep.redundant + 1) / 4, "ep.redundant", value
        if plan.stages is not None:
            yield 0.2, "stages", "balanced"
            cuts = [cut.layer if cut.before == "attention" else f"{cut.layer}.ffn" for cut in plan.stages]
            kept = [one for one in cuts if one not in (0, "0.attention")]  # those that lie in the model, each once
            kept = [one for one in kept if int(str(one).partition(".")[0]) < len(self.scenario.model.layers)]
            for some in {*permutations(cuts), *permutations(dict.fromkeys(kept))} - {tuple(cuts), ()}:
                yield 0.1, "stages", {"cuts": list(some)}
        if plan.placement is not None:
            topology = self.scenario.topology
            yield 0.5, "placement", topology.seen_from(plan.placement[0]).device.name if len(kinds) > 1 else "packed"
        if plan.devices is not None:
            for value in {*range(1, self.devices + 1)} - {plan.devices}:
                yield 3 + octaves(value, plan.devices), "devices", value

    def _possible(self, state: State) -> bool:
        """Whether what any legal plan must be is so: it fits, and degrees divide what they split."""
        model = self.scenario.model
        if sum(pool.ranks(state) for pool in self.pools) > self.devices:
            return False
        experts = {layer.ffn.num_experts for layer in model.layers if hasattr(layer.ffn, "num_experts")}
        for pool in self.pools:
            dp, _, tp, sp, ep = pool.degrees(state).values()
            if any(layer.attention.num_heads % tp for layer in model.layers):
                return False
            scope = state.get(pool.path("plan", "ep.scope"), pool.plan.ep.scope)
            across = sp * tp * (dp if scope == "global" else 1)
            if ep > 1 and (not experts or any(count % ep for count in experts) or across % ep):
                return False
            stated = state.get(pool.path("plan", "devices"), pool.plan.devices)
            if stated not in (None, pool.ranks(state)):
                return False
        return True

    def is_legal(self, state: State) -> bool:
        """Whether ``check`` calls the scenario legal with these changes, as ``--set`` makes them."""
        self.checked += 1
        sets = [f"{path}={flow(value)}" for path, value in state.items()]
        try:
            made = build_scenario(apply_overrides(self.written, sets, SHORTHANDS))
        except InputError:
            return False
        if check_scenario_plan(made).verdict != "legal":
            return False
        return set(check_scenario(made).levels.values()) == {"legal"}
