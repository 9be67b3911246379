"""How far off a run may be: the measured figures of runs like it, and its constants that nobody measured.

A figure counts for a run with the same device, the same family of engines (``vllm`` of ``vllm-0.9``), and the same
class of model: ``dense``, ``MoE``, ``MLA`` (latent attention) or ``MLA+MoE``. Where there is none, ``nearest`` tells
the nearest kind of which there are some: other models first, then other engines, then other devices. Of runs on
several kinds of device the one with the fewest figures is told. ``scenarios/accuracy/figures.csv`` has the counts;
:mod:`clustersim.accuracy.figures` makes it of the results that ship.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from clustersim import catalog, inputs
from clustersim.cluster.device import Device
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.mesh import Mesh
from clustersim.scenario.scenario import Scenario
from clustersim.units import plural

FEW: Final = 10
"""Figures below which a run says so."""
KIND: Final = ("device", "engine", "model_class")
_NEARER: Final = (("device", "engine"), ("device", "model_class"), ("device",), ("engine", "model_class"), ("engine",))
"""What figures share with a run that has none of its own kind, the nearest first."""
COLUMNS: Final = (*KIND, "figures", "median_error")
TABLE: Final = ("scenarios/accuracy", "figures", ".csv")
_FORMAT: Final = re.compile(r"_(fp8|fp4|int8)\b")
_SHOWN: Final = 3


def model_class(model: ModelSpec) -> str:
    """Return the class of a model: ``dense``, ``MoE``, ``MLA`` or ``MLA+MoE``."""
    latent = any(layer.attention.kind == "mla" for layer in model.layers)
    experts = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    return "+".join([*(["MLA"] if latent else []), *(["MoE"] if experts else [])]) or "dense"


def kinds_of(kind: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield a kind and those that hold it, the nearest first: an empty device, engine or class of model is any."""
    for shared in (KIND, *_NEARER):
        yield tuple(value if key in shared else "" for key, value in zip(KIND, kind, strict=True))


def confidence_of(scenario: Scenario) -> dict[str, Any]:
    """Return ``confidence`` of a summary.

    Returns
    -------
    dict
        ``device``, ``engine`` and ``model_class`` of the run; ``figures`` like it and their ``median_error``, a share
        of what was measured, or None; ``nearest`` with the same keys, None where figures share nothing or there are
        some; ``assumed``: keys of the files of its devices and its engine, such as ``mi300x: kernels.gemm_bf16``.
    """
    devices = {pool.topology.device.name: pool for pool in scenario.each_pool()}
    engine, of_model = scenario.engine.family, model_class(scenario.model)
    kinds = [{"device": name, "engine": engine, "model_class": of_model} for name in devices]
    kind = min(kinds, key=lambda kind: _figures().get(tuple(kind.values()), (0, None))[0])
    figures, error = _figures().get(tuple(kind.values()), (0, None))
    assumed = [f"{name}: {key}" for name, pool in devices.items() for key in _of_device(pool.topology.device, pool)]
    assumed += [f"{scenario.engine.name}: {key}" for key in scenario.engine.assumed if _matters(key, scenario)]
    nearest = None if figures else _nearest(kind)
    return {**kind, "figures": figures, "median_error": error, "nearest": nearest, "assumed": assumed}


def confidence_words(confidence: Mapping[str, Any] | None) -> str:
    """Return it in a sentence; empty where ten figures or more were measured, and nothing is assumed."""
    if not confidence or (confidence["figures"] >= FEW and not confidence["assumed"]):
        return ""
    figures, error = confidence["figures"], confidence["median_error"]
    kind = f"{confidence['engine']} on {confidence['device']} with {confidence['model_class']} models"
    told = f"{plural(figures, 'measured figure') if figures else 'no measured figure'} of {kind}"
    told += "" if error is None else f", median error {error:.0%}"
    if nearest := confidence["nearest"]:
        shared = ", ".join(nearest[key] for key in KIND if nearest[key])
        told += f" (nearest: {nearest['figures']:,} of {shared}, median error {nearest['median_error']:.0%})"
    return f"{told}{'; assumed: ' if confidence['assumed'] else ''}{'; '.join(_assumed_words(confidence['assumed']))}"


def _assumed_words(assumed: list[str]) -> Iterator[str]:
    """Yield, for each file, what is assumed of it: of many sections under one the number."""
    files: dict[str, dict[str, list[str]]] = {}
    for name, _, key in (one.partition(": ") for one in assumed):
        files.setdefault(name, {}).setdefault(key.partition(".")[0], []).append(key)
    for name, tops in files.items():
        short = [of[0] if len(of) == 1 else f"{len(of)} {top}" for top, of in tops.items()]
        more = [f"{len(short) - _SHOWN} more"] if len(short) > _SHOWN + 1 else []
        yield f"{', '.join([*short[:_SHOWN], *more] if more else short)} of {name}"


def _of_device(device: Device, pool: Scenario) -> list[str]:
    """Return what is assumed of a device and matters to a pool on it: kernels of its engine, model and formats."""
    engines = {pool.engine.family, pool.engine.kernels or pool.engine.name}
    formats = {pool.precision.weights, pool.precision.activations, pool.precision.kv_cache, pool.precision.multiply}
    found = []
    for key in device.assumed:
        section = next((one for one in device.engine_kernels if key.startswith(f"kernels.{one}.")), None)
        narrow = _FORMAT.search(key)
        if (section is None or section in engines) and (narrow is None or narrow[1] in formats):
            found.append(key)
    return [key for key in found if _matters(key, pool)]


def _matters(key: str, scenario: Scenario) -> bool:
    """Tell whether a key may matter: of experts, latent attention, groups, stages or networks where there are any."""
    of_model, plans = model_class(scenario.model), [pool.plan for pool in scenario.pools]
    if "grouped_gemm" in key or key.startswith("experts_"):
        return "MoE" in of_model
    if "latent" in key:
        return "MLA" in of_model
    if key == "first_token":
        return scenario.hands_over
    if key == "stage":
        return any(plan.pp > 1 for plan in plans)
    if "network" in key:
        nodes = scenario.topology.node_of
        return any(len({int(nodes[Mesh(plan=plan).device(rank)]) for rank in range(plan.world)}) > 1 for plan in plans)
    return not key.startswith("collective") or any(plan.world > plan.dp or plan.ep.degree > 1 for plan in plans)


def _nearest(kind: Mapping[str, str]) -> dict[str, Any] | None:
    for part in kinds_of(kind.values()):
        if found := _figures().get(part):
            told = {key: value or None for key, value in zip(KIND, part, strict=True)}
            return {**told, "figures": found[0], "median_error": found[1]}
    return None


@cache
def _figures() -> dict[tuple[str, ...], tuple[int, float]]:
    """Return (figures, median error) by device, engine and class of model; an empty one of these is any."""
    rows = csv.DictReader(inputs.read_text(catalog.path_of(*TABLE), most=inputs.TEXT_BYTES).splitlines())
    return {tuple(row[key] for key in KIND): (int(row["figures"]), float(row["median_error"])) for row in rows}
