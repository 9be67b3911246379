"""The shipped examples of a scheduler and a router of one's own, against what they promise."""

from __future__ import annotations

from clustersim import catalog
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.replay import replay
from clustersim.serving.user_class import UserClass
from tests.round_numbers import deployment, step_ends


def example(file: str, name: str, method: str, **options: object) -> UserClass:
    path = catalog.data_root() / "scenarios" / "user" / file
    return UserClass(path=str(path), name=name, method=method, options=options, allowed=True)


def pace_keeper(arrivals, prompt_tokens=4, **kwargs):
    chosen = example("pace_keeper.py", "PaceKeeper", "decide", prompt_tokens=prompt_tokens)
    return replay(deployment(arrivals, scheduler=chosen, **kwargs))


def test_a_long_prompt_is_cut_while_somebody_decodes():
    result = pace_keeper([(0, 4, 5), (1, 20, 1)])
    steps = result.timeline.steps
    # The first prompt alone; then 4 tokens beside each of its 4 decodes; then, as nobody decodes, the 4 that are left.
    assert steps["prefill_tokens"].tolist() == [4, 4, 4, 4, 4, 4]
    assert steps["decode_tokens"].tolist() == [0, 1, 1, 1, 1, 0]


def test_the_shortest_prompt_goes_first():
    result = pace_keeper([(0, 4, 1), (1, 9, 1), (1, 3, 1)], max_batch_requests=1)
    finished = result.timeline.facts
    assert finished["request"][finished["kind"] == 4].tolist() == [0, 2, 1]


def test_the_newcomer_gives_way_where_the_pool_is_full():
    # 4 blocks of 4 tokens: two sequences of 4 + 8 tokens need 3 each at the end.
    result = pace_keeper([(0, 4, 8), (0, 4, 8)], kv_blocks=4)
    assert result.preemptions.tolist() == [0, 1]
    assert len(step_ends(result.timeline)) > 8


def test_long_prompts_have_a_replica_of_their_own():
    router = example("by_length.py", "ByLength", "route", long=10, share=0.5)
    arrivals = [(0, 3, 2), (1, 12, 2), (2, 4, 2), (3, 30, 2)]
    result = replay(deployment(arrivals, plan=ParallelPlan(dp=2), router=router))
    assert result.replica.tolist() == [0, 1, 0, 1]
