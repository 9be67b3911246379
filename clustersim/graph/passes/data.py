"""The data pass: the same graph once per replica, with no edge between replicas (rule DP-3)."""

from __future__ import annotations

from dataclasses import replace

from clustersim.graph.blueprint import Blueprint
from clustersim.plan.parallel import ParallelPlan


def data_pass(blueprint: Blueprint, plan: ParallelPlan) -> Blueprint:
    """Repeat the graph for every replica; at dp 1 the identity."""
    return blueprint if plan.dp == 1 else replace(blueprint, replicas=plan.dp)
