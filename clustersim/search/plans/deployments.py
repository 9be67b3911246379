"""Scenarios of plans: one per combination of knobs with one pool and with two, and any plan put into them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario, seen_by
from clustersim.scenario.schema import POOLS
from clustersim.scenario.validate import parts_with
from clustersim.search.plans.space import Replica
from clustersim.search.runs import Variants
from clustersim.search.varied import Varied, combinations
from clustersim.values import dataclass

APART: Final = ("continuous", "chunked_prefill")
"""Schedulers that pools of a scenario with one pool can have, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One combination of knobs: what it changes, and the scenario with one pool and with two (None: it has none)."""

    changes: tuple[str, ...]
    single: Scenario | None
    pools: Scenario | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan: so many replicas of one kind, or of two where prompts and tokens are apart, under one setting."""

    replicas: tuple[Replica, ...]
    counts: tuple[int, ...]
    setting: int

    @property
    def devices(self) -> int:
        """Devices that it uses."""
        return sum(one.devices * count for one, count in zip(self.replicas, self.counts, strict=True))

    @property
    def plans(self) -> tuple[ParallelPlan, ...]:
        """The plan of each pool, packed."""
        return tuple(one.times(count) for one, count in zip(self.replicas, self.counts, strict=True))

    def words(self) -> str:
        """Return the plan in words: ``tp 4 × pp 2 × dp 8``, and both of two pools."""
        return " | ".join(replica_words(one, count) for one, count in zip(self.replicas, self.counts, strict=True))


@cache
def replica_words(one: Replica, count: int) -> str:
    """Return the degrees of so many replicas, and the kind of their devices."""
    return plan_words(one.times(count)) + (f" on {one.kind}" if one.kind else "")


def plan_words(plan: ParallelPlan) -> str:
    """Return the degrees of a plan."""
    sp, ep = plan.sp, plan.ep
    told = [f"tp {plan.tp}"]
    if sp.degree > 1:
        told.append(f"sp {sp.degree} ({sp.scheme}, {sp.partition}, {sp.decode})")
    if plan.pp > 1:
        told.append(f"pp {plan.pp}")
    if ep.degree > 1:
        told.append(f"ep {ep.degree}{' (global)' if plan.is_lockstep else ''}")
    return " × ".join([*told, f"dp {plan.dp}"])


class Deployments:
    """Builds the scenarios of candidates.

    Parameters
    ----------
    variants : Variants
    knobs : sequence of Varied
    changes : sequence of str
        What all have in place of the scenario's values, such as its nodes.
    pairs : bool
        Whether there are devices for two pools.

    Raises
    ------
    InputError
        When a knob is none, or a scenario can't be built.
    """

    def __init__(
        self, variants: Variants, knobs: Sequence[Varied], changes: Sequence[str], *, pairs: bool = True
    ) -> None:
        self.variants, self._always, self._pairs = variants, tuple(changes), pairs
        own = variants.scenario()
        self._experts = tuple(replace(one.plan.ep, degree=1, scope="replica") for one in own.each_pool())
        written = own.origin.data
        plan = written.get("plan") or {}
        self._options = (
            {name: plan.get(name, {}) for name in POOLS} if "prefill" in plan else dict.fromkeys(POOLS, plan)
        )
        self._apart = _two_pools(written.get("serving") or {})
        self._together = _one_pool(written.get("serving") or {})
        chosen = combinations(knobs, zipped=False, option="--knobs") if knobs else [()]
        self.settings = [
            self._setting(tuple(f"{knob.key}={value}" for knob, value in zip(knobs, values, strict=True)))
            for values in chosen
        ]

    @property
    def base(self) -> Scenario:
        """The scenario of the first setting."""
        first = self.settings[0]
        found = first.single or first.pools
        assert found is not None
        return found

    def _setting(self, knobs: tuple[str, ...]) -> Setting:
        of_pools = any(text.startswith(tuple(f"serving.{name}." for name in POOLS)) for text in knobs)
        single = None
        if not of_pools:
            single = self._built(self._single_changes({"tp": self._degree(POOLS[0], "tp", 1)}), knobs)
            single = single.with_entry(plan=replace(single.plan, ep=self._experts[0]))
        both = {name: self._plan_options(name) | {"tp": self._degree(name, "tp", 1)} for name in POOLS}
        wanted = self._apart is not None and (self._pairs or of_pools)
        pools = self._built(self._pool_changes(both), knobs) if wanted else None
        if pools is not None:
            each = zip(pools.pools, (self._experts * 2)[:2], strict=True)
            pools = replace(pools, pools=tuple(replace(one, plan=replace(one.plan, ep=ep)) for one, ep in each))
        return Setting(changes=knobs, single=single, pools=pools)

    def _built(self, changes: tuple[str, ...], knobs: tuple[str, ...]) -> Scenario:
        return self.variants.scenario((*self._always, *changes, *knobs))

    def _single_changes(self, degrees: dict[str, Any]) -> tuple[str, ...]:
        plan = self._plan_options(POOLS[0]) | degrees
        return (f"plan={json.dumps(plan)}", *((f"serving={json.dumps(self._together)}",) if self._together else ()))

    def _pool_changes(self, plans: dict[str, Any]) -> tuple[str, ...]:
        return (f"plan={json.dumps(plans)}", f"serving={json.dumps(self._apart)}")

    def _plan_options(self, pool: str) -> dict[str, Any]:
        """Return what the user's plan says besides degrees."""
        return {key: value for key, value in self._options[pool].items() if key in ("decode_overlap",)}

    def _degree(self, pool: str, key: str, degree: int) -> Any:
        """Return a degree beside whatever else the user's plan says of that axis."""
        written = self._options[pool].get(key)
        kept = (
            {name: value for name, value in written.items() if name not in _DEGREES}
            if isinstance(written, dict)
            else {}
        )
        return {**kept, "degree": degree} if kept else degree

    def scenario(self, candidate: Candidate) -> Scenario:
        """Return the scenario of a candidate, without reading it anew."""
        setting = self.settings[candidate.setting]
        if len(candidate.replicas) == 1:
            assert setting.single is not None
            (plan,) = candidate.plans
            placement = _on(setting.single.topology, candidate.replicas[0].kind, plan.world, ())
            plan = replace(plan, placement=placement)
            found = setting.single.with_entry(plan=plan, is_placed=placement is not None)
            return replace(found, topology=seen_by(found.topology, plan))
        assert setting.pools is not None
        topology = setting.pools.topology
        prefill, decode = candidate.plans
        first = _on(topology, candidate.replicas[0].kind, prefill.world, ())
        taken = range(prefill.world) if first is None else first
        second = _on(topology, candidate.replicas[1].kind, decode.world, taken)
        plans = (
            replace(prefill, placement=first),
            replace(decode, placement=second or _free(topology, decode.world, taken)),
        )
        pools = tuple(
            replace(pool, plan=plan, is_placed=one.kind is not None)
            for pool, plan, one in zip(setting.pools.pools, plans, candidate.replicas, strict=True)
        )
        return replace(setting.pools, pools=pools, topology=seen_by(topology, plans[0]))

    def prefill_alone(self, candidate: Candidate) -> Scenario:
        """Return the scenario of the prefill pool of a candidate with two, by itself."""
        return self.scenario(candidate).each_pool()[0]

    def changes(self, candidate: Candidate) -> tuple[str, ...]:
        """Return what makes the user's scenario that of a candidate, as ``--set`` takes it."""
        each = {
            name: self._written(name, plan, one.kind)
            for name, plan, one in zip(POOLS, candidate.plans, candidate.replicas, strict=False)
        }
        plans = self._single_changes(each[POOLS[0]]) if len(each) == 1 else self._pool_changes(each)
        return (*self._always, *plans, *self.settings[candidate.setting].changes)

    def _written(self, pool: str, plan: ParallelPlan, kind: str | None) -> dict[str, Any]:
        found = self._plan_options(pool) | {"dp": plan.dp, "pp": plan.pp, "tp": self._degree(pool, "tp", plan.tp)}
        sp = plan.sp
        if sp.degree > 1:
            found["sp"] = {"degree": sp.degree, "scheme": sp.scheme, "partition": sp.partition, "decode": sp.decode}
        if plan.ep.degree > 1:
            ep = self._degree(pool, "ep", plan.ep.degree)
            found["ep"] = {**(ep if isinstance(ep, dict) else {"degree": ep}), "scope": plan.ep.scope}
        return found | ({"placement": kind} if kind else {})


_DEGREES: Final = ("degree", "scope")


def _two_pools(serving: dict[str, Any]) -> dict[str, Any] | None:
    """Return serving decisions with two pools; None where the scheduler can't have them."""
    if serving.get("scheduler") == "disaggregated":
        return serving
    named = serving.get("scheduler", "chunked_prefill")
    if named not in APART or serving.get("preemption", "recompute") != "recompute":
        return None
    return serving | {"scheduler": "disaggregated", **{name: {"scheduler": named} for name in POOLS}}


def _one_pool(serving: dict[str, Any]) -> dict[str, Any] | None:
    """Return serving decisions with one pool, where there are two; else None: they stay."""
    if serving.get("scheduler") != "disaggregated":
        return None
    kept = {key: value for key, value in serving.items() if key not in (*POOLS, "transfer")}
    return kept | {"scheduler": "chunked_prefill"}


def _on(topology: Topology, kind: str | None, ranks: int, taken: Sequence[int]) -> tuple[int, ...] | None:
    """Return the first free devices of a kind; None where none is named."""
    if kind is None:
        return None
    return tuple([device for device in topology.of_kind(kind) if device not in set(taken)][:ranks])


def _free(topology: Topology, ranks: int, taken: Sequence[int]) -> tuple[int, ...]:
    used = set(taken)
    return tuple([device for device in range(len(topology.devices)) if device not in used][:ranks])


def refuse_no_knob(knobs: Sequence[Varied]) -> None:
    """Refuse knobs that are not of serving or of number formats.

    Raises
    ------
    InputError
        With what may vary.
    """
    parts = ("serving", "precision")
    for knob in knobs:
        if knob.key.partition(".")[0] not in parts:
            meant = [f"did you mean {part}.{knob.key}?" for part in parts_with(knob.key) if part in parts]
            known = ["plans are enumerated, and knobs are keys of serving and precision"]
            message = f"is no knob; {(meant or known)[0]}"
            raise InputError(Problem(message=message, file="--knobs", path=knob.key))
