"""One topology, model or engine without a scenario around it, by name or path and with changes."""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.cluster.topology import Topology
from clustersim.cost.engine import Engine
from clustersim.model.architecture import ModelSpec
from clustersim.scenario.document import Document, Mark
from clustersim.scenario.engines import build_engine
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.references import build_model
from clustersim.scenario.topologies import build_cluster


def load_topology(path_or_name: str, overrides: Sequence[str] = ()) -> Topology:
    """Return a topology of the catalog or of a file; ``overrides`` are such as ``nodes=4``.

    Raises
    ------
    InputError
        With every problem of the topology and of its device.
    """
    return build_cluster(_named(path_or_name, overrides), ())[0]


def load_model(path_or_name: str, overrides: Sequence[str] = ()) -> ModelSpec:
    """Return a model of the catalog or of a file; ``overrides`` are such as ``config.num_hidden_layers=4``.

    Raises
    ------
    InputError
        With every problem of the model's file.
    """
    return build_model(_named(path_or_name, overrides), ())[0]


def load_engine(path_or_name: str, overrides: Sequence[str] = ()) -> Engine:
    """Return an engine of the catalog or of a file; ``overrides`` are such as ``'launch=3 us'``.

    Raises
    ------
    InputError
        With every problem of the engine's file.
    """
    return build_engine(_named(path_or_name, overrides), ())[0]


def _named(name: str, overrides: Sequence[str]) -> Document:
    document = Document(file="", data={"name": name}, marks={(): Mark(file="")}, key_marks={})
    return apply_overrides(document, overrides, {})
