"""What is told where no plan serves a workload."""

from types import SimpleNamespace
from typing import Any

from clustersim.search.plans.refusals import none_serves


def standing(why: str, tpot_ms: float) -> Any:
    return SimpleNamespace(why=why, fate="pruned", same=1, bound=SimpleNamespace(tpot_ms=tpot_ms, ttft_ms=None))


def test_a_bound_of_some_plans_is_not_told_of_all() -> None:
    slow, quick = standing("least TPOT", 6.3), standing("least TTFT", 4.4)
    assert "; no plan has a TPOT below 6.3 ms" in str(none_serves([slow], 0.99))
    assert "; no plan that this rules out has a TPOT below 6.3 ms" in str(none_serves([slow, quick], 0.99))
