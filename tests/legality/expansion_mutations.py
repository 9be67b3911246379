"""Ways to break the code that expands a plan into step graphs: each replaces a piece of one function.

Each belongs to the smallest deployment in which it shows; without it that deployment is legal at level G and proves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from clustersim.graph import batch, expand, operators, stepgraph, steps
from clustersim.graph.passes import expert, sequence, tensor
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.simulation import graph_legality
from tests.laws.mutations import Mutation


def split_tokens(scheme: Any, decode: Any = "dp", degree: int = 2, **more: Any) -> ParallelPlan:
    """Return a plan that splits prompts over SP ranks."""
    sp = SequencePlan(degree=degree, scheme=scheme, partition="zigzag", decode=decode)
    return ParallelPlan(sp=sp, **more)


HALVES = (Cut(layer=1, before="ffn"),)

DEPLOYMENTS: Final[dict[str, tuple[str, ParallelPlan]]] = {
    "alone": ("llama", ParallelPlan()),
    "windows": ("slides", ParallelPlan()),
    "tensor": ("llama", ParallelPlan(tp=2)),
    "many heads": ("mha", ParallelPlan(tp=2)),
    "rows up": ("llama", ParallelPlan(tp=2, split=TensorSplit(ffn_up="rows", ffn_down="columns"))),
    "stages": ("llama", ParallelPlan(pp=2, tp=2, stages=HALVES)),
    "replicas": ("llama", ParallelPlan(dp=2, tp=2)),
    "gather": ("llama", split_tokens("all_gather", tp=2)),
    "idle gather": ("llama", split_tokens("all_gather", "idle", tp=2)),
    "ring": ("llama", split_tokens("ring", "idle", degree=4)),
    "ring of stages": ("llama", split_tokens("ring", pp=2, stages=HALVES)),
    "heads": ("mha", split_tokens("all_to_all", tp=2)),
    "latent": ("latent", split_tokens("all_gather", tp=2)),
    "experts": ("shared", ParallelPlan(tp=2)),
    "spread": ("shared", ParallelPlan(tp=4, ep=ExpertPlan(degree=2))),
    "spread over segments": ("moe", split_tokens("ring", tp=2, ep=ExpertPlan(degree=4))),
}
"""Name → model of ``tests.laws.proof_cases`` and plan."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """A mutation of expansion code, and the deployment that shows it."""

    deployment: str
    mutation: Mutation


def _of(owner: Any, function: str, *pairs: tuple[str, str, str, str]) -> dict[str, Expansion]:
    """Return mutations of one function: (what, deployment, old, new)."""
    return {what: Expansion(at, Mutation(owner, function, old, new)) for what, at, old, new in pairs}


OPERATORS: Final = {
    **_of(
        operators._Work, "_attention",
        ("the residual of attention is left out", "alone", 'self.added(build, "attention", out, post_norm)',
         'build.build(build.add(self.residual("attention_add", "attention"), out))'),
        ("values are not stored", "alone", "scaled(TOKENS, (k + v) * ", "scaled(TOKENS, k * "),
        ("the cache is written before rotation", "alone", "cache = build.add(write, ready)",
         "cache = build.add(write, ready - 1)"),
    ),
    **_of(
        operators._Work, "_cores",
        ("attention does not wait for the write", "alone", 'build.edge(cache, position, "kv")', "pass"),
        ("attention does not wait for the read", "alone", 'build.edge(read, position, "kv")', "pass"),
        ("a sliding window is forgotten", "windows", "window=a.sliding_window", "window=None"),
        ("decode attention has half of the heads", "alone", "heads=a.num_heads,",
         'heads=a.num_heads // (2 if name == "attention_decode" else 1),'),
    ),
    **_of(
        operators._Work, "_ffn",
        ("the activation is left out", "alone", '"ffn_down"), act)', '"ffn_down"), up)'),
        ("the gate of the FFN is left out", "alone", "inner * (2 if f.gated else 1)", "inner"),
    ),
    **_of(
        operators._Work, "_moe",
        ("tokens are routed to one expert", "experts", "routed = scaled(TOKENS, f.top_k)", "routed = TOKENS"),
        ("tokens are sent before they are routed", "experts", "build.add(permute, gate, norm)",
         "build.add(permute, norm)"),
        ("experts do not wait for their tokens", "experts", "build.add(up, dispatch)", "build.add(up, norm)"),
        ("results of experts are not combined", "experts", "build.add(combine, last)", "build.add(combine, dispatch)"),
        ("shared experts are left out", "experts", "if f.num_shared_experts:", "if False:"),
    ),
    **_of(
        operators._Work, "head",
        ("the boundary is skipped", "alone", "if self.prefills:", "if False:"),
        ("tokens are sampled before the head", "alone", "build.add(sample, logits)", "build.add(sample, norm)"),
    ),
    **_of(
        expand, "single_device",
        ("the last layer is left out", "alone", "enumerate(model.layers):", "enumerate(model.layers[:-1]):"),
        ("the FFN comes before attention", "alone", "units.append(Unit(body=ffn[", "units.insert(-1, Unit(body=ffn["),
        ("layers run in reverse order", "alone", "enumerate(model.layers):",
         "reversed(tuple(enumerate(model.layers))):"),
    ),
}  # fmt: skip

TENSOR: Final = {
    **_of(
        tensor._Split, "_convert",
        ("all-reduces are dropped", "tensor", "if op is None or", 'if op in (None, "all_reduce") or'),
        ("all-gathers are dropped", "tensor", "if op is None or", 'if op in (None, "all_gather") or'),
        ("reduce-scatters are dropped", "rows up", "if op is None or", 'if op in (None, "reduce_scatter") or'),
        ("sums are concatenations", "tensor", "op=op,", 'op="all_gather",'),
        ("concatenations are sums", "tensor", "op=op,", 'op="all_reduce",'),
        ("collectives carry half", "tensor", "old.width * self.act_bytes", "old.width * self.act_bytes / 2"),
        ("a collective has no input", "tensor", "self.build.add(node, self.moved[source])", "self.build.add(node)"),
        ("collectives join SP ranks", "gather", "axis=axis,", 'axis="sp",'),
        ("collectives join the whole stage", "gather", "axis=axis,", 'axis="stage",'),
    ),
    **_of(
        tensor._Split, "run",
        ("edges of the cache are lost in the split", "tensor", 'if edge.kind != "data":', "if False:"),
        ("a module ends with terms of a sum", "tensor", 'self._convert(self.body.exit, "full", "tp")',
         "self.moved[self.body.exit]"),
    ),
    **_of(
        tensor._Split, "_apply",
        ("rows are not split", "tensor", "replace(node, k=node.k // tp)", "node"),
        ("columns are not split", "tensor", "replace(node, n=node.n // tp)", "node"),
        ("terms of a sum are said to be the whole", "tensor", 'k=node.k // tp)), "split", "partial"',
         'k=node.k // tp)), "split", "full"'),
        ("activations are gathered first", "tensor",
         'replace(node, amount=scaled(node.amount, 1 / tp))), "split", "split"',
         'replace(node, amount=scaled(node.amount, 1 / tp))), "full", "split"'),
        ("experts' columns are not split", "experts", "replace(node, n=node.n // expert_tp)", "node"),
        ("experts' terms are said to be the whole", "experts", 'copies=node.copies * tp)), None, _sum_layout(made)',
         'copies=node.copies * tp)), None, "full"'),
        ("experts of two ranks are not summed", "spread", '"partial" if expert_tp > 1 or has_some else "full"',
         '"full"'),
        ("experts are summed over the TP ranks", "spread", '"tp" if self.plan.ep.degree == 1 else "expert_tp"', '"tp"'),
    ),
    **_of(
        tensor, "_split_heads",
        ("each rank has all heads", "tensor", "heads, kv = node.heads // tp,", "heads, kv = node.heads,"),
        ("each rank writes all K/V heads", "many heads", "scaled(node.amount, kv / node.kv_heads)", "node.amount"),
    ),
    **_of(
        tensor, "kv_heads_per_rank",
        ("K/V heads are orphaned", "many heads", "kv_heads // ranks", "kv_heads // (2 * ranks)"),
        ("K/V heads are copied", "many heads", "kv_heads // ranks", "kv_heads"),
    ),
    **_of(
        tensor, "_split_qkv",
        ("values are not projected", "tensor", "kv * (node.qk_dim + node.v_dim)", "kv * node.qk_dim"),
    ),
}  # fmt: skip

SEQUENCE: Final = {
    **_of(
        expand, "sequence_pass",
        ("idle ranks decode", "idle gather", 'blueprint if plan.sp.decode == "dp" else', "blueprint if True else"),
        ("idle ranks decode beside a prompt", "idle gather", 'if plan.sp.decode == "idle":', "if False:"),
        ("K/V is not moved for decode", "gather", "if written == 0:", "if True:"),
        ("inner stages do not move K/V", "ring of stages", "(*inner, Unit(body=_moving(move), layer=-1), last)",
         "stage"),
    ),
    **_of(
        sequence._Exposure, "body",
        ("decode gathers over SP ranks", "gather", 'node.name != "attention_prefill" and',
         'not node.name.startswith("attention_") or node.name.endswith(("_norm", "_add")) and'),
    ),
    **_of(
        sequence._Exposure, "_gathered",
        ("the context is not gathered", "gather", 'kind == "data" or build.nodes[source].name == "kv_read"',
         'kind == "data"'),
        ("the segments are not gathered", "gather", 'kind == "data" or build.nodes[source].name == "kv_read"',
         'build.nodes[source].name == "kv_read"'),
        ("attention does not wait for the gather", "gather", 'build.add(node, gather, kind="kv")', "build.add(node)"),
        ("own segments alone are gathered", "gather", '"exposed_tokens"', '"segment_tokens"'),
        ("latents are gathered for attention too", "latent", 'latent and node.name == "attention_prefill"', "False"),
    ),
    **_of(
        sequence._Exposure, "_ring",
        ("each part of a ring waits for the first shift", "ring", "build.edge(shifts[step - 1], position",
         "build.edge(shifts[0], position"),
        ("a ring attends to its own segment only", "ring", "hop=step", "hop=0"),
        ("a ring passes its first segment on and on", "ring", "previous_shift = shift", "previous_shift = shifts[0]"),
        ("parts of a ring are not put together", "ring", 'build.edge(attended, position, "data")', "pass"),
        ("a ring carries every segment at once", "ring", '"ring_tokens"', '"exposed_tokens"'),
        ("a ring leaves out the context", "ring", 'kind == "kv" and build.nodes[source].name == "kv_read"', "False"),
        ("a ring turns on its own ranks' keys", "ring", 'for source in data if step == 1 else [previous_shift]',
         "for source in data"),
    ),
    **_of(
        sequence._Exposure, "_by_heads",
        ("heads attend to one segment", "heads", 'amount=(("all_prefill_tokens", 1.0),)', "amount=node.amount"),
        ("all heads are on every SP rank", "heads", "heads=node.heads // self.sp", "heads=node.heads"),
        ("heads do not return to their tokens", "heads", "return build.add(back, position)", "return position"),
        ("heads are taken before they return", "heads", "return build.add(back, position)",
         "return (build.add(back, position), position)[1]"),
        ("K/V is not exchanged", "heads", "sum(needed) * (node.qk_dim + node.v_dim)", "0"),
        ("the context is not exchanged", "heads", "amount: Terms = scatter.amount + context",
         "amount: Terms = scatter.amount"),
    ),
    **_of(
        sequence, "_move",
        ("K/V is moved as if others decoded", "gather", 'plan.sp.decode == "idle"', 'plan.sp.decode == "dp"'),
        ("K/V is moved among TP ranks", "gather", 'axis="sp"', 'axis="tp"'),
    ),
    **_of(
        sequence, "_cache_bytes",
        ("half of K/V is moved", "gather", "* kv_dtype_bytes for", "* kv_dtype_bytes / 2 for"),
    ),
    **_of(
        sequence, "_moving_beside",
        ("the boundary does not wait for the move", "gather", 'build.edge(moved, boundary, "boundary")', "pass"),
    ),
}  # fmt: skip

EXPERT: Final = {
    **_of(
        expert, "_replacements",
        ("tokens reach half of an expert's ranks", "spread", "carried, tp / expert_tp, 1)", "carried, tp, 1)"),
        ("every rank has all experts", "spread", "(node.experts + plan.ep.redundant) // ep", "node.experts"),
        ("experts get one of a token's choices", "spread", "top_k / ep),)", "1 / ep),)"),
        ("experts get every token", "spread", "top_k / ep),)", "top_k),)"),
        ("slices are not gathered", "spread", "return [own, gather]", "return [own]"),
    ),
    **_of(
        expert, "_sent",
        ("tokens stay inside their TP group", "spread over segments", 'axis="stage"', 'axis="tp"'),
        ("tokens are gathered, not sent", "spread", 'op="all_to_all"', 'op="all_gather"'),
    ),
    **_of(
        expert, "_spread",
        ("what is gathered does not wait for the sum", "spread", 'build.edge(moved[position], at, "data")', "pass"),
    ),
}  # fmt: skip

PIPELINE: Final = {
    **_of(
        expand, "pipeline_pass",
        ("stages are cut a layer too late", "stages", "(cut.layer, cut.before): index",
         "(cut.layer + 1, cut.before): index"),
        ("stages are cut before attention", "stages", 'if unit.body.name == "attention" else', "if False else"),
        ("twice the payload is sent", "stages", "float(model.hidden *", "float(2 * model.hidden *"),
        ("nothing is sent", "stages", "if index < len(stages) - 1 else []", "if False else []"),
        ("nothing is received", "stages", "if index > 0 else []", "if False else []"),
        ("the first stage receives, too", "stages", "if index > 0 else []", "if True else []"),
        ("modules of a stage run backwards", "stages", "stages[-1].append(unit)", "stages[-1].insert(0, unit)"),
        ("stages are in the wrong order", "stages", "tuple(joined)", "tuple(reversed(joined))"),
    ),
}  # fmt: skip

GRAPH: Final = {
    **_of(
        stepgraph, "axis_groups",
        ("TP groups join ranks of different SP ranks", "gather", "range(s * tp, s * tp + tp)", "range(s, sp * tp, sp)"),
        ("SP groups join neighbours", "gather", "tuple(s * tp + t for s in range(sp))",
         "tuple(t * sp + s for s in range(sp))"),
        ("expert groups join every second rank", "spread", "tuple(range(first, first + size))",
         "tuple(range(first // size, sp * tp, size))"),
    ),
    **_of(
        stepgraph._Expansion, "_rendezvous",
        ("a stage receives from the wrong rank", "ring of stages", "(received[base + local], ",
         "(received[base + (local + 1) % len(received)], "),
        ("a stage does not wait for what is sent", "stages", "if pairs:", "if False:"),
    ),
    **_of(
        stepgraph._Expansion, "stage",
        ("every rank goes on with what rank 0 made", "tensor", "= tile.exit_node[tile.leaves] + self.count",
         "= int(tile.exit_node[0]) + self.count"),
        ("a module does not wait for the one before", "alone", "tile.joined(entering, self.count)",
         "tile.joined(np.where(unit.layer == 1, NO_RANK, entering), self.count)"),
        ("layers of a later stage are numbered one too low", "stages", "(tile, unit.layer, stage,",
         "(tile, unit.layer - (stage and unit.layer > 0), stage,"),
        ("nodes belong to the first stage", "stages", "(tile, unit.layer, stage,", "(tile, unit.layer, 0,"),
    ),
    **_of(
        stepgraph._Tile, "__init__",
        ("a stage writes no K/V", "stages", "placed = place(body, plan)",
         'placed = [one for one in place(body, plan) if not base or one.node.name != "kv_write"]'),
        ("edges of the cache are lost", "tensor", "if source is not None:",
         'if source is not None and edge.kind != "kv":'),
        ("only rank 0 has its input", "tensor", "if edge.source == INPUT:", "if edge.source == INPUT and not local:"),
    ),
}  # fmt: skip

BATCH: Final = {
    **_of(
        batch, "_whole",
        ("a chunk attends to itself alone", "alone", "(0, chunk.start + chunk.count)", "(0, chunk.count)"),
        ("a decode has no context", "alone", "float(batch.decode_keys[0])", "float(batch.decode_sequences[0])"),
        ("decodes beside prompts are left out", "alone", "tokens, sequences, exposed = new + decodes,",
         "tokens, sequences, exposed = new,"),
    ),
    **_of(
        batch, "_split",
        ("segments hold a token too many", "gather", "sum(len(range(*run)) for", "sum(len(range(*run)) + 1 for"),
        ("the last token of a zigzag is on the last rank", "gather", "last.count(s)", "(len(last) if s else 0)"),
        ("the smallest segment is exchanged", "heads", '"segment_tokens": everywhere(max(prefill))',
         '"segment_tokens": everywhere(min(prefill))'),
        ("the largest dispatch is that of the smallest rank", "spread over segments", "everywhere(max(tokens))",
         "everywhere(min(tokens))"),
        ("a ring leaves the context out of its payload", "ring", "everywhere(max(prefill) + context)",
         "everywhere(max(prefill))"),
        ("a gather leaves the context out of its payload", "gather", "everywhere(context + new)", "everywhere(new)"),
    ),
    **_of(
        batch, "_prefill_features",
        ("a chunk starts at token 0 of its sequence", "gather", "start = chunk.start", "start = 0"),
        ("a part of a ring has the segment of the next rank", "ring", "[(s - step) % degree", "[(s + step) % degree"),
        ("the context is on the wrong rank", "ring", "if source == chunk.owner and", "if source == degree - 1 and"),
    ),
}  # fmt: skip

STEPS: Final = {
    **_of(
        steps, "_links",
        ("a decode does not wait for the token before", "stages", "for node in start:", "for node in start[1:]:"),
        ("a decode does not wait for the cache", "tensor", "if written is not None:", "if False:"),
        ("a decode reads another layer's entries", "tensor", "writes.get((int(layer[node]), ",
         "writes.get((0, "),
        ("decode starts at the sample of a prompt, not at its boundary", "tensor", "if before.batch.chunks:",
         "if False:"),
        ("reads wait for the boundary of the last stage alone", "ring of stages", "by_rank.get(own, by_rank.get(",
         "by_rank.get(-1, by_rank.get("),
    ),
    **_of(
        graph_legality, "chain",
        ("steps wait for those of other micro-batches", "stages", "last.get((step.replica, step.lane))",
         "at - 1 if at else None"),
        ("replicas wait for each other", "replicas", "last.get((step.replica, step.lane))",
         "last.get((0, step.lane))"),
        ("steps do not wait for each other", "alone", "if before is not None:", "if False:"),
    ),
    **_of(
        graph_legality, "story",
        ("a decode slot is used again", "stages", "DecodeToken(request=2, position=5)",
         "DecodeToken(request=1, position=part + rest + 2, owner=other)"),
        ("a chunk is written one entry too far", "alone", "Chunk(request=1, start=part,",
         "Chunk(request=1, start=part + 1,"),
        ("a chunk is computed twice", "alone", "Chunk(request=1, start=part,", "Chunk(request=1, start=0,"),
        ("a decode step takes two tokens", "alone", "first = [DecodeToken(request=0, position=long + t)",
         "first = [DecodeToken(request=0, position=long + t, tokens=2)"),
    ),
}  # fmt: skip

EXPANSIONS: Final[dict[str, Expansion]] = OPERATORS | TENSOR | SEQUENCE | EXPERT | PIPELINE | GRAPH | BATCH | STEPS
"""What is broken → how, and where it shows."""
