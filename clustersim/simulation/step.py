"""One step of a scenario, outside any run: its graph, priced on the devices of one replica."""

from __future__ import annotations

from clustersim.collective.algorithms import plan_collective
from clustersim.collective.communications import CommTable
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import StepKind
from clustersim.graph.expand import blueprint_of
from clustersim.graph.prices.priced import PricedGraph, price_graph
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.stepgraph import expand
from clustersim.model.architecture import ModelSpec
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import SequencePlan
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.replay_input import cost_model


def step_batch(
    kind: StepKind, model: ModelSpec, sp: SequencePlan, *, prompt_tokens: int, sequences: int, context_tokens: int
) -> StepBatch:
    """Return a step of one whole prompt, of sequences that decode, or of both; of replicas in lockstep, on each.

    Parameters
    ----------
    kind : str
        ``prefill``, ``decode`` or ``mixed``.
    model, sp
        Decide the windows, and on which SP ranks sequences decode: rank 0, or spread over all.
    prompt_tokens : int
        Tokens of the prompt.
    sequences : int
        Sequences that decode.
    context_tokens : int
        Tokens that each of them has cached before the step.
    """
    together = sp.degree if sp.whole else 1
    owned = (Chunk(request=owner, start=0, count=prompt_tokens, owner=owner) for owner in range(together))
    chunks = tuple(owned) if kind != "decode" else ()
    if kind == "prefill":
        return StepBatch(chunks=chunks, decode_sequences=(0,) * together, decode_keys=(0,) * together)
    owners = sp.degree if sp.decode == "dp" else 1
    each, longer = divmod(sequences * together, owners)
    decodes = tuple(each + (owner < longer) for owner in range(owners))
    attended = context_tokens + 1
    return StepBatch(
        chunks=chunks,
        decode_sequences=decodes,
        decode_keys=tuple(count * attended for count in decodes),
        windowed_keys={w: tuple(count * min(w, attended) for count in decodes) for w in windows(model)},
    )


def windows(model: ModelSpec) -> tuple[int, ...]:
    """Return the distinct sliding windows of a model."""
    found = (layer.attention.sliding_window for layer in model.layers)
    return tuple(dict.fromkeys(window for window in found if window is not None))


def step_graph(
    scenario: Scenario, batch: StepBatch, *, stages: tuple[int, ...] | None = None, replica: int = 0
) -> PricedGraph:
    """Return the graph of one step as one replica of the scenario runs it, or all that share experts together.

    Parameters
    ----------
    scenario : Scenario
    batch : StepBatch
    stages : tuple of int, optional
        Only these stages; by default all.
    replica : int
        Whose devices price collectives and transfers; 0 where all run as one.

    Raises
    ------
    InputError
        When replicas share experts, and have several stages or split prompts.
    """
    scenario.refuse_split_lockstep("drawn")
    plan = scenario.plan.lockstep
    comm = CommTable(scenario.topology, scenario.collectives, plan_collective)
    pricer = Pricer(
        cost=cost_model(scenario),
        engine=scenario.engine.of_stages(plan.pp),
        comm=comm,
        sp=plan.sp,
        windows=windows(scenario.model),
    )
    mesh, base = Mesh(plan=plan), replica * plan.replica_ranks
    blueprint = blueprint_of(scenario.model, plan, scenario.precision, batch.kind)
    return price_graph(
        expand(blueprint, plan, stages),
        plan,
        batch,
        pricer=pricer,
        precision=scenario.precision,
        comm_number=lambda op, ranks: comm.number(op, tuple(mesh.device(base + rank) for rank in ranks)),
    )
