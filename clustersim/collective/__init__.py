"""Collectives: what an algorithm costs on a group, how to choose one, and how activities share links."""

from __future__ import annotations

from clustersim.collective.algorithms import ALGORITHMS, plan_collective
from clustersim.collective.fair_shares import fair_rates, touched
from clustersim.collective.price import CommPlan, choose

__all__ = ["ALGORITHMS", "CommPlan", "choose", "fair_rates", "plan_collective", "touched"]
