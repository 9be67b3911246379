"""A scheduler of one's own: prompts may not slow down those who are already reading their answer.

Every sequence that decodes is served in every step. While any does, a step takes at most ``prompt_tokens`` tokens of
prompts, shortest prompt first; while none does, it takes all that the budget allows.
"""

from clustersim.serving.view import Choice, SchedulerView, SequenceView


class PaceKeeper:
    """Named in a scenario as ``serving: {scheduler: user/pace_keeper.py:PaceKeeper}``.

    Parameters
    ----------
    prompt_tokens : int
        Most prompt tokens of a step beside decodes; from ``serving.scheduler_options``.
    """

    def __init__(self, prompt_tokens: int = 256) -> None:
        self.prompt_tokens = prompt_tokens

    def decide(self, view: SchedulerView) -> Choice:
        """Choose the next step."""
        plan = _Plan(view)
        begun: list[SequenceView] = []
        for sequence in view.running:
            if sequence.in_flight:
                continue
            if not sequence.decodes:
                begun.append(sequence)
            elif not plan.take(sequence, 1):
                last = view.running[-1]  # the pool is full: the newcomer gives way, and is computed anew later
                if last.in_flight or last is sequence or last.request in plan.tokens:
                    continue
                return Choice(preempt=(last.request,), tokens={})
        budget = self.prompt_tokens if plan.tokens else view.max_batch_tokens
        budget = min(budget, view.max_batch_tokens - len(plan.tokens))
        places = view.max_batch_requests - len(view.running)
        fresh = sorted(view.waiting, key=lambda s: (s.to_compute, s.request))[:places]
        for sequence in (*begun, *fresh):
            count = min(sequence.to_compute, budget)
            if count == 0 or not plan.take(sequence, count):
                break
            budget -= count
        if not plan.tokens and len(view.running) > 1 and not any(s.in_flight for s in view.running):
            return Choice(preempt=(view.running[-1].request,), tokens={})  # prompts half computed hold all blocks
        return Choice(tokens=plan.tokens, again=True)  # who is left out stays so until something changes


class _Plan:
    """What has been chosen so far, and the K/V blocks that are left beside it."""

    def __init__(self, view: SchedulerView) -> None:
        self.block_tokens = view.block_tokens
        self.tokens: dict[int, int] = {}
        self.free = list(view.free_blocks)

    def take(self, sequence: SequenceView, count: int) -> bool:
        """Add tokens of a sequence, if there are blocks for them."""
        held = sequence.blocks
        owner = sequence.owner if held else max(range(len(self.free)), key=lambda one: (self.free[one], -one))
        missing = -(-(sequence.computed + count) // self.block_tokens) - held
        if missing > 0:
            if missing > self.free[owner]:
                return False
            self.free[owner] -= missing
        self.tokens[sequence.request] = count
        return True
