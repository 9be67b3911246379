"""Models of a few round numbers, for graphs whose sizes can be worked out in the head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clustersim.cost.engine import Engine
from clustersim.cost.precision import Precision
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import Blueprint, Body, Node, StepKind
from clustersim.graph.expand import blueprint_of
from clustersim.graph.prices.priced import PricedGraph, price_graph
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.stepgraph import expand
from clustersim.model import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan

BF16 = Precision()
"""Two bytes per number of any kind."""

GQA = Attention(kind="gqa", num_heads=4, num_kv_heads=2, head_dim=2, v_head_dim=2)
MLA = Attention(
    kind="mla", num_heads=4, num_kv_heads=1, head_dim=5, v_head_dim=3,
    q_lora_rank=6, kv_lora_rank=7, qk_nope_head_dim=4, qk_rope_head_dim=1,
)  # fmt: skip
DENSE = ModelSpec(name="dense", hidden=10, vocab=100, layers=(Layer(attention=GQA, ffn=Ffn(intermediate=12)),) * 2)
EXPERTS = Moe(num_experts=4, top_k=2, expert_intermediate=6)
MIXTURE = replace(DENSE, name="mixture", layers=(Layer(attention=GQA, ffn=EXPERTS),) * 2)
SHARED = replace(EXPERTS, num_shared_experts=1, shared_intermediate=8, shared_gate=True)
WITH_SHARED = replace(DENSE, name="with-shared", layers=(Layer(attention=GQA, ffn=SHARED),))
LATENT = replace(DENSE, name="latent", layers=(Layer(attention=MLA, ffn=Ffn(intermediate=12)),))


def plan(**degrees: Any) -> ParallelPlan:
    """Return a plan; ``ep`` is a degree, ``sp`` the arguments of a SequencePlan."""
    if "ep" in degrees:
        degrees["ep"] = ExpertPlan(degree=degrees["ep"])
    if "sp" in degrees:
        given = {"scheme": "all_gather", "partition": "contiguous", "decode": "idle"} | degrees["sp"]
        degrees["sp"] = SequencePlan(**given)
    return ParallelPlan(**degrees)


def blueprint(model: ModelSpec, kind: StepKind = "prefill", **degrees: Any) -> Blueprint:
    """Return the graph of a step in SPMD form, at two bytes per number."""
    return blueprint_of(model, plan(**degrees), BF16, kind)


def body(found: Blueprint, name: str, stage: int = 0) -> Body:
    """Return the first body of that name."""
    return next(unit.body for unit in found.stages[stage] if unit.body.name == name)


def names(found: Body) -> list[str]:
    """Return the names of a body's nodes in order."""
    return [node.name for node in found.nodes]


def node(found: Body, name: str) -> Node:
    """Return the node of that name."""
    return next(node for node in found.nodes if node.name == name)


def edges(found: Body) -> set[tuple[str, str, str]]:
    """Return (source, target, kind) by name; the body's input is ``in``."""
    name = {-1: "in"} | dict(enumerate(names(found)))
    return {(name[edge.source], name[edge.target], edge.kind) for edge in found.edges}


class UnitCost:
    """A nanosecond per FLOP pair, per attended pair or key, and per byte."""

    def seconds(self, op: str, shape: Any) -> Any:
        """Return the count of the shape's main quantity in nanoseconds."""
        match op:
            case "gemm":
                count = shape["m"] * shape["n"] * shape["k"]
            case "grouped_gemm":
                count = shape["rows"] * shape["n"] * shape["k"]
            case "attention_prefill":
                count = shape["pairs"] * shape["heads"]
            case "attention_decode":
                count = shape["keys"] * shape["heads"]
            case _:
                count = shape["bytes"]
        return np.asarray(count, np.float64) * 1e-9


class UnitLinks:
    """Communication by number: a group of g ranks takes g nanoseconds a byte."""

    def seconds(self, comm: int, payload_bytes: float) -> float:
        """Return seconds; ``comm`` is the number of ranks."""
        return payload_bytes * comm * 1e-9


def pricer(given: ParallelPlan, windows: tuple[int, ...] = (), **engine: Any) -> Pricer:
    """Return a pricer of round numbers; by default the engine adds nothing."""
    return Pricer(
        cost=UnitCost(), engine=Engine(name="still", source="a test", **engine), comm=UnitLinks(), sp=given.sp,
        windows=windows,
    )  # fmt: skip


def priced(model: ModelSpec, batch: StepBatch, only: tuple[int, ...] | None = None, **degrees: Any) -> PricedGraph:
    """Return the graph of a step with durations of round numbers."""
    given = plan(**degrees)
    found = blueprint_of(model, given, BF16, batch.kind)
    return price_graph(
        expand(found, given, only), given, batch,
        pricer=pricer(given), precision=BF16, comm_number=lambda op, ranks: len(ranks),
    )  # fmt: skip


def prompt(count: int, start: int = 0) -> StepBatch:
    """Return a step that prefills one prompt."""
    return StepBatch(chunks=(Chunk(request=0, start=start, count=count),))
