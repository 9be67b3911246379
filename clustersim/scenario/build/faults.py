"""From the ``faults`` of a scenario to devices and links that fail or get slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

import numpy as np
from pydantic import ValidationError

from clustersim.clock import to_ns
from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem, did_you_mean, nearest
from clustersim.scenario.document import Document, KeyPath, dotted
from clustersim.scenario.schema import LEAST_SHARE, MOST_SLOWDOWN, FaultPart

_ROUNDING: Final = 1 + 1e-9
"""0.001 three times is less than 1e-9 by a rounding."""


def build_faults(parts: Sequence[FaultPart], document: Document, topology: Topology) -> tuple[Fault, ...]:
    """Return the faults; what they name is looked up in the topology.

    Raises
    ------
    InputError
        With every device, node or link that the topology does not have, and every time that ends before it begins.
    """
    found: list[Fault] = []
    problems: list[Problem] = []
    for number, part in enumerate(parts):
        try:
            found.append(_fault(part, ("faults", number), document, topology))
        except InputError as error:
            problems += error.problems
    if not problems:
        problems += [document.problem(("faults", *path), message) for path, message in _together(found)]
    if problems:
        raise InputError(problems)
    return tuple(found)


def other_problems(document: Document, topology: Topology, known: Sequence[Problem]) -> list[Problem]:
    """Return what the topology lacks of the faults in which nothing else is wrong, where ``known`` is.

    Parameters
    ----------
    document : Document
        Not valid as a whole, for the reasons in ``known``.
    topology : Topology
    known : sequence of Problem
    """
    entries = document.data.get("faults")
    found: list[Problem] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        path: KeyPath = ("faults", number)
        if any(problem.path == dotted(path) or problem.path.startswith(f"{dotted(path)}.") for problem in known):
            continue
        try:
            _fault(FaultPart.model_validate(entry), path, document, topology)
        except InputError as error:
            found += error.problems
        except ValidationError:  # what is wrong with it is among those known, at the place of an alias
            continue
    return found


def _fault(part: FaultPart, path: KeyPath, document: Document, topology: Topology) -> Fault:
    problems: list[Problem] = []
    at, until = to_ns(part.at), None if part.until is None else to_ns(part.until)
    if until is not None and until <= at:
        problems.append(document.problem((*path, "until"), "is not after at"))
    devices: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    try:
        devices, links = _named(part, topology)
    except InputError as error:
        key = next(key for key in ("device", "node", "link") if getattr(part, key) is not None)
        problems += [document.problem((*path, key), problem.message) for problem in error.problems]
    if problems:
        raise InputError(problems)
    return Fault(
        at_ns=at,
        until_ns=until,
        devices=devices,
        links=links,
        slowdown=part.slowdown,
        share=part.factor or 0.0,
        loses=part.lose == "lose",
        name=_words(part, topology),
    )


def _together(faults: Sequence[Fault]) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is as good as dead where faults overlap: it is slowest at the instant at which one of them begins."""
    of_device: dict[int, list[Fault]] = {}
    of_link: dict[int, list[Fault]] = {}
    for fault in faults:
        if fault.fails:
            continue
        for device in fault.devices:
            of_device.setdefault(device, []).append(fault)
        for link in fault.links:
            of_link.setdefault(link, []).append(fault)
    for number, fault in enumerate(faults):
        if fault.fails:
            continue
        now = fault.at_ns
        slowest = max((prod(_slowdowns(of_device[one], now)) for one in fault.devices), default=1.0)
        least = min((prod(_shares(of_link[one], now)) for one in fault.links), default=1.0)
        if slowest > MOST_SLOWDOWN * _ROUNDING:
            message = f"with what slows {fault.name} down at the same time it is {slowest:g} times as slow"
            yield (number, "slowdown"), f"{message}; expected at most {MOST_SLOWDOWN:g} times"
        if least * _ROUNDING < LEAST_SHARE:
            message = f"with what else {fault.name} suffers at the same time {least:g} of it is left"
            yield (number, "factor"), f"{message}; expected at least {LEAST_SHARE:g}, or 0 where it fails"


def _slowdowns(faults: Sequence[Fault], now: int) -> Iterator[float]:
    return (fault.slowdown or 1.0 for fault in faults if fault.covers(now))


def _shares(faults: Sequence[Fault], now: int) -> Iterator[float]:
    return (fault.share for fault in faults if fault.covers(now))


def _words(part: FaultPart, topology: Topology) -> str:
    if part.device is not None:
        return f"device {topology.devices[_device(part.device, topology)]}"
    if part.node is not None:
        return f"node {part.node}" if isinstance(part.node, str) else f"node n{part.node}"
    return f"link {' to '.join(part.link or [])}"


def _named(part: FaultPart, topology: Topology) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if part.device is not None:
        return (_device(part.device, topology),), ()
    if part.node is not None:
        return _devices_of(part.node, topology), ()
    return (), _links(part.link or [], topology)


def _device(name: str | int, topology: Topology) -> int:
    if isinstance(name, str):
        return topology.index_of(name)
    last = len(topology.devices) - 1
    if not 0 <= name <= last:
        raise InputError(Problem(message=f"{topology.name} has devices 0 to {last}, not {name}"))
    return name


def _devices_of(node: str | int, topology: Topology) -> tuple[int, ...]:
    nodes = [f"n{number}" for number in dict.fromkeys(topology.node_of.tolist())]
    name = f"n{node}" if isinstance(node, int) else node
    if name not in nodes:
        raise InputError(Problem(message=f"{topology.name} has no node {node!r}{did_you_mean(name, nodes)}"))
    return tuple(np.flatnonzero(topology.node_of == int(name[1:])).tolist())


def _links(ends: Sequence[str], topology: Topology) -> tuple[int, ...]:
    """Return the links between two vertices, both directions."""
    first, second = ends
    found = tuple(link for link, pair in enumerate(topology.link_ends) if pair in ((first, second), (second, first)))
    if not found:
        message = f"{topology.name} has no link between {first} and {second}{_instead(first, second, topology)}"
        raise InputError(Problem(message=message))
    return found


def _instead(first: str, second: str, topology: Topology) -> str:
    """Return what would do instead of a link that there is not: other names, or whom the first end has links to."""
    vertices = sorted({end for ends in topology.link_ends for end in ends})
    unknown = [name for name in (first, second) if name not in vertices]
    near = sorted({b if a == first else a for a, b in topology.link_ends if first in (a, b)})
    if not unknown:
        return f"; {first} has links to {', '.join(near[:8])}"
    if unknown == [second]:
        guess = nearest(second, near) or nearest(second, vertices)
        return f"; did you mean {guess!r}?" if guess else f"; {first} has links to {', '.join(near[:8])}"
    guesses = [repr(guess) for name in unknown if (guess := nearest(name, vertices))]
    return f"; did you mean {' and '.join(guesses)}?" if guesses else f"; there is nothing named {first!r}"
