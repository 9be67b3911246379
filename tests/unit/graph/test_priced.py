"""Durations, FLOPs and bytes of every node, in round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from graph_models import BF16, DENSE, MIXTURE, plan, priced, pricer, prompt

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import Node
from clustersim.graph.expand import blueprint_of
from clustersim.graph.prices.priced import NO_DURATION, price_graph, start_times
from clustersim.graph.program import CostClass
from clustersim.graph.stepgraph import StepGraph, expand

DECODE = StepBatch(decode_sequences=(3,), decode_keys=(30,))


def rows(found, name):
    """Return (ranks, amount, FLOPs, bytes, nanoseconds) of the nodes of that name."""
    graph = found.graph
    at = [n for n in range(len(graph)) if graph.symbols[graph.symbol[n]].name == name]
    columns = (found.amount, found.flops, found.bytes_moved, found.duration_ns)
    return [(graph.ranks_of(n), *(column[n] for column in columns)) for n in at]


def test_a_product_is_priced_by_its_shape():
    # 4 rows, 10 → 16 on one rank
    assert rows(priced(DENSE, prompt(4)), "qkv_proj")[0] == ((0,), 4, 2 * 640, 2 * (160 + 4 * 26), 640)


def test_a_collective_is_priced_by_its_group():
    found = rows(priced(DENSE, prompt(4), tp=2, pp=2), "o_proj_all_reduce")
    assert found == [((0, 1), 80, 0, 80, 160), ((2, 3), 80, 0, 80, 160)]


def test_a_send_has_its_receiver_and_a_receive_no_duration_of_its_own():
    found = priced(DENSE, prompt(4), tp=2, pp=2)
    assert rows(found, "send") == [((0,), 80, 0, 80, 160), ((1,), 80, 0, 80, 160)]
    assert rows(found, "recv") == [((2,), 80, 0, 80, NO_DURATION), ((3,), 80, 0, 80, NO_DURATION)]


def test_communication_is_priced_between_the_ranks_that_it_joins():
    given, asked = plan(pp=2, tp=2), {}
    graph = expand(blueprint_of(DENSE, given, BF16, "prefill"), given)

    def number(op, ranks):
        asked.setdefault(op, []).append(ranks)
        return 1

    price_graph(graph, given, prompt(4), pricer=pricer(given), precision=BF16, comm_number=number)
    assert {op: sorted(set(ranks)) for op, ranks in asked.items()} == {
        "all_reduce": [(0, 1), (2, 3)],
        "all_gather": [(2, 3)],
        "send": [(0, 2), (1, 3)],
    }


def test_structural_nodes_take_no_time_and_do_nothing():
    found = priced(DENSE, prompt(4))
    assert {row[1:] for name in ("kv_read", "boundary") for row in rows(found, name)} == {(0, 0, 0, NO_DURATION)}


def test_ranks_of_a_split_prompt_are_priced_by_their_own_tokens():
    found = priced(DENSE, prompt(4), sp={"degree": 2, "scheme": "ring"})
    # pairs: rank 0 attends 3 of its own and none that lie ahead; rank 1 attends 3 and 4; times 4 heads
    cores = [rows(found, f"attention_prefill_{step}")[:2] for step in (0, 1)]
    assert [[row[-1] for row in step] for step in cores] == [[12, 12], [1, 16]]  # nothing takes less than 1 ns


def test_one_stage_alone_is_priced_as_in_the_whole():
    whole, last = priced(DENSE, prompt(4), tp=2, pp=2), priced(DENSE, prompt(4), only=(1,), tp=2, pp=2)
    at = whole.graph.stage == 1
    assert whole.duration_ns[at].tolist() == last.duration_ns.tolist()
    assert whole.flops[at].tolist() == last.flops.tolist()


@pytest.mark.parametrize(("most", "gap"), [(3, 5), (2, 7)])
def test_small_decode_steps_run_as_a_captured_graph(most, gap):
    given = plan()
    engine = {"graph_max_tokens": most, "graph_launch_s": 5e-9, "launch_s": 7e-9}
    graph = expand(blueprint_of(DENSE, given, BF16, "decode"), given)
    found = price_graph(
        graph, given, DECODE, pricer=pricer(given, **engine), precision=BF16, comm_number=lambda op, ranks: 1
    )
    assert rows(found, "qkv_proj")[0][-1] == 3 * 160 + gap
    assert rows(found, "attention_decode")[0][-1] == 30 * 4 + gap


def test_mixed_steps_never_run_as_a_captured_graph():
    batch = StepBatch(chunks=(Chunk(request=0, start=0, count=1),), decode_sequences=(1,), decode_keys=(2,))
    cls = CostClass(node=Node(name="", op="memory", module="", amount=(("tokens", 1.0),)), s=0)
    engine = {"graph_max_tokens": 99, "graph_launch_s": 5e-9, "launch_s": 7e-9}
    assert pricer(plan(), **engine).price([cls], batch).tolist() == [2 + 7]


def test_experts_are_priced_by_the_rows_that_reach_them():
    # 4 tokens × 2 experts, half on each of two ranks: 4 rows, 10 → 12
    assert [row[-1] for row in rows(priced(MIXTURE, prompt(4), tp=2, ep=2), "expert_up")][:2] == [480, 480]


@pytest.mark.parametrize("name", ["dispatch", "expert_act", "combine", "aggregate"])
def test_what_surrounds_experts_moves_bytes_in_the_time_of_their_products(name):
    found = rows(priced(MIXTURE, prompt(4)), name)[0]
    assert found[3] > 0  # bytes
    assert found[4] == 1  # ns: nothing takes less


def test_an_all_to_all_between_experts_takes_its_own_time():
    # 2 of 4 tokens, 2 experts each, 10 numbers of 2 bytes; 2 ranks take 2 ns a byte
    assert rows(priced(MIXTURE, prompt(4), tp=2, ep=2), "combine")[0][-1] == 2 * 2 * 10 * 2 * 2


def test_a_node_starts_when_its_inputs_and_its_stream_are_ready():
    """Two ranks: 0 and 1 compute for 10 and 20, meet for 5, then compute; beside it rank 0 sends its first result."""
    node = Node(name="x", op="memory", module="x")
    graph = StepGraph(
        symbols=(node,), groups=((0,), (1,), (0, 1)), symbol=np.zeros(6, np.int64),
        group=np.array([0, 1, 2, 0, 1, 0]), layer=np.zeros(6, np.int64), stage=np.zeros(6, np.int64),
        unit=np.zeros(6, np.int64), stream=np.array([0, 0, 1, 0, 0, 2]),
        source=np.array([0, 1, 2, 0]), target=np.array([2, 2, 4, 5]), kind=np.zeros(4, np.int64),
    )  # fmt: skip
    # node 3 needs nothing but its stream; node 4 needs the meeting
    assert start_times(graph, np.array([10, 20, 5, 7, 1, 3])).tolist() == [0, 0, 20, 10, 25, 10]
    assert start_times(graph, np.array([10, 20, NO_DURATION, 7, 1, 3])).tolist() == [0, 0, 20, 10, 20, 10]


def test_the_next_stage_starts_when_the_send_ends():
    found = priced(DENSE, prompt(4), pp=2)
    starts = start_times(found.graph, found.duration_ns)
    names = [found.graph.symbols[s].name for s in found.graph.symbol]
    send, recv = names.index("send"), names.index("recv")
    assert starts[recv] == starts[send] + found.duration_ns[send]
    assert starts[recv + 1] == starts[recv]
