"""Collectives: what an algorithm costs on a group, and how to choose one."""

from __future__ import annotations

from clustersim.collective.algorithms import ALGORITHMS, plan_collective
from clustersim.collective.price import CommPlan, choose

__all__ = ["ALGORITHMS", "CommPlan", "choose", "plan_collective"]
