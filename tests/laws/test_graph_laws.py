"""Laws of the step graph over random models, plans and batches: work, cache, order, volumes, what folding stands on.

The expected work comes from ``clustersim.model.work``, which knows no plan.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.clock import FloatArray
from clustersim.cost.engine import Engine
from clustersim.cost.protocol import Shape
from clustersim.graph.batch import StepBatch, features_of
from clustersim.graph.blueprint import STEP_KINDS, Blueprint, StepKind
from clustersim.graph.compiler import build_program
from clustersim.graph.expand import blueprint_of
from clustersim.graph.export import json_text
from clustersim.graph.foreign.read import read_graph
from clustersim.graph.operators import single_device
from clustersim.graph.passes.data import data_pass
from clustersim.graph.passes.expert import expert_pass
from clustersim.graph.passes.pipeline import pipeline_pass
from clustersim.graph.passes.sequence import kv_entry_elements, sequence_pass
from clustersim.graph.passes.tensor import tensor_pass
from clustersim.graph.prices.priced import NO_DURATION, PricedGraph, price_graph, start_times
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.table import amount
from clustersim.graph.prices.work import flops
from clustersim.graph.stepgraph import StepGraph, expand
from clustersim.model import Moe
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.work import attended_pairs, module_flops
from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.plan.segments import segments
from clustersim.plan.stages import stage_cuts
from tests.acyclic import is_acyclic
from tests.laws.graph_cases import CONFIGS, PRECISION, Case, cases, model_of


def graph_of(case: Case) -> StepGraph:
    """Expand one replica."""
    return expand(case.blueprint, case.plan)


def sp_rank(plan: ParallelPlan, ranks: tuple[int, ...]) -> int:
    """Return the SP coordinate of a node's first rank."""
    return ranks[0] % plan.stage_ranks // plan.tp


def flops_by_module(case: Case) -> dict[str, float]:
    """Sum the graph's FLOPs over ranks by name of the operator, work that ranks repeat counted once."""
    graph = graph_of(case)
    features = features_of(case.batch, case.plan.sp, case.windows)
    found: dict[str, float] = defaultdict(float)
    for symbol, group in zip(graph.symbol.tolist(), graph.group.tolist(), strict=True):
        node = graph.symbols[symbol]
        work = flops(node, features, sp_rank(case.plan, graph.groups[group]))
        name = node.name.rstrip("_0123456789") if node.op == "attention_prefill" else node.name
        found[name] += work / node.copies
    return {name: work for name, work in found.items() if work}


def expected_flops(case: Case) -> dict[str, float]:
    """Sum what the formulas say over layers, prefill and decode, with the work that a plan is known to repeat."""
    model, plan = case.model, case.plan
    found: dict[str, float] = defaultdict(float)
    rows = len(case.prefills) + len(case.decodes)
    found["lm_head"] = 2 * rows * model.hidden * model.vocab
    for layer in model.layers:
        a = layer.attention
        for part, sequences, absorbed in (("prefill", case.prefills, False), ("decode", case.decodes, True)):
            tokens = sum(new for new, _ in sequences)
            pairs = sum(attended_pairs(new, context, a.sliding_window) for new, context in sequences)
            keys = expanded_keys(case) if part == "prefill" else 0
            work = module_flops(model, layer, tokens, pairs, keys=keys, absorbed=absorbed and a.kind == "mla")
            for name, count in work.items():
                found[f"attention_{part}" if name == "attention" else name] += count
            if a.kind != "mla" and plan.tp > a.num_kv_heads:
                copies = plan.tp - a.num_kv_heads  # K/V heads beyond the first of each, computed anew on each rank
                found["qkv_proj"] += 2 * tokens * model.hidden * copies * (a.head_dim + a.v_head_dim)
    return {name: work for name, work in found.items() if work}


def expanded_keys(case: Case) -> int:
    """Return the latents that MLA expands: each SP rank those of every token up to its last one."""
    sp = case.plan.sp
    total = 0
    for new, context in case.prefills:
        parts = segments(new, sp.degree, sp.partition or "contiguous")
        held = [[token for run in part for token in range(*run)] for part in parts]
        total += sum(context + max(tokens) + 1 for tokens in held if tokens)
    return total


@given(cases())
def test_flops_over_all_ranks_are_those_of_the_model(case: Case) -> None:
    assert flops_by_module(case) == pytest.approx(expected_flops(case), rel=1e-12)


@given(cases())
def test_ranks_together_write_each_key_and_value_once(case: Case) -> None:
    graph = graph_of(case)
    features = features_of(case.batch, case.plan.sp, case.windows)
    written = 0.0
    for symbol, group in zip(graph.symbol.tolist(), graph.group.tolist(), strict=True):
        node = graph.symbols[symbol]
        if node.name == "kv_write":
            written += (
                kv_entry_elements(node) * features["tokens"][sp_rank(case.plan, graph.groups[group])] / node.copies
            )
    tokens = case.batch.prefill_tokens + case.batch.num_decodes
    assert written == pytest.approx(tokens * sum(kv_elements_per_token(layer.attention) for layer in case.model.layers))


def components(graph: StepGraph) -> int:
    """Count the parts of a graph between which no edge runs."""
    parent = list(range(len(graph)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        parent[root(source)] = root(target)
    return sum(parent[node] == node for node in range(len(graph)))


@given(cases())
def test_graphs_are_connected_and_every_edge_points_forward(case: Case) -> None:
    graph = graph_of(case)
    assert np.all(graph.source < graph.target)
    sources, targets = graph.stream_order()
    assert np.all(sources < targets)
    assert is_acyclic(graph, (sources, targets))
    assert np.array_equal(np.unique(graph.group), np.arange(len(graph.groups)))
    spread = case.plan.ep.degree > 1
    alone = case.plan.sp.decode == "dp" and case.batch.kind == "decode" and not spread
    assert components(graph) == (case.plan.sp.degree if alone else 1)


@given(cases())
def test_no_two_edges_are_the_same(case: Case) -> None:
    graph = graph_of(case)
    edges = np.stack([graph.source, graph.target, graph.kind])
    assert np.unique(edges, axis=1).shape == edges.shape


@given(cases())
def test_a_stream_of_a_rank_runs_its_layers_in_order(case: Case) -> None:
    graph = graph_of(case)
    last: dict[tuple[int, int], int] = {}
    for node in np.flatnonzero((graph.layer >= 0) & (graph.stream >= 0)).tolist():
        for rank in graph.ranks_of(node):
            key = (rank, int(graph.stream[node]))
            assert last.get(key, -1) <= graph.layer[node]
            last[key] = int(graph.layer[node])


def contracted(graph: StepGraph) -> tuple[Counter[tuple[int, str]], set[tuple[object, object, int]]]:
    """Drop collectives and merge ranks; return how often each operator occurs, and the edges between operators."""
    through: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        if graph.symbols[graph.symbol[target]].is_collective:
            through[target].append(source)

    def behind(node: int) -> list[int]:
        if not graph.symbols[graph.symbol[node]].is_collective:
            return [node]
        return [found for before in through[node] for found in behind(before)]

    def name(node: int) -> tuple[int, str]:
        return int(graph.unit[node]), graph.symbols[graph.symbol[node]].name

    names = Counter(name(n) for n in range(len(graph)) if not graph.symbols[graph.symbol[n]].is_collective)
    edges = {
        (name(found), name(target), kind)
        for source, target, kind in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True)
        if not graph.symbols[graph.symbol[target]].is_collective
        for found in behind(source)
    }
    return names, edges  # type: ignore[return-value]


@given(cases(primitives="t"))
def test_contracting_tp_groups_leaves_the_graph_of_one_device(case: Case) -> None:
    """Rule TP-8."""
    one_names, one_edges = contracted(expand(single_device(case.model, PRECISION, case.batch.kind), ParallelPlan()))
    names, edges = contracted(graph_of(case))
    assert names == Counter({name: case.plan.tp * count for name, count in one_names.items()})
    assert edges == one_edges


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", STEP_KINDS)
def test_every_pass_is_the_identity_at_degree_one(name: str, kind: StepKind) -> None:
    model, plan = model_of(name), ParallelPlan()
    blueprint = single_device(model, PRECISION, kind)
    assert tensor_pass(blueprint, plan, PRECISION) is blueprint
    assert pipeline_pass(blueprint, plan, model, PRECISION) is blueprint
    assert sequence_pass(blueprint, plan, PRECISION) is blueprint
    assert expert_pass(blueprint, plan, PRECISION, ()) is blueprint
    assert data_pass(blueprint, plan) is blueprint
    assert blueprint_of(model, plan, PRECISION, kind) == blueprint


@given(cases(primitives="tp"))
def test_cuts_fall_where_the_plan_says_and_carry_tokens_times_hidden(case: Case) -> None:
    blueprint = case.blueprint
    cuts = stage_cuts(case.model, case.plan)
    for cut, stage in zip(cuts, blueprint.stages[1:], strict=True):
        assert stage[0].body.name == "recv"
        first = stage[1]
        assert (first.layer, first.body.name == "attention") == (cut.layer, cut.before == "attention")
    features = features_of(case.batch, case.plan.sp)
    tokens = case.batch.prefill_tokens + case.batch.num_decodes
    for stage in blueprint.stages:
        for unit in stage:
            if unit.body.name in ("send", "recv"):
                assert amount(unit.body.nodes[0].amount, features, 0) == tokens * case.model.hidden * 2
    modules = [(u.layer, u.body.name) for stage in blueprint.stages for u in stage if u.layer >= 0]
    assert modules == [
        (u.layer, u.body.name) for u in single_device(case.model, PRECISION, case.batch.kind).stages[0] if u.layer >= 0
    ]


@given(cases(primitives="tsep"))
def test_sends_meet_receives_of_the_same_coordinates(case: Case) -> None:
    graph = graph_of(case)
    names = [graph.symbols[s].name for s in graph.symbol]
    met = Counter[tuple[int, int]]()
    for source, target, kind in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True):
        across = graph.stage[source] != graph.stage[target]
        assert across == (kind == 2) == (names[target] == "recv")
        if across:
            assert names[source] == "send"
            met[graph.ranks_of(source)[0], graph.ranks_of(target)[0]] += 1
    ranks = [graph.ranks_of(n)[0] for n, name in enumerate(names) if name == "send"]
    assert met == Counter((rank, rank + case.plan.stage_ranks) for rank in ranks)


@given(cases(primitives="tse", models=("moe", "shared", "windows", "latent")))
def test_dispatch_and_combine_bracket_the_experts(case: Case) -> None:
    for unit in case.blueprint.stages[0]:
        if unit.body.name != "moe":
            continue
        nodes, edges = unit.body.nodes, [(e.source, e.target) for e in unit.body.edges]
        place = {node.name: n for n, node in enumerate(nodes)}
        spread = case.plan.ep.sends
        gathers = case.plan.ep.exchange == "all_gather"
        for end, gathered in (("dispatch", "all_gather"), ("combine", "reduce_scatter")):
            way = gathered if gathers else "all_to_all"
            assert (nodes[place[end]].op, nodes[place[end]].axis) == ((way, "stage") if spread else ("memory", None))
        inside = [n for n, node in enumerate(nodes) if node.name.startswith("expert_")]
        assert {target for source, target in edges if source == place["dispatch"]} == {place["expert_up"]}
        assert {source for source, target in edges if target in inside} <= {place["dispatch"], *inside}
        assert {target for source, target in edges if source in inside} <= {place["combine"], *inside}
        order = ["gate", "dispatch", "expert_up", "expert_act", "expert_down", "combine", "aggregate"]
        assert all(place[one] < place[next_] for one, next_ in pairwise(order))


@given(cases(primitives="tse", models=("moe", "shared", "windows", "latent")))
def test_experts_get_every_token_top_k_times(case: Case) -> None:
    graph = graph_of(case)
    features = features_of(case.batch, case.plan.sp, case.windows)
    rows: dict[int, float] = defaultdict(float)
    for n in range(len(graph)):
        node = graph.symbols[graph.symbol[n]]
        if node.name == "expert_up":
            rows[int(graph.layer[n])] += amount(node.amount, features, sp_rank(case.plan, graph.ranks_of(n)))
    tokens = case.batch.prefill_tokens + case.batch.num_decodes
    for layer, found in rows.items():
        moe = case.model.layers[layer].ffn
        assert isinstance(moe, Moe)
        assert found == pytest.approx(tokens * moe.top_k * case.plan.expert_tp)


@given(cases(primitives="tsep", kinds=("decode",)))
def test_decode_carries_no_sequence_partition(case: Case) -> None:
    for stage in case.blueprint.stages:
        for unit in stage:
            for node in unit.body.nodes:
                assert node.axis != "sp"
                assert node.op != "boundary"
                assert node.op != "attention_prefill"


@given(cases(primitives="tsep", kinds=("decode", "mixed")))
def test_idle_ranks_do_no_decode_work_but_that_of_experts(case: Case) -> None:
    if case.plan.sp.decode != "idle":
        return
    graph = graph_of(case)
    for n in range(len(graph)):
        node = graph.symbols[graph.symbol[n]]
        busy = sp_rank(case.plan, graph.ranks_of(n)[-1:]) > 0
        if case.batch.kind == "decode":
            assert not busy or node.name.startswith(("dispatch", "expert_", "combine"))
            assert not busy or case.plan.ep.degree > 1
        else:
            assert not busy or node.op != "attention_decode"


@given(cases(primitives="tsp", kinds=("prefill", "mixed")))
def test_cached_tokens_move_before_the_boundary(case: Case) -> None:
    """Rule SP-8: on every rank the boundary comes after what moves K/V to where decode reads it."""
    if case.plan.sp.degree == 1:
        return
    graph = graph_of(case)
    names = [graph.symbols[s].name for s in graph.symbol]
    moves = [n for n, name in enumerate(names) if name == "kv_move"]
    assert len(moves) == case.plan.tp * sum(
        any(unit.body.name == "attention" for unit in stage) for stage in case.blueprint.stages
    )
    followers = defaultdict(list)
    for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        followers[source].append(target)
    for move in moves:
        ranks = {graph.ranks_of(t)[0] for t in followers[move] if names[t] == "boundary"}
        assert ranks == set(graph.ranks_of(move))


@given(cases(primitives="s", models=("llama", "windows"), kinds=("prefill", "mixed")))
def test_features_of_sp_ranks_add_up(case: Case) -> None:
    sp = case.plan.sp
    split = features_of(case.batch, sp, case.windows)
    whole = features_of(together(case.batch), SequencePlan(), case.windows)
    for suffix in ("", *(f"@{window}" for window in case.windows)):
        window = int(suffix[1:]) if suffix else None
        pairs = sum(attended_pairs(new, context, window) for new, context in case.prefills)
        assert sum(split[f"pairs{suffix}"]) == split[f"pairs{suffix}*"][0] == whole[f"pairs{suffix}"][0] == pairs
        assert split[f"prefill_keys{suffix}*"] == whole[f"prefill_keys{suffix}"] * sp.degree
        for s in range(sp.degree):
            steps = range(sp.degree)
            assert sum(split[f"pairs{suffix}#{step}"][s] for step in steps) == split[f"pairs{suffix}"][s]
            assert sum(split[f"prefill_keys{suffix}#{step}"][s] for step in steps) == split[f"prefill_keys{suffix}"][s]
    for name in ("tokens", "prefill_tokens", "decode_sequences", "rows", "decode_keys"):
        assert sum(split[name]) == whole[name][0]
    for name in ("stage_tokens", "all_prefill_tokens", "context_tokens", "exposed_tokens", "sequences"):
        assert split[name] == whole[name] * sp.degree
    assert split["peak_tokens"][0] == max(split["tokens"])


def together(batch: StepBatch) -> StepBatch:
    """Return the batch as one SP rank has it."""
    return StepBatch(
        chunks=tuple(replace(chunk, owner=0) for chunk in batch.chunks),
        decode_sequences=(batch.num_decodes,),
        decode_keys=(sum(batch.decode_keys),),
        windowed_keys={window: (sum(keys),) for window, keys in batch.windowed_keys.items()},
    )


@given(cases(primitives="s", models=("llama",), kinds=("prefill", "mixed")))
def test_logits_are_computed_where_the_last_token_is(case: Case) -> None:
    sp = case.plan.sp
    features = features_of(case.batch, sp)
    for s in range(sp.degree):
        last = sum(
            any(new - 1 in range(*run) for run in segments(new, sp.degree, sp.partition or "contiguous")[s])
            for new, _ in case.prefills
        )
        assert features["rows"][s] == last + case.batch.decode_sequences[s]


def group_number(op: str, members: tuple[int, ...]) -> int:
    """Number kinds of groups as a fabric would on which all groups of one size cost the same."""
    return len(members)


@given(cases(primitives="tsep"), st.randoms(use_true_random=True))
def test_folded_times_are_the_longest_path_of_the_expanded_graph(case: Case, random: Random) -> None:
    """What folding stands on: instances in place of ranks give every node the same end."""
    assert_folded_as_expanded(case, random)


@given(cases(primitives="tp", kinds=("prefill",)), st.randoms(use_true_random=True))
def test_folded_times_of_chains_are_the_longest_path(case: Case, random: Random) -> None:
    """Where nothing runs beside anything else, one sum stands for the longest path."""
    assert_folded_as_expanded(case, random)


@given(cases(primitives="te", models=("shared", "latent")), st.randoms(use_true_random=True))
def test_folded_times_beside_shared_experts_are_the_longest_path(case: Case, random: Random) -> None:
    """Shared experts run beside the gather of the routed ones: no chain, though there is one SP rank."""
    assert_folded_as_expanded(case, random)


def assert_folded_as_expanded(case: Case, random: Random) -> None:
    blueprint = case.blueprint
    for stage in range(case.plan.pp):
        program = build_program(blueprint, case.plan, stage, group_number)
        assert program.even
        template = program.template
        by_class = np.array([random.randint(1, 1000) for _ in program.classes], np.int64)
        by_instance = by_class[template.instance_class]
        folded = template.ends(by_instance)[template.node_instance]
        graph = program.graph
        inner = [n for n in range(len(graph)) if not free(graph, n)]
        durations = np.zeros(len(graph), np.int64)
        durations[inner] = by_instance[template.node_instance]
        ends = longest_paths(graph, durations)
        assert folded.tolist() == [ends[n] for n in inner]
        base = stage * case.plan.stage_ranks
        assert [tuple(r - base for r in graph.ranks_of(n)) for n in inner] == list(template.members)
        assert [graph.symbols[graph.symbol[n]].name for n in inner] == [
            template.symbols[s][0] for s in template.node_symbol
        ]
        took, left = template.pass_times(by_class)
        assert took == max(ends[n] for n in inner)
        for s, released in enumerate(left):
            assert released == leaving(graph, case.plan, blueprint, stage, s, ends)


def free(graph: StepGraph, node: int) -> bool:
    """Whether a node has no span within the pass: structural nodes and transfers between stages."""
    symbol = graph.symbols[graph.symbol[node]]
    return symbol.is_structural or symbol.op in ("send", "recv")


def longest_paths(graph: StepGraph, durations: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """Return when each node ends, by relaxing every edge of the data flow and of the streams in order."""
    before: dict[int, list[int]] = defaultdict(list)
    ordered = graph.stream_order()
    for sources, targets in ((graph.source, graph.target), ordered):
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            before[target].append(source)
    ends: list[int] = []
    for node in range(len(graph)):
        ends.append(max((ends[source] for source in before[node]), default=0) + int(durations[node]))
    return ends


def leaving(graph: StepGraph, plan: ParallelPlan, blueprint: Blueprint, stage: int, s: int, ends: list[int]) -> int:
    """Return when the output of an SP coordinate is ready: the end of what feeds its send, or of the last exit."""
    exits = [
        u.body.nodes[u.body.exit].name
        for u in blueprint.stages[stage]
        if u.body.exit >= 0 and u.body.name not in ("send", "recv")
    ]
    last = -1
    for n in range(len(graph)):
        if graph.symbols[graph.symbol[n]].name in exits and not free(graph, n):
            unit = blueprint.stages[stage][graph.unit[n]].body
            here = s in {r % plan.stage_ranks // plan.tp for r in graph.ranks_of(n)}
            if here and unit.nodes[unit.exit].name == graph.symbols[graph.symbol[n]].name:
                last = n
    return ends[last] if last >= 0 else 0


@given(cases(primitives="tsep"))
def test_start_times_agree_with_the_longest_path(case: Case) -> None:
    graph = graph_of(case)
    durations = np.arange(len(graph), dtype=np.int64) % 17 * 10
    assert (start_times(graph, durations) + durations).tolist() == longest_paths(graph, durations)


class ByShape:
    """A cost that differs with every number of a shape."""

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return weighted sums of the shape's numbers."""
        weighed = [np.asarray(shape[key]) * (place + 1) for place, key in enumerate(sorted(shape))]
        return np.asarray(sum(weighed), np.float64) * 1e-9 * len(op)


class ByGroup:
    """Communication that differs with the size of the group."""

    def seconds(self, comm: int, payload_bytes: float) -> float:
        """Return seconds; ``comm`` is the number of ranks."""
        return payload_bytes * 1e-9 * comm


@given(cases(primitives="tsep"))
def test_nodes_are_priced_as_the_replay_prices_them(case: Case) -> None:
    engine = Engine(name="e", source="a test", launch_s=3e-9, graph_launch_s=2e-9, graph_max_tokens=3, sample_s=1e-9)
    pricer = Pricer(cost=ByShape(), engine=engine, comm=ByGroup(), sp=case.plan.sp, windows=case.windows)
    for stage in range(case.plan.pp):
        program = build_program(case.blueprint, case.plan, stage, group_number)
        priced = price_graph(
            program.graph, case.plan, case.batch,
            pricer=pricer, precision=PRECISION, comm_number=lambda op, ranks: 1 if op == "send" else len(ranks),
        )  # fmt: skip
        by_class = pricer.durations(program, case.batch, pricer.features(case.batch))
        template = program.template
        inner = [n for n in range(len(program.graph)) if not free(program.graph, n)]
        assert priced.duration_ns[inner].tolist() == by_class[template.instance_class][template.node_instance].tolist()
        sends = [n for n in range(len(program.graph)) if program.graph.symbols[program.graph.symbol[n]].op == "send"]
        assert priced.duration_ns[sends].tolist() == by_class[list(template.send_classes)].tolist()


@given(cases())
def test_json_is_read_back_as_it_was(case: Case) -> None:
    graph = graph_of(case)
    zeros = np.zeros(len(graph))
    priced = PricedGraph(
        graph=graph, plan=case.plan, batch=case.batch, amount=zeros, flops=zeros, bytes_moved=zeros,
        duration_ns=np.full(len(graph), NO_DURATION),
    )  # fmt: skip
    found = read_graph(json.loads(json_text(priced, {"title": "a test"})))
    assert (found.batch, found.plan) == (case.batch, case.plan)
    said = tuple(replace(symbol, exchange=None) for symbol in graph.symbols)  # which the plan says
    assert (found.graph.symbols, found.graph.groups) == (said, graph.groups)
    for column in ("symbol", "group", "layer", "stage", "unit", "stream", "source", "target", "kind"):
        assert np.array_equal(getattr(found.graph, column), getattr(graph, column)), column


@given(cases(primitives="s", models=("llama",), kinds=("prefill",)))
def test_rings_pass_as_much_as_attention_needs(case: Case) -> None:
    """Rule SP-4: each step of a ring carries the longest segment with the context, in K/V elements of one rank."""
    if case.plan.sp.scheme != "ring":
        return
    features = features_of(case.batch, case.plan.sp)
    a = case.model.layers[0].attention
    shifts = [n for u in case.blueprint.stages[0] for n in u.body.nodes if n.op == "ring_shift" and u.layer == 0]
    assert len(shifts) == case.plan.sp.degree - 1
    longest = max(
        sum(
            len(range(*run))
            for new, _ in case.prefills
            for run in segments(new, case.plan.sp.degree, case.plan.sp.partition or "contiguous")[s]
        )
        for s in range(case.plan.sp.degree)
    )
    context = sum(context for _, context in case.prefills)
    for shift in shifts:
        assert amount(shift.amount, features, 0) == (longest + context) * 2 * a.num_kv_heads * a.head_dim * 2
