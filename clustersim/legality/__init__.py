"""What a legal deployment is: the rules, and the checks of each level as pure functions over plain data.

Level P, :func:`check_plan`, reads a plan, an architecture and a few numbers of the cluster.
"""

from clustersim.legality.check import check_plan
from clustersim.legality.deployment import ServingLimits
from clustersim.legality.plan_rules.data import fits
from clustersim.legality.rule import LookedAt, Rule, Verdict, Violation, together
from clustersim.legality.rulebook import RULES

__all__ = [
    "RULES",
    "LookedAt",
    "Rule",
    "ServingLimits",
    "Verdict",
    "Violation",
    "check_plan",
    "fits",
    "together",
]
