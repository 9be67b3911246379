"""The account of a scenario that is being launched: which keys are said, which are not and why, and what is refused.

Whatever a scenario says of precision, plan and serving otherwise than the defaults, and that nothing said, is listed at
the end: nothing is dropped in silence. Targets ask nothing of a server; a benchmark says them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from clustersim.interop.launch.server import Server, Started
from clustersim.scenario.schema import PlanPart, PrecisionPart, ServingPart
from clustersim.values import dataclass

WITHOUT_MATTER: Final = ("plan.devices", "serving.engine", "serving.transfer", "precision.multiply")
"""Keys that no server needs (a limit of `check`, costs of an engine, how kernels multiply), or that are told apart."""
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "precision": PrecisionPart().model_dump(),
    "plan": PlanPart().model_dump(),
    "serving": ServingPart().model_dump(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaid:
    """A value of the scenario that what was written does not say, and what happens instead."""

    path: str
    value: Any
    why: str


@dataclass(slots=True, kw_only=True)
class Account:
    """What is said, what is not, and what is refused.

    Parameters
    ----------
    document : Mapping
        The resolved document of the scenario.
    engine : str
        In words, such as ``vLLM``.
    """

    document: Mapping[str, Any]
    engine: str
    unsaid: list[Unsaid] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)

    def says(self, server: Server | None, *keys: str) -> None:
        """Take note that keys are said; those of a server are of its pool."""
        for key in keys:
            self._said.update(self._places(server, key))

    def says_exchange(self, server: Server, across: str) -> None:
        """Take note of what the engine does of itself: an all-reduce inside TP, and its own way over replicas."""
        if server.plan.ep.exchange == (across if server.plan.is_lockstep else "all_reduce"):
            self.says(server, "plan.ep.exchange")

    def leaves(self, server: Server | None, key: str, why: str, value: Any = None) -> None:
        """List a key that is not said, with what happens instead; its value is that of the document."""
        places = self._places(server, key)
        self._said.update(places)
        place = next((place for place in places if self._at(place) is not None), places[-1])
        found = Unsaid(path=place, value=self._at(place) if value is None else value, why=why)
        if all(other.path != place for other in self.unsaid):
            self.unsaid.append(found)

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, text: str) -> None:
        """Add what the engine refuses, once."""
        if text not in self.refused:
            self.refused.append(text)

    def whole_layers(self, server: Server) -> list[int] | None:
        """Return how many layers each stage has; None where one begins inside a layer, which the engine refuses."""
        layers, most = server.stage_layers(), len(server.model.layers)
        if layers is None:
            instead = f"take plan.pp={most} or fewer" if server.plan.pp > most else "cut before an attention"
            self.refuse(f"{self.engine} cuts stages between layers, not inside one (plan.stages.cuts); {instead}")
        return layers

    def place(self, started: Started, ranks: int, why: str) -> None:
        """Show a server of so many ranks its devices; refuse what takes those of another pool, list what is not said.

        Parameters
        ----------
        started : Started
        ranks : int
        why : str
            What the engine does of itself.
        """
        server = started.server
        several = server.plan.world > ranks
        started.visible = () if server.is_spread_evenly(ranks) and not server.beside else server.visible(ranks)
        if started.visible or (server.is_spread_evenly(ranks) and not (server.beside and several)):
            self.says(server, "plan.placement")
        elif server.beside and several and server.is_alike(ranks):
            self.leaves(server, "plan.placement", f"show each its own CUDA_VISIBLE_DEVICES: {server.places(ranks)}")
        elif server.beside:
            self.refuse(
                f"{server.pool}: {self.engine} takes as many devices of each node, and {ranks} ranks "
                f"beside another pool are not so ({server.places(ranks)}); take a plan whose servers fill nodes evenly"
            )
        else:
            self.leaves(server, "plan.placement", why)

    def leave_the_rest(self) -> None:
        """List all that differs from the defaults, and that nothing said."""
        for path, value in self._differing():
            if not any(path == said or path.startswith(f"{said}.") for said in (*self._said, *WITHOUT_MATTER)):
                self.unsaid.append(Unsaid(path=path, value=value, why=f"no option of {self.engine} says it"))

    def _places(self, server: Server | None, key: str) -> tuple[str, ...]:
        """Return where a key may stand: in the part of a pool, or for both."""
        part, _, rest = key.partition(".")
        if server is None or not server.pool or part not in ("plan", "serving"):
            return (key,)
        return (f"{part}.{server.pool}.{rest}", key)

    def _at(self, path: str) -> Any:
        value: Any = self.document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _differing(self) -> Iterator[tuple[str, Any]]:
        for part, defaults in _DEFAULTS.items():
            whole = dict(self.document.get(part, {}))
            for pool in ("prefill", "decode"):
                if isinstance(whole.get(pool), Mapping):
                    base = {} if part == "serving" else {**defaults, pool: None}
                    for path, value in _leaves(whole.pop(pool), base):
                        yield f"{part}.{pool}.{path}", value
            for path, value in _leaves(whole, defaults):
                if not (part == "precision" and path.partition(".")[0] == "weights"):
                    yield f"{part}.{path}", value


def _leaves(tree: Mapping[str, Any], defaults: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        default = defaults.get(key)
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _leaves(value, default if isinstance(default, Mapping) else {}, inner)
        elif value != default and value != {"placement": "packed"}.get(key):
            yield inner, value
