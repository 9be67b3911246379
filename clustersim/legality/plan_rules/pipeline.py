"""PP-1: stages are non-empty, contiguous, and cover every module once, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from clustersim.legality.deployment import Deployment, counted
from clustersim.legality.layout import Layout
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change
from clustersim.legality.stages import Module, cut_at, even_cuts, module_name, modules_of, position
from clustersim.plan.parallel import Cut


def covers(deployment: Deployment, layout: Layout) -> Finding:
    """PP-1: the cuts make pp stages, and the stages hold what the model has."""
    faults = list(_cut_faults(deployment))
    if not faults:
        faults = list(_stage_faults(deployment, layout.stages))
    return Finding(looked_at=len(modules_of(deployment.model)), faults=tuple(faults))


def is_sound(deployment: Deployment, stages: Sequence[Sequence[Module]]) -> bool:
    """Whether PP-1 holds."""
    return not any(_cut_faults(deployment)) and not any(_stage_faults(deployment, stages))


def _cut_faults(deployment: Deployment) -> Iterator[Fault]:
    plan, model = deployment.plan, deployment.model
    layers = len(model.layers)
    most = 2 * layers
    if plan.pp > most:
        yield Fault(
            where="plan.pp",
            message=f"{plan.pp} stages are more than the {counted(most, 'module')} of {model.name}",
            advice="use fewer stages",
            repairs=lambda: [Repair(text=f"at most {most}", change=degree_change(deployment, pp=most))],
        )
    if plan.stages is None:
        return
    if len(plan.stages) != plan.pp - 1:
        yield Fault(
            where="plan.stages.cuts",
            message=f"{counted(len(plan.stages), 'cut')} {'makes' if len(plan.stages) == 1 else 'make'} "
            f"{counted(len(plan.stages) + 1, 'stage')}, but plan.pp is {plan.pp}",
            advice="use as many cuts as stages, less one",
            repairs=lambda: _cut_repairs(deployment),
        )
    for index in range(len(plan.stages)):
        message = _cut_message(plan.stages, index, layers, model.name)
        if message:
            yield Fault(
                where=f"plan.stages.cuts[{index}]",
                message=message,
                advice="use ascending cuts inside the model",
                repairs=lambda: _cut_repairs(deployment),
            )


def _cut_message(cuts: Sequence[Cut], index: int, layers: int, model: str) -> str | None:
    cut = cuts[index]
    if not 0 <= position(cut) < 2 * layers:
        return f"the cut before {cut_words(cut)} lies outside layers 0 … {layers - 1} ({model})"
    if position(cut) == 0:
        return "a cut before the first module leaves stage 0 empty"
    before = cuts[index - 1] if index else None
    if before is not None and position(before) == position(cut):
        return f"the cut before {cut_words(cut)} is there twice, so stage {index} is empty"
    if before is not None and position(before) > position(cut):
        return f"the cut before {cut_words(cut)} comes after that before {cut_words(before)}"
    return None


def cut_words(cut: Cut) -> str:
    """Return how messages name a cut: ``layer 40``, ``the FFN of layer 12``."""
    return f"layer {cut.layer}" if cut.before == "attention" else f"the FFN of layer {cut.layer}"


def _cut_repairs(deployment: Deployment) -> Iterable[Repair]:
    """Yield cuts in order where these are as many as wanted, then even ones; then the stages that the cuts make."""
    plan, model = deployment.plan, deployment.model
    cuts = plan.stages or ()
    end = 2 * len(model.layers)
    sound = [cut_at(place) for place in sorted({position(cut) for cut in cuts}) if 0 < place < end]
    if len(sound) == plan.pp - 1 and sound != list(cuts):
        yield _written(sound, 0)
    if 1 <= plan.pp <= end and plan.pp - 1 != len(sound):
        yield Repair(text="balanced stages", change=(("plan.stages", "balanced"),), distance=1)
        if plan.pp > 1:
            yield _written(even_cuts(model, plan.pp), 2)
    if len(sound) == len(cuts):
        change = degree_change(deployment, pp=len(cuts) + 1)
        kept = tuple(pair for pair in change if pair[0] != "plan.stages")
        yield Repair(text=f"plan.pp {len(cuts) + 1}", change=kept, distance=3)


def _written(cuts: Sequence[Cut], distance: float) -> Repair:
    plain = [cut.layer if cut.before == "attention" else f"{cut.layer}.ffn" for cut in cuts]
    text = f"cuts: [{', '.join(map(str, plain))}]"
    return Repair(text=text, change=(("plan.stages", {"cuts": plain}),), distance=distance)


def _stage_faults(deployment: Deployment, stages: Sequence[Sequence[Module]]) -> Iterator[Fault]:
    """Yield what is wrong with the contents of the stages themselves."""
    expected = modules_of(deployment.model)
    placed = [module for stage in stages for module in stage]
    counts = Counter(placed)
    messages = []
    if len(stages) != deployment.plan.pp:
        messages.append(f"there are {counted(len(stages), 'stage')}, but plan.pp is {deployment.plan.pp}")
    messages += [f"stage {index} is empty" for index, stage in enumerate(stages) if not _has_layers(stage)]
    messages += [f"{module_name(module)} is on no stage" for module in expected if not counts[module]]
    messages += [f"{module_name(module)} is placed {count} times" for module, count in counts.items() if count > 1]
    if not messages and placed != list(expected):
        first = next(index for index, module in enumerate(placed) if module != expected[index])
        messages.append(f"{module_name(placed[first])} comes before {module_name(expected[first])}")
    for message in messages:
        yield Fault(
            where="plan.stages",
            message=message,
            advice="put every module on one stage, in order",
        )


def _has_layers(stage: Sequence[Module]) -> bool:
    return any(part in ("attention", "ffn") for _, part in stage)
