"""How a step is split into two halves that overlap (``plan.ep.overlap: two_batch``): a function of the step alone.

Its sequences, those that decode first and each part in the order of the decision, are cut by
:func:`clustersim.plan.halves.cut_of`; none is divided, and a step of one sequence is not split. Nor is one of fewer
tokens than asked for: vLLM has ``dbo_decode_token_threshold`` (32) for steps that only decode, and
``dbo_prefill_token_threshold`` (512) for others.

Replicas in lockstep split a step when each of them can, else none does: they meet in each dispatch. That is what vLLM's
replicas agree upon (vllm/v1/worker/dp_utils.py, ``coordinate_batch_across_dp``, 2025); one with a dummy batch can't.
"""

from __future__ import annotations

from clustersim.plan.halves import cut_of
from clustersim.plan.parallel import ExpertPlan
from clustersim.serving.decision import Decision

Halves = tuple[Decision, Decision]


def halves_of(decision: Decision, plan: ExpertPlan) -> Halves | None:
    """Return the two halves of a step, None where it is not split.

    Parameters
    ----------
    decision : Decision
        Of one replica.
    plan : ExpertPlan
        Says from how many tokens on.
    """
    many = len(decision.decodes)
    tokens = [1] * many + [count for _, count in decision.prefills]
    least = plan.overlap_prefill_tokens if decision.prefills else plan.overlap_decode_tokens
    if plan.overlap == "none" or len(tokens) < 2 or sum(tokens) < least:
        return None
    cut = cut_of(tokens)
    first = decision._replace(decodes=decision.decodes[:cut], prefills=decision.prefills[: max(0, cut - many)])
    second = decision._replace(decodes=decision.decodes[cut:], prefills=decision.prefills[max(0, cut - many) :])
    return first, second
