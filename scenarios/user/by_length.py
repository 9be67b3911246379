"""A router of one's own: long prompts have replicas of their own, so that short ones never wait behind them."""

from clustersim.serving.view import RouterView


class ByLength:
    """Named in a scenario as ``serving: {router: user/by_length.py:ByLength}``.

    Parameters
    ----------
    long : int
        Prompts from so many tokens on are long; from ``serving.router_options``.
    share : float
        Share of the replicas that serve long prompts, at least one of them.
    """

    def __init__(self, long: int = 2048, share: float = 0.5) -> None:
        self.long = long
        self.share = share

    def route(self, view: RouterView) -> int:
        """Choose the replica."""
        count = len(view.replicas)
        cut = count - max(1, round(count * self.share))
        mine = view.replicas[cut:] if view.prompt_tokens >= self.long else view.replicas[: max(1, cut)]
        return min(mine, key=lambda replica: (replica.outstanding_tokens, replica.replica)).replica
