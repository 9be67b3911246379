"""Small timelines with their derivation: each is a theorem, in both replays.

The durations are those of ``tests.round_numbers``: in ns, a GEMM 1,000, an element-wise operator 100, attention 10
per key or pair, schedule and sample 400 each; a communication 1,000 per serial step and 1 per byte on a link; a
token is 1,000 bytes, its K/V 1,000, its logits 2,000.
"""

from __future__ import annotations

from itertools import accumulate

import pytest

from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.serving.decision import ADMITTED, ARRIVED, FINISHED, PREEMPTED
from clustersim.timeline.timeline import Timeline
from tests.round_numbers import SPARSE, crossbar, deployment, lane, two_leaves

pytestmark = pytest.mark.parametrize("mode", ["full", "folded"])

Row = tuple[str, int, int]


def chain(start: int, *operators: tuple[str, int]) -> list[Row]:
    """Return (name, start, end) of operators that follow one another, each given as (name, duration)."""
    ends = list(accumulate((duration for _, duration in operators), initial=start))
    return [(name, ends[i], ends[i + 1]) for i, (name, _) in enumerate(operators)]


def busy(timeline: Timeline, rank: int, step: int) -> tuple[int, int]:
    """Return when a rank's host and compute work of a step starts and ends."""
    spans = timeline.unfold(ranks=[rank])
    chosen = (spans.step == step) & (spans.stream != 2) & (spans.stream != 3)
    return int(spans.start_ns[chosen].min()), int(spans.end_ns[chosen].max())


def test_a_decode_step_on_one_device(mode, run):
    """The prompt of 4 tokens has 10 pairs: 2,000 + 4,600 + 100. The decode attends its 4 tokens and itself."""
    timeline = run(deployment([(0, 4, 2)], mode=mode)).timeline
    assert lane(timeline, 0)[16:] == chain(
        6_700,
        ("schedule", 400), ("embedding", 100),
        ("attention_norm", 100), ("qkv_proj", 1_000), ("kv_write", 100), ("attention_decode", 50),
        ("o_proj", 1_000), ("attention_add", 100),
        ("ffn_norm", 100), ("ffn_up", 1_000), ("ffn_act", 100), ("ffn_down", 1_000), ("ffn_add", 100),
        ("final_norm", 100), ("lm_head", 1_000), ("sample", 400),
    )  # fmt: skip
    assert timeline.end_ns == 13_350


def test_tp_2_with_its_collectives(mode, run):
    """A prompt of one token. A ring of two all-reduces in 2 steps and moves each byte of the tensor once over each
    link (2 · 1/2): 2,000 + 1,000. It all-gathers in 1 step and moves half of the 2,000 bytes of logits.
    """
    timeline = run(deployment([(0, 1, 1)], mode=mode, plan=ParallelPlan(tp=2))).timeline
    for rank in range(2):
        assert lane(timeline, rank) == chain(
            0,
            ("schedule", 400), ("embedding", 100), ("embedding_all_reduce", 3_000),
            ("attention_norm", 100), ("qkv_proj", 1_000), ("kv_write", 100), ("attention_prefill", 10),
            ("o_proj", 1_000), ("o_proj_all_reduce", 3_000), ("attention_add", 100),
            ("ffn_norm", 100), ("ffn_up", 1_000), ("ffn_act", 100), ("ffn_down", 1_000),
            ("ffn_down_all_reduce", 3_000), ("ffn_add", 100),
            ("final_norm", 100), ("lm_head", 1_000), ("lm_head_all_gather", 2_000), ("sample", 400),
        )  # fmt: skip
    assert {name for name, _, _ in lane(timeline, 0, "comm")} == {
        "embedding_all_reduce", "o_proj_all_reduce", "ffn_down_all_reduce", "lm_head_all_gather"
    }  # fmt: skip


def test_pp_2_with_two_micro_batches_in_flight(mode, run):
    """Two prompts of 4 tokens are two micro-batches of the budget of 4, one layer per stage.

    Prefill: stage 0 takes 400 + 100 + 4,700; the send 1,000 + 4 · 1,000; stage 1 4,700 + 100 + 1,000 + 400.
    Decode of 5 keys: 5,150; 1,000 + 1,000; 6,150. ::

        stage 0   |0···5,200|5,200···10,400|    |16,400···21,550| |22,600···27,750|
        send             |5,200··10,200|10,400··15,400|  |21,550·23,550| |27,750·29,750|
        stage 1                 |10,200···16,400|16,400···22,600|  |23,550···29,700|29,750···35,900|
    """
    given = deployment([(0, 4, 2), (0, 4, 2)], mode=mode, plan=ParallelPlan(pp=2), layers=2, max_batch_tokens=4)
    timeline = run(given).timeline
    assert [busy(timeline, 0, step) for step in range(4)] == [
        (0, 5_200),
        (5_200, 10_400),  # the stage is free, although the send goes on
        (16_400, 21_550),  # request 0 decodes as soon as its first token is sampled
        (22_600, 27_750),
    ]
    assert lane(timeline, 0, "send") == [
        ("send", 5_200, 10_200),
        ("send", 10_400, 15_400),
        ("send", 21_550, 23_550),
        ("send", 27_750, 29_750),
    ]
    assert [("send", start, end) for _, start, end in lane(timeline, 1, "recv")] == lane(timeline, 0, "send")
    assert [busy(timeline, 1, step) for step in range(4)] == [
        (10_200, 16_400),
        (16_400, 22_600),  # arrived at 15,400, waits for the stage
        (23_550, 29_700),  # the stage waits for it: a bubble of 950
        (29_750, 35_900),
    ]


def test_pp_2_without_decode_overlap(mode, run):
    """As above until both prompts are through; then one decode is in flight at a time. From 22,600, when request 1
    has its first token, request 0 is in flight (16,400 … 29,700), so request 1 waits until 29,700.
    """
    given = deployment(
        [(0, 4, 2), (0, 4, 2)],
        mode=mode,
        plan=ParallelPlan(pp=2, decode_overlap="none"),
        layers=2,
        max_batch_tokens=4,
    )
    timeline = run(given).timeline
    assert busy(timeline, 0, 2) == (16_400, 21_550)
    assert busy(timeline, 0, 3) == (29_700, 34_850)
    assert timeline.end_ns == 34_850 + 2_000 + 6_150


def test_sp_2_prefills_in_a_ring(mode, run):
    """8 tokens, 4 on each rank. While their K/V (4,000 bytes and 1 step) travels, each rank attends its own segment:
    10 pairs. Then rank 1 attends the first 4 keys, 16 pairs; rank 0 has no pair with the later ones: 1 ns, the least
    that an operator takes. At the end the K/V of rank 1 (4,000 bytes and 1 step) moves to rank 0, which will decode,
    while the LM head works, on rank 0 for no row: 1 ns of norm.
    """
    ring = SequencePlan(degree=2, scheme="ring", partition="contiguous", decode="idle")
    timeline = run(deployment([(0, 8, 1)], mode=mode, plan=ParallelPlan(sp=ring))).timeline
    for rank, pairs, norm in ((0, 1, 1), (1, 160, 100)):
        first = chain(
            0, ("schedule", 400), ("embedding", 100), ("attention_norm", 100), ("qkv_proj", 1_000),
            ("kv_write", 100), ("attention_prefill_0", 100),
        )  # fmt: skip
        second = chain(
            1_600 + 5_000, ("attention_prefill_1", pairs), ("o_proj", 1_000), ("attention_add", 100),
            ("ffn_norm", 100), ("ffn_up", 1_000), ("ffn_act", 100), ("ffn_down", 1_000), ("ffn_add", 100),
            ("final_norm", norm), ("lm_head", 1_000), ("sample", 400),
        )  # fmt: skip
        assert lane(timeline, rank, "compute", "host") == first + second
        # Both meet for the move when the slower one has done its layer: 6,600 + 160 + 3,400.
        assert lane(timeline, rank, "comm") == [("kv_ring_1", 1_600, 6_600), ("kv_move", 10_160, 15_160)]
    assert timeline.end_ns == 15_160


def test_sp_2_idles_in_decode(mode, run):
    """The second token of the same request: 9 keys on rank 0, nothing on rank 1."""
    ring = SequencePlan(degree=2, scheme="ring", partition="contiguous", decode="idle")
    timeline = run(deployment([(0, 8, 2)], mode=mode, plan=ParallelPlan(sp=ring))).timeline
    assert busy(timeline, 0, 1) == (15_160, 15_160 + 2_000 + 4_600 + 90)
    assert 1 not in timeline.unfold(ranks=[1]).step


def test_ep_2_dispatches_and_combines(mode, run):
    """Two tokens, each to 2 of 4 experts. A rank sends its half of the tokens to both chosen experts: 2 tokens · 2 ·
    1,000 bytes / 2, of which half stays; one step each way. The slices (1/2 of 2,000 bytes) are gathered in a step.
    What the experts' activation and sum take is in their products; 1 ns is the least that a span has.
    """
    plan = ParallelPlan(tp=2, ep=ExpertPlan(degree=2))
    timeline = run(deployment([(0, 2, 1)], mode=mode, plan=plan, layer=SPARSE)).timeline
    for rank in range(2):
        assert lane(timeline, rank) == chain(
            0,
            ("schedule", 400), ("embedding", 100), ("embedding_all_reduce", 4_000),
            ("attention_norm", 100), ("qkv_proj", 1_000), ("kv_write", 100), ("attention_prefill", 30),
            ("o_proj", 1_000), ("o_proj_all_reduce", 4_000), ("attention_add", 100),
            ("moe_norm", 100), ("gate", 1_000), ("dispatch", 2_000),
            ("expert_up", 1_000), ("expert_act", 1), ("expert_down", 1_000), ("combine", 2_000),
            ("aggregate", 1), ("aggregate_all_gather", 2_000), ("moe_add", 100),
            ("final_norm", 100), ("lm_head", 1_000), ("lm_head_all_gather", 2_000), ("sample", 400),
        )  # fmt: skip


def test_a_preemption(mode, run):
    """2 blocks of 4 tokens; two prompts of 4 take one each.

    ======  ============================================================================================
    0       prefill of both: 20 pairs, 2,000 + 4,600 + 200
    6,800   request 0 needs a second block: request 1 gives its own; decode of 5 keys, 6,650; 0 is done
    13,450  request 1 computes its 4 + 1 tokens anew, 15 pairs, 6,750: its second token
    20,200  decode of 6 keys, 6,660: its third and last
    ======  ============================================================================================
    """
    result = run(deployment([(0, 4, 2), (0, 4, 3)], mode=mode, kv_blocks=2))
    facts = result.timeline.facts
    columns = ("time_ns", "kind", "request", "value", "used")
    assert sorted(zip(*(facts[name].tolist() for name in columns), strict=True), key=lambda fact: fact[0]) == [
        (0, ARRIVED, 0, 4, -1),
        (0, ARRIVED, 1, 4, -1),
        (0, ADMITTED, 0, 4, 1),
        (0, ADMITTED, 1, 4, 2),
        (6_800, PREEMPTED, 1, 1, 1),
        (13_450, FINISHED, 0, 2, 0),
        (13_450, ADMITTED, 1, 5, 2),
        (26_860, FINISHED, 1, 3, 0),
    ]
    assert result.preemptions.tolist() == [0, 1]
    assert lane(result.timeline, 0, "host")[1::2] == [
        ("sample", 6_400, 6_800),
        ("sample", 13_050, 13_450),
        ("sample", 19_800, 20_200),
        ("sample", 26_460, 26_860),
    ]


def test_two_sends_that_share_a_link(mode, run):
    """Replica 0 sends from g0 to g2, replica 1 from g1 to g3, 4,000 bytes each, over the one link between leaves.

    ======  ============================================================================================
    5,200   the send of replica 0 begins (stage 0 took 400 + 100 + 4,700); on its links from 6,200 on
    6,200   the send of replica 1 begins, whose request came 1,000 later; on its links from 7,200 on
    7,200   1,000 bytes of the first are through; both go on at half the rate
    13,200  3,000 more bytes of each: the first is done, the second has 1,000 left, alone
    14,200  done; each stage 1 takes 4,700 + 1,500
    ======  ============================================================================================
    """
    plan = ParallelPlan(dp=2, pp=2, placement=(0, 2, 1, 3))
    given = deployment([(0, 4, 1), (1_000, 4, 1)], mode=mode, plan=plan, topology=two_leaves(2), layers=2)
    timeline = run(given).timeline
    assert lane(timeline, 0, "send") == [("send", 5_200, 13_200)]
    assert lane(timeline, 2, "send") == [("send", 6_200, 14_200)]
    assert busy(timeline, 1, 0) == (13_200, 19_400)
    assert busy(timeline, 3, 0) == (14_200, 20_400)


def test_sends_and_collectives_that_share_links(mode, run):
    """TP 2 × PP 2 on a crossbar, two prompts of 4 tokens, a layer per stage: ranks 0, 1 send to ranks 2, 3.

    An all-reduce of 4 tokens takes 2,000 + 4,000 alone. Between two of them are 2,300 of work: 100 + 1,000 + 100 +
    100 (10 pairs) + 1,000, and 100 + 100 + 1,000 + 100 + 1,000.

    ======  ============================================================================================
    0       stage 0, step 0: 500; all-reduces 500 … 6,500, 8,800 … 14,800, 17,100 … 23,100; add
    23,200  send of step 0 begins; on its links (up of the sender, down of the receiver) from 24,200
    23,200  stage 0, step 1: all-reduce from 23,700; on its links from 25,700, when 1,500 bytes are sent
    30,700  at half the rate the other 2,500 bytes are sent; the all-reduce has 1,500 of 4,000 left
    32,200  the all-reduce is done, 2,500 late; the others of step 1 are 34,500 … 40,500, 42,800 … 48,800
    30,700  stage 1, step 0: all-reduces 33,000 … 39,000 and 41,300 … 47,300, beside no send
    48,500  all-gather of logits, after add, norm and LM head; on its links from 49,500 with 1,000 bytes
    48,900  send of step 1 begins; on its links from 49,900, when the all-gather has 600 bytes left
    51,100  the all-gather is done, 600 late; 600 of 4,000 bytes are sent; then sample
    54,500  the send is done
    ======  ============================================================================================
    """
    given = deployment(
        [(0, 4, 1), (0, 4, 1)],
        mode=mode,
        plan=ParallelPlan(tp=2, pp=2),
        topology=crossbar(4),
        layers=2,
        max_batch_tokens=4,
    )
    timeline = run(given).timeline
    for rank in (0, 1):
        assert lane(timeline, rank, "comm") == [
            ("embedding_all_reduce", 500, 6_500),
            ("o_proj_all_reduce", 8_800, 14_800),
            ("ffn_down_all_reduce", 17_100, 23_100),
            ("embedding_all_reduce", 23_700, 32_200),
            ("o_proj_all_reduce", 34_500, 40_500),
            ("ffn_down_all_reduce", 42_800, 48_800),
        ]
        assert lane(timeline, rank, "send") == [("send", 23_200, 30_700), ("send", 48_900, 54_500)]
    for rank in (2, 3):
        assert lane(timeline, rank, "comm")[:3] == [
            ("o_proj_all_reduce", 33_000, 39_000),
            ("ffn_down_all_reduce", 41_300, 47_300),
            ("lm_head_all_gather", 48_500, 51_100),
        ]
        assert busy(timeline, rank, 0)[1] == 51_500
        assert busy(timeline, rank, 1)[0] == 54_500
