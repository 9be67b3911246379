"""Ways to break a step graph, or what runs it, so that its execution gives a missing or a different number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from clustersim.graph.blueprint import EDGE_KINDS, Node
from clustersim.graph.stepgraph import StepGraph
from clustersim.graph.variant import Variant
from clustersim.model import ModelSpec
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan
from clustersim.proof import comparison, execution
from clustersim.proof import proof as proving
from clustersim.proof.comparison import Expected, expected_of
from clustersim.proof.operators import attention, experts
from clustersim.proof.operators.values import Arrival, Dense, Keys, Routed, routed
from clustersim.proof.place import Place
from clustersim.proof.proof import Proof, graphs_of, prove
from clustersim.proof.script import Script, chunked_script
from tests.laws.proof_cases import model_of

Wanted = Callable[[Node, Node, str], bool]

TWO = ParallelPlan(tp=2)


def segments(scheme: str, decode: str = "dp", degree: int = 2, tp: int = 1) -> ParallelPlan:
    sp = SequencePlan(degree=degree, scheme=scheme, partition="zigzag", decode=decode)
    return ParallelPlan(tp=tp, sp=sp)


SPREAD = ParallelPlan(tp=2, sp=segments("ring").sp, ep=ExpertPlan(degree=2))
KEPT = ParallelPlan(tp=4, ep=ExpertPlan(degree=2, exchange="all_reduce"))
ONCE = ParallelPlan(tp=2, sp=segments("ring").sp, ep=ExpertPlan(degree=4, exchange="deepep_normal"))


def prompts_of(plan: ParallelPlan) -> tuple[int, ...]:
    """Return the fewest prompts of which steps are mixed, and one has two chunks: stages take turns with them."""
    return (9, 6, 8) if plan.pp > 1 else (8, 6)


@cache
def case(
    name: str, plan: ParallelPlan, prompts: tuple[int, ...] | None = None
) -> tuple[ModelSpec, Script, Expected, dict[str, StepGraph]]:
    """Return what a proof executes, in steps of at most ten tokens, as many output tokens as there are prompts."""
    model, prompts = model_of(name), prompts or prompts_of(plan)
    script = chunked_script(prompts, output_tokens=len(prompts), budget=10, vocab=model.vocab, plan=plan)
    return model, script, expected_of(model, script), dict(graphs_of(model, plan, script))


def proven(
    name: str,
    plan: ParallelPlan,
    change: Callable[[StepGraph], StepGraph] = lambda graph: graph,
) -> Proof:
    """Prove a plan whose graphs were changed."""
    model, script, expected, graphs = case(name, plan)
    changed = {kind: change(graph) for kind, graph in graphs.items()}
    return prove(model, plan, script, expected=expected, graphs=changed, orders=0)


def node(graph: StepGraph, index: int) -> Node:
    return graph.symbols[graph.symbol[index]]


def kept_edges(graph: StepGraph, kept: np.ndarray) -> StepGraph:
    return replace(graph, source=graph.source[kept], target=graph.target[kept], kind=graph.kind[kept])


def without(wanted: Wanted) -> Callable[[StepGraph], StepGraph]:
    """Drop every edge of which (source, target, kind) is ``wanted``."""

    def change(graph: StepGraph) -> StepGraph:
        edges = zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True)
        kept = [not wanted(node(graph, a), node(graph, b), EDGE_KINDS[k]) for a, b, k in edges]
        return kept_edges(graph, np.array(kept))

    return change


def between(source: str, target: str, kind: str = "kv") -> Callable[[StepGraph], StepGraph]:
    return without(lambda a, b, k: (a.name, b.name, k) == (source, target, kind))


def bypassed(name: str) -> Callable[[StepGraph], StepGraph]:
    """Take a node out: what it needed goes, rank by rank, to what needed it."""

    def change(graph: StepGraph) -> StepGraph:
        gone = {index for index in range(len(graph)) if node(graph, index).name == name}
        edges = list(zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True))
        into = [edge for edge in edges if edge[1] in gone]
        made = [edge for edge in edges if edge[0] not in gone and edge[1] not in gone]
        for source, target, kind in edges:
            if source in gone:
                for before, at, _ in into:
                    if at == source and set(graph.ranks_of(before)) & set(graph.ranks_of(target)):
                        made.append((before, target, kind))
        rest = np.array([index not in gone for index in range(len(graph))])
        number = np.cumsum(rest) - 1
        source, target, kind = np.array(sorted(set(made))).T
        columns = {name: getattr(graph, name)[rest] for name in ("symbol", "group", "layer", "stage", "unit", "stream")}
        return replace(graph, **columns, source=number[source], target=number[target], kind=kind)

    return change


def symbols(change: Callable[[Node], Node]) -> Callable[[StepGraph], StepGraph]:
    return lambda graph: replace(graph, symbols=tuple(change(symbol) for symbol in graph.symbols))


def renamed(old: str, name: str, op: str) -> Callable[[StepGraph], StepGraph]:
    return symbols(lambda symbol: replace(symbol, name=name, op=op) if symbol.name == old else symbol)


STAGES = ParallelPlan(pp=2, stages=(Cut(layer=1, before="ffn"),))


# --- pairs of token and expert ------------------------------------------------------------------------------------


def lose(pairs: Routed) -> Routed:
    return pairs.chosen(np.arange(1, len(pairs.token)))


def duplicate(pairs: Routed) -> Routed:
    return routed([pairs, pairs.chosen(np.arange(1))], pairs.data.shape[1])


def misroute(pairs: Routed) -> Routed:
    expert = pairs.expert.copy()
    expert[:1] = (expert[:1] + 1) % 4 + expert[:1] // 4 * 4
    return replace(pairs, expert=expert)


@contextmanager
def dispatched(change: Callable[[Routed], Routed]) -> Iterator[None]:
    """Change what every dispatch brings."""
    alone, together = execution.ALONE["dispatch"], execution.TOGETHER["dispatch"]

    def here(at: Place, arrived: list[Arrival]) -> Any:
        return change(alone(at, arrived))

    def there(ats: list[Place], arrived: list[list[Arrival]]) -> list[Any]:
        return [change(pairs) if len(pairs.token) else pairs for pairs in together(ats, arrived)]

    with mock.patch.dict(execution.ALONE, dispatch=here), mock.patch.dict(execution.TOGETHER, dispatch=there):
        yield


# --- the table ----------------------------------------------------------------------------------------------------


def dispatching(change: Callable[[Routed], Routed]) -> Proof:
    with dispatched(change):
        return proven("shared", SPREAD)


def copied(name: str, change: Callable[[Routed], Routed]) -> Proof:
    """Change what comes of the one copy of a token, or what a rank adds up before it sends it back."""
    plain = getattr(experts, name)
    with mock.patch.object(
        experts, name, lambda pairs, *rest: plain(change(pairs) if len(pairs.token) else pairs, *rest)
    ):
        return proven("shared", ONCE)


def other_copy(pairs: Routed) -> Routed:
    return replace(pairs, data=pairs.data[::-1].copy())


def windowed(size: int) -> Proof:
    other = symbols(
        lambda symbol: replace(symbol, variant=Variant(window=size)) if symbol.variant.window == 4 else symbol
    )
    return proven("slides", ParallelPlan(), other)


def looking_ahead() -> Proof:
    plain = attention._visible

    def forward(at: Place, rows: Any, window: int | None) -> Any:
        return plain(at, rows, window) | np.roll(plain(at, rows, window), 1, axis=1)

    with mock.patch.object(attention, "_visible", forward):
        return proven("llama", ParallelPlan())


def routing_by_rank() -> Proof:
    plain = execution.ALONE["gate"]

    def by_rank(at: Place, arrived: list[Arrival]) -> Dense:
        made = plain(at, arrived)
        return Dense(data=np.roll(made.data, at.rank, axis=1), rows=made.rows, what="router")

    with mock.patch.dict(execution.ALONE, gate=by_rank):
        return proven("shared", SPREAD)


def narrowed(name: str) -> Callable[[StepGraph], StepGraph]:
    """Let a product make half of its outputs."""
    return symbols(lambda symbol: replace(symbol, n=symbol.n // 2) if symbol.name == name else symbol)


def swapped(module: str) -> Callable[[StepGraph], StepGraph]:
    """Let a residual add come before the norm of what it adds."""
    names = {f"{module}_post_norm": f"{module}_add", f"{module}_add": f"{module}_post_norm"}

    def change(graph: StepGraph) -> StepGraph:
        at = {
            (node(graph, index).name, int(graph.layer[index]), graph.ranks_of(index)): index
            for index in range(len(graph))
        }
        other = np.arange(len(graph))
        for (name, *where), index in at.items():
            if name in names:
                other[index] = at[names[name], *where]
        source, target = other[graph.source], other[graph.target]
        inner = (other[graph.source] == graph.target) & (other[graph.source] != graph.source)
        return replace(
            graph, source=np.where(inner, graph.target, source), target=np.where(inner, graph.source, target)
        )

    return change


CORES = ("attention_prefill", "attention_decode")

PROOFS: dict[str, tuple[str, Callable[[], Proof]]] = {
    "a narrower window drops K/V dependencies": ("PH-5", lambda: windowed(2)),
    "a wider window adds K/V dependencies": ("PH-5", lambda: windowed(5)),
    "a token attends to the next one": ("PH-5", looking_ahead),
    "attention reads before the write": (
        "KV-2", lambda: proven("llama", ParallelPlan(), between("kv_write", "attention_prefill")),
    ),
    "a decode does not read the cache": (
        "KV-2", lambda: proven("llama", ParallelPlan(), between("kv_read", "attention_decode")),
    ),
    "latents are expanded and never read": (
        "KV-2", lambda: proven("latent", ParallelPlan(), between("kv_read", "attention_prefill")),
    ),
    "an all-reduce is dropped": ("TP-2", lambda: proven("llama", TWO, bypassed("o_proj_all_reduce"))),
    "an all-gather is dropped": ("TP-2", lambda: proven("llama", TWO, bypassed("lm_head_all_gather"))),
    "a sum is swapped for a concatenation": (
        "TP-2", lambda: proven("llama", TWO, renamed("o_proj_all_reduce", "o_proj_all_gather", "all_gather")),
    ),
    "a concatenation is swapped for a sum": (
        "TP-2", lambda: proven("llama", TWO, renamed("lm_head_all_gather", "lm_head_all_reduce", "all_reduce")),
    ),
    "a rank makes half of its features": ("TP-9", lambda: proven("llama", TWO, narrowed("ffn_up"))),
    "a rank projects half of its heads": ("TP-9", lambda: proven("llama", TWO, narrowed("qkv_proj"))),
    "a rank attends with heads that it does not have": (
        "TP-9",
        lambda: proven("llama", TWO, symbols(lambda one: replace(one, heads=8) if one.op in CORES else one)),
    ),
    "the norm behind attention is left out": (
        "TP-9", lambda: proven("post-norms", TWO, bypassed("attention_post_norm")),
    ),
    "the norm behind the FFN is left out": ("TP-9", lambda: proven("gemma3", TWO, bypassed("ffn_post_norm"))),
    "a norm comes behind the residual": ("TP-9", lambda: proven("post-norms", TWO, swapped("attention"))),
    "a norm takes terms of a sum": ("TP-2", lambda: proven("post-norms", TWO, bypassed("o_proj_all_reduce"))),
    "the soft cap of logits is left out": ("TP-9", lambda: proven("post-norms", TWO, bypassed("logits_cap"))),
    "one segment's K/V is not gathered": (
        "SP-2", lambda: proven("llama", segments("all_gather"), between("kv_all_gather", "attention_prefill")),
    ),
    "a ring's last segment does not arrive": (
        "SP-2", lambda: proven("llama", segments("ring", degree=3), between("kv_ring_2", "attention_prefill_2")),
    ),
    "what an owner keeps is not shown": (
        "SP-2",
        lambda: proven("mha", segments("ring"), without(lambda a, b, k: a.name == "kv_read" and b.is_collective)),
    ),
    "segments are never moved": (
        "SP-8", lambda: proven("llama", segments("all_gather"), without(lambda a, b, k: b.name == "kv_move")),
    ),
    "segments of latents are never moved": (
        "SP-8", lambda: proven("latent", segments("all_gather", "idle"), without(lambda a, b, k: b.name == "kv_move")),
    ),
    "a token is lost": ("EP-2", lambda: dispatching(lose)),
    "a token is duplicated": ("EP-2", lambda: dispatching(duplicate)),
    "a token is misrouted": ("EP-2", lambda: dispatching(misroute)),
    "nothing adds up what experts of a TP group made": (
        "TP-2", lambda: proven("moe", KEPT, bypassed("aggregate_all_reduce")),
    ),
    "a rank takes the copy of another token": ("EP-2", lambda: copied("_from_copies", other_copy)),
    "a rank adds up all but one of its experts": ("EP-2", lambda: copied("_summed", lose)),
    "a rank adds up an expert twice": ("EP-2", lambda: copied("_summed", duplicate)),
    "the router looks at its rank": ("EP-3", routing_by_rank),
    "a stage does not wait for what was sent": (
        "PP-2", lambda: proven("llama", STAGES, between("send", "recv", "sync")),
    ),
    "the residual is left out": (
        "PP-6", lambda: proven("llama", ParallelPlan(), between("embedding", "attention_add", "data")),
    ),
}  # fmt: skip
"""What is broken → the rule that it breaks, and its proof. PP-2 and PP-6 are not rules of level X: it finds them."""


# --- what only one of the comparisons sees -------------------------------------------------------------------------


def patched(name: str, change: Callable[[Place, Any], Any], orders: int = 0) -> Proof:
    """Prove where the value of an operator of one rank is changed after it was computed."""
    plain = execution.ALONE[name]
    with mock.patch.dict(execution.ALONE, {name: lambda at, arrived: change(at, plain(at, arrived))}):
        model, script, expected, graphs = case("llama", ParallelPlan(), (9, 6, 8))  # three output tokens each
        return prove(model, ParallelPlan(), script, expected=expected, graphs=graphs, orders=orders)


def with_other_logits() -> Proof:
    """The largest logit is a millionth larger: the tokens are the same."""

    def change(at: Place, value: None) -> None:
        for found in at.memory.logits.values():
            found[:] = [(rank, logits * (1 + 1e-6)) for rank, logits in found]

    return patched("sample", change)


def with_another_last_token() -> Proof:
    """The last token of each sequence is another one: no step is left to read it."""

    def change(at: Place, value: None) -> None:
        for sequence, prompt in enumerate(at.memory.prompts):
            last = sequence, len(prompt) + 1
            if last in at.memory.sampled:
                at.memory.sampled[last] += 1

    return patched("sample", change)


def with_another_cache() -> Proof:
    """What the last step keeps is not what it attends to."""

    def change(at: Place, value: Keys) -> Keys:
        prompts = at.memory.prompts
        for row in at.rows.tolist():
            if at.tokens.position[row] == len(prompts[int(at.tokens.sequence[row])]) + 1:
                at.memory.caches[at.rank, at.layer] = at.memory.caches[at.rank, at.layer].copy()
                at.memory.caches[at.rank, at.layer][at.tokens.slot[row]] *= 2
        return value

    return patched("kv_write", change)


def with_another_order() -> Proof:
    """Every execution rounds in its own way."""
    runs: list[Any] = []

    def change(at: Place, value: None) -> None:
        if at.memory not in runs:
            runs.append(at.memory)
        for found in at.memory.logits.values():
            found[:] = [(rank, logits * (1 + 1e-13 * runs.index(at.memory))) for rank, logits in found]

    return patched("sample", change, orders=1)


COMPARISONS: dict[str, tuple[Any, str, Any, Callable[[], Proof]]] = {
    "logits": (comparison, "TOLERANCE", np.inf, with_other_logits),
    "tokens": (proving.Comparison, "holds", True, with_another_last_token),
    "cache": (proving, "same_cache", lambda *given: True, with_another_cache),
    "orders": (proving, "same_logits", lambda *given: True, with_another_order),
}
"""What a proof compares → where it is switched off, and what passes then."""
