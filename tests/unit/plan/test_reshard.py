"""Which K/V goes from which rank to which; 4 layers, 4 K/V heads of 8 + 8 elements of 2 bytes (32 a head)."""

from __future__ import annotations

import pytest

from clustersim.model.hugging_face import model_from_config
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import kv_shards
from tests.laws.random_scenarios import LLAMA

MODEL = model_from_config(
    LLAMA
    | {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8},
    name="tiny",
)
HEAD = 32


def told(source: ParallelPlan, target: ParallelPlan) -> list[tuple[tuple[int, int], tuple[int, int], int, float]]:
    shards = kv_shards(MODEL, source, target, 2)
    return [(shard.source, shard.target, len(shard.layers), shard.token_bytes) for shard in shards]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ({"tp": 2}, {"tp": 2}, [((0, 0), (0, 0), 4, 8 * HEAD), ((0, 1), (0, 1), 4, 8 * HEAD)]),
        ({"tp": 2}, {"tp": 1}, [((0, 0), (0, 0), 4, 8 * HEAD), ((0, 1), (0, 0), 4, 8 * HEAD)]),
        ({"tp": 1}, {"pp": 2}, [((0, 0), (0, 0), 2, 8 * HEAD), ((0, 0), (1, 0), 2, 8 * HEAD)]),
        ({"pp": 2}, {"tp": 2}, [
            ((0, 0), (0, 0), 2, 4 * HEAD), ((0, 0), (0, 1), 2, 4 * HEAD),
            ((1, 0), (0, 0), 2, 4 * HEAD), ((1, 0), (0, 1), 2, 4 * HEAD),
        ]),
        # 8 ranks hold each of 4 heads twice; of two holders, the targets take turns
        ({"tp": 8}, {"tp": 4}, [((0, s), (0, t), 4, 4 * HEAD) for s, t in ((0, 0), (3, 1), (4, 2), (7, 3))]),
    ],
)  # fmt: skip
def test_each_rank_gets_its_heads_and_layers_from_one_that_holds_them(source, target, expected):
    assert told(ParallelPlan(**source), ParallelPlan(**target)) == expected


@pytest.mark.parametrize("degrees", [{"tp": 1}, {"tp": 2, "pp": 2}, {"tp": 4}, {"tp": 8}, {"pp": 4}])
@pytest.mark.parametrize("other", [{"tp": 1}, {"tp": 2}, {"tp": 8}, {"pp": 2, "tp": 2}])
def test_every_rank_gets_all_that_it_is_to_hold(degrees, other):
    """KV-4: 16 heads × layers on one rank, or replicas of them where there are more ranks than heads."""
    target = ParallelPlan(**other)
    got: dict[tuple[int, int], float] = {}
    for _, to, _, bytes_ in told(ParallelPlan(**degrees), target):
        got[to] = got.get(to, 0) + bytes_
    each = max(1, 4 // target.tp) * (4 // target.pp) * HEAD
    assert got == {(stage, t): each for stage in range(target.pp) for t in range(target.tp)}
