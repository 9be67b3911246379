"""Every communication of a run: its candidate plans, a number for each cost, and the links that it may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cluster.topology import Topology
from clustersim.collective.algorithms import Kind
from clustersim.collective.price import CommPlan, cheapest, choose

MOST_CHOICES: Final = 100_000
"""Choices that are kept; they are cheap to make again."""

Signature = tuple[tuple[str, float, float, float, float, float, float], ...]


class CommTable:
    """Plans of collectives and transfers on a topology, made once per (operator, group).

    Parameters
    ----------
    topology : Topology
    algorithms : mapping
        Operator → algorithm, where the scenario names one; others are chosen by cost.
    candidates : callable
        ``(topology, kind, group, algorithm) → plans``.
    """

    def __init__(
        self,
        topology: Topology,
        algorithms: Mapping[str, str],
        candidates: Callable[[Topology, Kind, tuple[int, ...], str], tuple[CommPlan, ...]],
    ) -> None:
        self.topology = topology
        self.algorithms = algorithms
        self.candidates = candidates
        self._plans: dict[tuple[Kind, tuple[int, ...]], tuple[CommPlan, ...]] = {}
        self._seconds: dict[tuple[int, float], float] = {}
        self._chosen: dict[tuple[Kind, tuple[int, ...], float], CommPlan] = {}
        self._numbers: dict[tuple[Kind, Signature], int] = {}
        self._by_number: list[tuple[CommPlan, ...]] = []

    def plans(self, op: Kind, devices: tuple[int, ...]) -> tuple[CommPlan, ...]:
        """Return the candidate plans of ``op`` among ``devices``; those in a copy of a node are made once."""
        key = (op, devices)
        if key not in self._plans:
            alike, higher = self.topology.in_first_copy(devices)
            if higher:
                made = self.plans(op, alike)
                self._plans[key] = tuple(replace(plan, group=devices, links=plan.links + higher) for plan in made)
            else:
                algorithm = self.algorithms.get(op, "auto") if isinstance(op, str) else "auto"
                self._plans[key] = self.candidates(self.topology, op, devices, algorithm)
        return self._plans[key]

    def number(self, op: Kind, devices: tuple[int, ...]) -> int:
        """Return a number that is equal for groups whose communication costs the same."""
        plans = self.plans(op, devices)
        signature = tuple(
            (
                plan.algorithm, plan.alpha_s, plan.own_seconds_per_byte, plan.ramp_s, plan.ramp_half_s,
                plan.seconds_per_byte, plan.max_payload_bytes,
            )
            for plan in plans
        )  # fmt: skip
        number = self._numbers.setdefault((op, signature), len(self._by_number))
        if number == len(self._by_number):
            self._by_number.append(plans)
        return number

    def seconds(self, comm: int, payload_bytes: float) -> float:
        """Return uncontended seconds by communication number, of the cheapest candidate."""
        key = (comm, payload_bytes)
        if key not in self._seconds:
            if len(self._seconds) >= MOST_CHOICES:
                self._seconds.clear()
            plans = self._by_number[comm]
            self._seconds[key] = cheapest(plans, payload_bytes)[1] if plans else 0.0
        return self._seconds[key]

    def each_seconds(self, comm: int, payload_bytes: FloatArray) -> FloatArray:
        """Return uncontended seconds of payloads of any shape, each of the cheapest candidate."""
        plans = self._by_number[comm]
        return choose(plans, payload_bytes)[1] if plans else np.zeros_like(payload_bytes)

    def chosen(self, op: Kind, devices: tuple[int, ...], payload_bytes: float) -> CommPlan | None:
        """Return the plan that a payload takes, or None where nothing has to move."""
        plans = self.plans(op, devices)
        if len(plans) < 2:
            return plans[0] if plans else None
        key = (op, devices, payload_bytes)
        if key not in self._chosen:
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            self._chosen[key] = plans[cheapest(plans, payload_bytes)[0]]
        return self._chosen[key]

    def links(self, op: Kind, devices: tuple[int, ...]) -> frozenset[int]:
        """Return every link that any candidate uses."""
        return frozenset(link for plan in self.plans(op, devices) for link in plan.links.tolist())
