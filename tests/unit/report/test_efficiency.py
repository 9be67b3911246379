"""Work, bytes, bubble, energy and cost: literals that follow from the deployment of round numbers.

Per token a dense layer multiplies with 1.75 million weights (qkv 1000 × 500, o 500 × 500, up and down 1000 × 500 each),
a row of logits with 500,000; attention takes 2 · 4 heads · 250 = 2,000 FLOPs per pair.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.cost.precision import Precision
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.programs import compile_programs
from clustersim.replay.replay import replay
from clustersim.report.metrics import efficiency
from clustersim.report.metrics.link_traffic import capacity_bytes, link_summary, move_bytes, step_bytes
from clustersim.report.metrics.model_work import cache_reads, causal_pairs, computed_positions, model_flops
from clustersim.report.metrics.step_features import step_features
from clustersim.report.words.service import service_lines
from clustersim.timeline.usage import Usage
from tests.round_numbers import DENSE, SPARSE, deployment, device, model
from tests.unit.replay.test_swapping import swapping
from tests.unit.timeline.test_moves import BACK, HAND_OVER, SWAP, frozen

LAYER, LOGITS, PAIR = 1_750_000, 500_000, 2_000
MODES = pytest.mark.parametrize("mode", ["full", "folded"])


def carried(given):
    """Bytes of capacity by link, as (tail, head) → bytes."""
    timeline, mesh = replay(given).timeline, Mesh(plan=given.entry.plan)
    programs = compile_programs(mesh, given.entry.blueprints, given.comm)
    found = step_bytes(programs, step_features(timeline, given.entry.plan.sp), mesh, given.comm)
    return {ends: value for ends, value in zip(given.topology.link_ends, found.tolist(), strict=True) if value}


def arrays(*values):
    return [np.array(value, np.int64) for value in values]


@pytest.mark.parametrize(
    ("first", "last", "window", "pairs"),
    [([0], [4], None, 10), ([2], [4], None, 7), ([0, 9], [4, 10], None, 20), ([0], [4], 2, 7), ([3], [3], 2, 0)],
)
def test_causal_pairs(first, last, window, pairs):
    assert causal_pairs(*arrays(first, last), window) == pairs


@pytest.mark.parametrize(
    ("arrivals", "options", "tokens", "pairs", "logits"),
    [
        ([(0, 4, 1)], {}, 4, 10, 1),
        ([(0, 4, 3)], {}, 6, 21, 3),
        ([(0, 4, 3)], {"max_batch_tokens": 2}, 6, 21, 3),  # chunks change nothing
        ([(0, 4, 3), (0, 6, 1)], {}, 12, 42, 4),
        ([(0, 4, 8), (0, 4, 8)], {"kv_blocks": 4}, 22, 2 * 66, 16),  # nor do preemptions
    ],
)
@MODES
def test_model_flops_count_every_token_once(mode, arrivals, options, tokens, pairs, logits):
    result = replay(deployment(arrivals, mode=mode, **options))
    prompts, outputs = arrays(*zip(*[(p, o) for _, p, o in arrivals], strict=True))
    computed = computed_positions(prompts, outputs, result.timeline.chunks)
    assert model_flops(model(1), computed) == 2 * tokens * LAYER + pairs * PAIR + 2 * logits * LOGITS
    assert bool(result.preemptions.sum()) == ("kv_blocks" in options)


def test_a_reused_prefix_and_an_unfinished_prompt_are_not_computed():
    chunks = dict(zip(("request", "start", "count"), arrays([0, 1], [2, 0], [2, 3]), strict=True))
    computed = computed_positions(*arrays([4, 9], [1, 0]), chunks)
    assert (computed.first.tolist(), computed.prompt.tolist(), computed.last.tolist()) == ([2, 0], [4, 3], [4, 3])


@pytest.mark.parametrize(
    "options", [{}, {"max_batch_tokens": 3}, {"kv_blocks": 7}], ids=["whole", "chunks", "preempted"]
)
def test_cache_reads_are_the_contexts_of_all_steps(options):
    """A full replay has a row per step; its context is what is cached, with the own key of each decode."""
    arrivals = [(0, 8, 5), (0, 5, 9), (3_000, 12, 4)]
    result = replay(deployment(arrivals, mode="full", **options))
    steps = result.timeline.steps
    prompts, outputs = arrays(*zip(*[(p, o) for _, p, o in arrivals], strict=True))
    found = cache_reads(model(2), result.timeline.chunks, prompts, outputs)
    assert found == [int(steps["context_tokens"].sum() - steps["decode_tokens"].sum())] * 2


def test_a_window_bounds_what_is_read():
    """Prompt of 4, then two decodes behind 4 and 5 cached tokens, of which 2 are within a window of 3."""
    windowed = replace(DENSE, attention=replace(DENSE.attention, sliding_window=3))
    chunks = dict(zip(("request", "start", "count", "sampled"), arrays([0], [0], [4], [1]), strict=True))
    assert cache_reads(model(1), chunks, *arrays([4], [3])) == [9]
    assert cache_reads(model(1, windowed), chunks, *arrays([4], [3])) == [4]


@pytest.mark.parametrize("plan", [ParallelPlan(), ParallelPlan(tp=2), ParallelPlan(pp=2), ParallelPlan(dp=2)], ids=str)
def test_a_step_reads_every_weight_once(plan):
    given = deployment([(0, 4, 1)], plan=plan, layers=2)
    programs = compile_programs(Mesh(plan=plan), given.entry.blueprints, given.comm)
    read = efficiency.weight_reads(programs, {}, {(0, "prefill"): 1, (0, "decode"): 2}, Precision())
    assert read == 3 * 2.0 * (2 * LAYER + LOGITS)


def test_experts_are_read_when_they_get_a_token():
    """Of 4 experts of 2 × 1000 × 500 weights one token visits 2; all are expected by 2 tokens to 1 − 1/4."""
    given = deployment([(0, 2, 2)], layer=SPARSE)
    timeline, programs = (
        replay(given).timeline,
        compile_programs(Mesh(plan=given.entry.plan), given.entry.blueprints, given.comm),
    )
    features = step_features(timeline, given.entry.plan.sp)
    read = efficiency.weight_reads(programs, features, {(0, "prefill"): 1, (0, "decode"): 1}, Precision(weights="fp8"))
    dense = 750_000 + 500 * 4 + LOGITS
    assert read == pytest.approx(2 * dense + (3 + 2) * 1_000_000)
    assert efficiency.weight_reads(programs, {}, {(0, "decode"): 1}, Precision(weights="fp8")) is None


@MODES
def test_an_all_reduce_of_two_sends_its_payload_once_each_way(mode):
    """Embedding, attention and FFN reduce 4 × 1,000 bytes; half of the 2,000 bytes of logits is gathered."""
    found = carried(deployment([(0, 4, 1)], mode=mode, plan=ParallelPlan(tp=2)))
    assert found == dict.fromkeys(
        [("g0", "switch"), ("switch", "g0"), ("g1", "switch"), ("switch", "g1")], pytest.approx(13_000)
    )


@MODES
def test_a_send_takes_its_bytes_on_the_way_to_the_next_stage(mode):
    """4 prompt tokens and one decoded."""
    found = carried(deployment([(0, 4, 2)], mode=mode, plan=ParallelPlan(pp=2), layers=2))
    assert found == {("g0", "switch"): 5_000, ("switch", "g1"): 5_000}


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(tp=2, pp=2),
        ParallelPlan(tp=2, ep=ExpertPlan(degree=2)),
        ParallelPlan(sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="idle"), tp=2),
    ],
    ids=["tp pp", "ep", "sp"],
)
def test_replays_carry_the_same(plan):
    options = {"plan": plan, "layers": 2, "layer": SPARSE if plan.ep.degree > 1 else DENSE}
    full, folded = (carried(deployment([(0, 8, 5), (0, 5, 9)], mode=mode, **options)) for mode in ("full", "folded"))
    assert full == pytest.approx(folded)
    assert full


@pytest.mark.parametrize(("move", "link"), [(SWAP, ("g0", "host")), (BACK, ("host", "g0"))])
def test_a_swap_is_carried_by_the_links_to_the_host(move, link):
    given = swapping((0, 2, 2), blocks=4)
    found = move_bytes(frozen(move).moves, Mesh(plan=given.entry.plan).device, given.comm)
    assert {given.topology.link_ends[at]: found[at] for at in np.flatnonzero(found)} == {link: 2_048.0}


def test_a_hand_over_is_carried_and_a_swap_uses_no_link_where_there_is_none_to_a_host():
    given = deployment([], plan=ParallelPlan(dp=2, tp=2))
    found = move_bytes(frozen(HAND_OVER, SWAP).moves, Mesh(plan=given.entry.plan).device, given.comm)
    assert Counter(found[found > 0].tolist()) == {4_096: 2}


def test_links_are_used_by_bytes_over_capacity_and_time():
    topology = deployment([], plan=ParallelPlan(tp=2)).topology
    found = link_summary(topology, np.array([500.0, 0.0, 250.0, 0.0]), 1_000)
    assert found["tiers"] == {"scaleup": {"links": 4, "used": 2, "mean": 0.375, "max": 0.5}}
    assert found["busiest"] == [
        {"link": "g0 → switch", "tier": "scaleup", "bytes": 500.0, "utilisation": 0.5},
        {"link": "g1 → switch", "tier": "scaleup", "bytes": 250.0, "utilisation": 0.25},
    ]


def test_weak_links_are_used_by_the_capacity_that_there_was():
    topology = deployment([], plan=ParallelPlan(tp=2)).topology  # each link carries 1e9 B/s: a byte in a nanosecond
    faults = (
        Fault(at_ns=100, until_ns=600, links=(0,), share=0.5),
        Fault(at_ns=400, until_ns=None, links=(0, 1), share=0.25),  # from 400 to 600 an eighth is left of link 0
        Fault(at_ns=0, until_ns=2_000, links=(2,)),
        Fault(at_ns=0, devices=(0,), slowdown=2.0),
    )
    could = capacity_bytes(topology, faults, 200, 1_200)
    # link 0: 200 ns × 1/2 + 200 ns × 1/8 + 600 ns × 1/4; link 1: 200 ns + 800 ns × 1/4; link 2 has failed throughout
    assert could.tolist() == pytest.approx([275.0, 400.0, 0.0, 1_000.0])
    found = link_summary(topology, np.array([55.0, 100.0, 0.0, 100.0]), 1_000, could)
    assert [one["utilisation"] for one in found["busiest"]] == pytest.approx([0.25, 0.2, 0.1])
    assert [(one["capacity"], one["utilisation"]) for one in found["weakened"]] == [
        pytest.approx(pair) for pair in ((0.275, 0.2), (0.4, 0.25), (0.0, 0.0))
    ]
    words = dict(service_lines({"links": found}))["links"]
    ends = " → ".join(topology.link_ends[1])
    assert words.endswith(
        f"; 3 links weakened by faults ({ends} had 40% of its capacity in the mean, 25% of that used)"
    )


def test_mfu_and_mbu_are_shares_of_what_all_devices_could_do():
    assert efficiency.mfu(3e12, 2e12, 3_000_000_000) == 0.5
    assert efficiency.mbu(3e12, 2e12, 3_000_000_000) == 0.5


def usage(**fields):
    return Usage(**{name: np.array(value, np.int64) for name, value in fields.items()})


def test_busy_fractions_are_means_over_the_devices_of_all_pools():
    first = usage(busy_ns=[[60, 20, 5, 0, 10, 0, 0]], exposed_ns=[10], held_ns=[[90]], in_flight_ns=[90])
    second = usage(busy_ns=[[40, 20, 0, 5, 0, 0, 0]], exposed_ns=[30], held_ns=[[60]], in_flight_ns=[60])
    found = efficiency.busy_fractions([first, second], 100)
    assert found == pytest.approx({"compute": 0.5, "communication": 0.25, "exposed_communication": 0.2, "host": 0.05})


def test_the_bubble_is_what_a_stage_lacks_while_a_step_is_in_flight():
    found = efficiency.bubbles(
        usage(busy_ns=[[0]], exposed_ns=[0], held_ns=[[60, 40], [0, 0], [50, 50]], in_flight_ns=[100, 0, 50])
    )
    np.testing.assert_allclose(found, [[0.4, 0.6], [0, 0], [0, 0]])


@pytest.mark.parametrize(("idle_w", "joules"), [(100.0, 5_000.0), (None, 70 * 20 + 630 * 5)])
def test_energy_is_idle_power_and_more_while_computing(idle_w, joules):
    """Two devices for 10 s, one of which computes for 5 s, at 700 W; without a figure idle takes a tenth of that."""
    one = replace(device(), power_w=700.0, idle_power_w=idle_w)
    assert efficiency.energy_j(one, np.array([5_000_000_000, 0]), 10_000_000_000) == pytest.approx(joules)
    assert efficiency.energy_j(device(), np.array([0]), 1) is None


def test_cost_is_the_price_of_all_devices_for_the_time():
    one = replace(device(), price_per_hour=2.5)
    assert efficiency.cost_usd(one, 8, 3_600_000_000_000) == 20.0
    assert efficiency.per_output(20.0, 4_000_000, 1e6) == 5.0
    assert efficiency.cost_usd(device(), 8, 1) is None
    assert efficiency.per_output(None, 4) is efficiency.per_output(1.0, 0) is None
