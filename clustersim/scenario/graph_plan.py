"""Plans and models as scenarios spell them, in step graphs: ``ep: 2``, ``stages: {cuts: [12]}``, ``llama-3.1-8b``."""

from __future__ import annotations

from typing import Any, Final

from clustersim.graph.export import model_facts
from clustersim.scenario.build.references import build_model
from clustersim.scenario.document import Document
from clustersim.scenario.schema import SHORTHANDS, TensorPart

_SPLITS: Final = tuple(key for key in TensorPart.model_fields if key != "degree")


def model_of_graph(model: Any, file: str) -> Any:
    """Return the model of a scenario, a name or a name with changes, as a graph says one; else what was there.

    Raises
    ------
    InputError
        With the nearest name.
    """
    if not isinstance(model, str) and not (isinstance(model, dict) and "layers" not in model and "name" in model):
        return model
    return model_facts(build_model(Document(file=file, data={"model": model}, marks={}, key_marks={}), ("model",))[0])


def plan_of_graph(plan: Any) -> Any:
    """Return the plan of scenarios as :mod:`clustersim.graph.foreign.declared` reads it, which refuses what is none."""
    if not isinstance(plan, dict):
        return plan
    found = dict(plan)
    for (part, *rest), short in SHORTHANDS.items():
        if part == "plan" and len(rest) == 1 and short is not None and rest[0] in found:
            value = found[rest[0]]
            found[rest[0]] = value if isinstance(value, dict | list) or value is None else {short: value}
    found |= _tensor(found)
    if isinstance(found.get("ep"), dict) and found["ep"].get("routing") == "balanced":
        found["ep"] = {**found["ep"], "routing": None}
    if "stages" in found:
        found["stages"] = _stages(found["stages"])
    if found.get("placement") == "packed":
        found["placement"] = None
    return found


def _tensor(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the degree of TP as a number, and what it splits as a part of its own."""
    tp = plan.get("tp")
    if not isinstance(tp, dict) or not set(tp) <= {"degree", *_SPLITS}:
        return {"tp": tp["degree"]} if isinstance(tp, dict) and set(tp) == {"degree"} else {}
    split = {key: value for key, value in tp.items() if key != "degree"}
    parts = {"split": {**plan.get("split", {}), **split}} if split and isinstance(plan.get("split", {}), dict) else {}
    return {"tp": tp.get("degree", 1), **parts}


def _stages(stages: Any) -> Any:
    if stages in ("balanced", {}):
        return None
    if isinstance(stages, dict) and set(stages) == {"cuts"}:
        stages = stages["cuts"]
    if isinstance(stages, list):
        return [f"{cut}.attention" if type(cut) is int else cut for cut in stages]
    return stages
