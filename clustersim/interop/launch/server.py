"""A server to be started: the replicas of a scenario, or of one of its pools, and the devices they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from clustersim import catalog
from clustersim.cost.engine import Engine
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.stages import stage_cuts
from clustersim.scenario.parts import load_engine
from clustersim.scenario.scenario import Scenario
from clustersim.serving.config import ServingConfig
from clustersim.values import dataclass

ENGINES: Final[Mapping[str, str]] = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""Engine → what it is called."""
HEAD: Final = "${HEAD_ADDRESS}"
"""Stands in commands for the address of the first node."""
PORT: Final = 8000
Options = dict[str, str | tuple[str, ...] | None]
"""Long option → value or values, None for a switch."""


@cache
def shipped_engine(name: str) -> Engine:
    """Return an engine of the catalog, which a search asks about for each of its plans."""
    return load_engine(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Replicas with one plan.

    Parameters
    ----------
    scenario : Scenario
        Of this pool alone.
    model_name : str
        What the server is told to load.
    named : bool
        Whether a user named it.
    shell : bool
        Whether a shell starts it, and no manifest.
    beside : bool
        Whether another pool is on one of its nodes.
    """

    scenario: Scenario
    model_name: str
    named: bool = False
    shell: bool = False
    beside: bool = False

    @property
    def pool(self) -> str:
        """``prefill`` or ``decode``; empty where there is one pool."""
        return self.scenario.pools[0].name

    @property
    def plan(self) -> ParallelPlan:
        """The plan of the pool."""
        return self.scenario.plan

    @property
    def serving(self) -> ServingConfig:
        """The serving decisions of the pool."""
        return self.scenario.serving

    @property
    def model(self) -> ModelSpec:
        """The architecture."""
        return self.scenario.model

    @property
    def name(self) -> str:
        """What it is called."""
        return self.pool or "server"

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(isinstance(layer.ffn, Moe) for layer in self.model.layers)

    @property
    def experts_per_token(self) -> int:
        """How many experts a token visits at most; 0 of a model without any."""
        return max((layer.ffn.top_k for layer in self.model.layers if isinstance(layer.ffn, Moe)), default=0)

    @property
    def longest(self) -> int | None:
        """The longest sequence that is let in: by the context window, or what the model takes."""
        return self.serving.context_window or self.model.max_positions

    @property
    def has_graphs_by_itself(self) -> bool:
        """Whether its largest captured graph is that of the profile, which the engine takes unless it is told."""
        engine = self.scenario.engine
        ships = engine.name in catalog.names("scenarios/engines")
        return ships and engine.graph_max_tokens == shipped_engine(engine.name).graph_max_tokens

    @property
    def devices_per_node(self) -> int:
        """Devices of the nodes that its ranks are on."""
        return int(np.bincount(self.scenario.topology.node_of)[self._homes()[0]])

    def nodes_of(self, ranks: int) -> int:
        """Return how many nodes so many ranks take where they are: those of the first server."""
        return len(set(self._homes()[:ranks]))

    def is_spread_evenly(self, ranks: int) -> bool:
        """Tell whether each node has as many of its ranks, side by side; those of a lone server on the first nodes."""
        placed, homes, nodes = self._placed(), self._homes(), self.nodes_of(ranks)
        if ranks % nodes:
            return False
        each = ranks // nodes
        starts = range(0, len(placed), each)
        beside = all(
            placed[rank] == placed[start] + rank - start and homes[rank] == homes[start]
            for start in starts
            for rank in range(start, start + each)
        )
        where = range(nodes) if not self.pool else [homes[start] for start in starts]
        first = [int(np.flatnonzero(self.scenario.topology.node_of == node)[0]) for node in where]
        if len(placed) > ranks:  # several servers: which devices are whose is for whoever starts them
            return beside and (bool(self.pool) or placed == tuple(range(len(placed))))
        return beside and [placed[start] for start in starts] == first

    def visible(self, ranks: int) -> tuple[str, ...]:
        """Return the devices that a pool takes of each node, in order, as ``CUDA_VISIBLE_DEVICES`` has them.

        Empty where a manifest gives it its own, it is several servers of so many ranks, or nodes have not as many.
        """
        if not self.pool or not self.shell or self.plan.world > ranks or not self.is_alike(ranks):
            return ()
        devices, each = self._local(), ranks // self.nodes_of(ranks)
        return tuple(",".join(map(str, devices[at : at + each])) for at in range(0, ranks, each))

    def where(self) -> list[int]:
        """Return the nodes of its ranks, each once, in their order."""
        return list(dict.fromkeys(self._homes()))

    def is_alike(self, ranks: int) -> bool:
        """Tell whether each of several servers of so many ranks has as many of them on as many nodes as the first."""
        homes, nodes = self._homes(), self.nodes_of(ranks)
        each = [homes[start : start + ranks] for start in range(0, len(homes), ranks)]
        return all(one == [home for home in dict.fromkeys(one) for _ in range(ranks // nodes)] for one in each)

    def places(self, ranks: int) -> str:
        """Return where each of several servers of so many ranks is: ``node 0: 0,1; node 1: 0,1``."""
        homes, devices = self._homes(), self._local()
        found = []
        for start in range(0, len(homes), ranks):
            mine = range(start, start + ranks)
            by_node = {home: [devices[rank] for rank in mine if homes[rank] == home] for home in homes[start:][:ranks]}
            found.append(" and ".join(f"node {home}: {','.join(map(str, own))}" for home, own in by_node.items()))
        return "; ".join(found)

    def stage_layers(self) -> list[int] | None:
        """Return how many layers each stage has; None where one begins inside a layer."""
        cuts = stage_cuts(self.model, self.plan)
        if any(cut.before == "ffn" for cut in cuts):
            return None
        ends = [0, *(cut.layer for cut in cuts), len(self.model.layers)]
        return [end - start for start, end in pairwise(ends)]

    def _placed(self) -> tuple[int, ...]:
        return self.plan.placement or tuple(range(self.plan.world))

    def _local(self) -> list[int]:
        node_of = self.scenario.topology.node_of
        return [device - int(np.flatnonzero(node_of == node_of[device])[0]) for device in self._placed()]

    def _homes(self) -> list[int]:
        found: list[int] = self.scenario.topology.node_of[list(self._placed())].tolist()
        return found


@dataclass(slots=True, kw_only=True)
class Started:
    """What starts one kind of server.

    Parameters
    ----------
    server : Server
    engine : str
        ``vllm``, ``sglang`` or ``trtllm``.
    program : tuple of str
        Such as ``vllm serve MODEL``.
    options : dict
        Long option → value.
    environment : dict of str to str
    config : dict
        Of TensorRT-LLM: what stands in its YAML file.
    nodes, devices : int
        Of one such server.
    copies : int
        How many are started, behind a balancer.
    per_node : tuple of mappings
        The options that only the command of one node has; empty where there is one node.
    visible : tuple of str
        ``CUDA_VISIBLE_DEVICES`` of each node; empty where its first devices are taken.
    wrapped : tuple of str
        What stands before the program on several nodes.
    version : tuple of int
        Whose options are written.
    before : tuple of (str, words in groups)
        Commands that are run once before the server starts, each with what it makes.
    """

    server: Server
    engine: str
    program: tuple[str, ...]
    options: Options = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    nodes: int = 1
    devices: int = 1
    copies: int = 1
    per_node: tuple[Options, ...] = ()
    visible: tuple[str, ...] = ()
    wrapped: tuple[str, ...] = ()
    version: tuple[int, ...] = ()
    before: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()


def words_of(options: Options) -> Iterator[tuple[str, ...]]:
    """Yield each option with its values."""
    for name, value in options.items():
        yield (name,) if value is None else (name, value) if isinstance(value, str) else (name, *value)


def captured_sizes(most: int) -> list[int]:
    """Return batch sizes of CUDA graphs as TensorRT-LLM has them: by 8 to 128, then powers of two (llm_args.py)."""
    powers = list(accumulate(range(20), lambda size, _: size * 2, initial=256))
    return sorted({size for size in (1, 2, 4, *range(8, 129, 8), *powers, most) if size <= most})
