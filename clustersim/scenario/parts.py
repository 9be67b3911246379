"""One topology, model or engine without a scenario around it, by name or path and with changes; and those kept."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from clustersim.cluster.topology import Topology
from clustersim.cost.engine import Engine
from clustersim.model.architecture import ModelSpec
from clustersim.scenario.build.engines import build_engine
from clustersim.scenario.build.references import build_model
from clustersim.scenario.build.topologies import build_cluster
from clustersim.scenario.document import Document, KeyPath, Mark
from clustersim.scenario.overrides import apply_overrides

Value = TypeVar("Value")

MOST: Final = 64
"""Parts that are kept; a topology of 10,000 devices holds some MB."""
OVERRIDE: Final = "--set"


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


class KeptParts:
    """Parts of scenarios that were built before, by what is written of them: variants of one scenario share most.

    What a file says counts as it was when it was first read, so that all variants see the same. The oldest parts are
    dropped first.
    """

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def built(self, document: Document, path: KeyPath, build: Callable[[], Value]) -> Value:
        """Return what ``build`` makes of the value at a path, that of an earlier document where it is written alike.

        What is returned is shared, and nobody may change it.

        Raises
        ------
        InputError
            As ``build`` does; nothing is kept then.
        """
        data: Any = document.data
        for part in path:
            data = data[part]
        text = json.dumps(data, sort_keys=True, default=repr)
        depth = len(path)
        # what an override names is searched for from the working directory
        given = tuple(
            key for key, mark in document.marks.items() if mark.file.startswith(OVERRIDE) and key[:depth] == path
        )
        return self._kept((path, document.file, text, given), build)

    def of_file(self, file: Path, read: Callable[[Path], Value]) -> Value:
        """Return what ``read`` makes of a file, once."""
        return self._kept((read, file), lambda: read(file))

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        found: Value = self._parts[key] if key in self._parts else make()
        self._parts[key] = found
        self._parts.move_to_end(key)
        if len(self._parts) > MOST:
            self._parts.popitem(last=False)
        return found
