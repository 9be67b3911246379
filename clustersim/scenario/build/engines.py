"""The engine of a scenario: by name or path, by name with changes, or written out; and what engines inherit.

``inherits`` names the engine whose keys, and whose kernels, are taken where an engine does not say its own: the profile
that it comes from stands under ``kernels``. A version that no file
describes is stood for by the profile in force: the newest that is not newer than it, by ``since``, the first version
that a profile describes (its own where it does not say). Before all of them the oldest is taken, past all the newest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.cluster.topology import Topology
from clustersim.cost.engine import COSTS, Engine, engine_from_mapping
from clustersim.errors import InputError, Problem, did_you_mean, nearest
from clustersim.scenario.build.references import mapping_at, name_in, referred_file
from clustersim.scenario.document import Document, KeyPath, read_mapping
from clustersim.scenario.lookup import find
from clustersim.scenario.validate import known_as
from clustersim.values import dataclass

FOLDER: Final = "scenarios/engines"
ABOUT: Final = ("name", "inherits", "since", "asked", "without")
"""Keys that are about a profile, and no cost: ``asked`` is the version that a resolved scenario's one stands for,
``without`` has the constants that stand in where a family of measured figures is left out (docs/accuracy.md)."""
_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+)*")
_VERSION: Final = re.compile(r"([a-z]+)-v?([0-9]{1,3}(?:\.[0-9]{1,4}){0,3})(?:\.?(?:post|rc|dev|a|b)[0-9]{1,4})?")
"""A version as engines write it: also of a patch (``0.10.1.1``), behind one (``.post1``), or before it (``rc1``)."""
_IMAGE: Final = re.compile(
    r"(?:[\w.:-]+/)*(vllm-openai|sglang|tensorrt-llm/release):v?([0-9]{1,3}(?:\.[0-9]{1,4}){1,2})(?:[.+_@-][\w.:@-]*)?"
)
"""The image of a container whose tag is the version of an engine, such as ``vllm/vllm-openai:v0.9.2``."""
_OF_IMAGE: Final = {"vllm-openai": "vllm", "sglang": "sglang", "tensorrt-llm/release": "trtllm"}
MOST_ANCESTORS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """Keys of an engine with those it inherits, where each is written, and where the engine is."""

    values: Mapping[str, Any]
    places: Mapping[str, tuple[Document, KeyPath]]
    home: tuple[Document, KeyPath]


def build_engine(document: Document, path: KeyPath) -> tuple[Engine, dict[str, Any]]:
    """Return the engine of a scenario, and its mapping with everything written out.

    Raises
    ------
    InputError
        With every problem, placed in the scenario or in the file that it refers to.
    """
    name, asked, found = _named(document, path)
    found = _with_kernels(found, name)
    try:
        engine = engine_from_mapping(name, found.values)
    except InputError as error:
        problems = []
        for problem in error.problems:
            place, prefix = found.places.get(re.split(r"[.\[]", problem.path)[0], found.home)
            hint = known_as(problem.path) if problem.message.startswith("unknown key") else ""
            told = replace(problem, message=f"unknown key {problem.path!r}{hint}") if hint else problem
            problems += place.placed([told], prefix)
        raise InputError(problems) from None
    about = {"name": name} if asked is None else {"name": name, "asked": asked}
    return engine, {**about, **found.values}


def _named(document: Document, path: KeyPath) -> tuple[str, str | None, _Keys]:
    """Return the name of an engine, the version that it stands for, and its keys."""
    written = mapping_at(document, path)
    if "source" in written:
        return name_in(document, path, "my-engine"), written.get("asked"), _own(document, path, 0)
    name, asked = standing_for(name_in(document, path, "vllm-0.19"))
    if asked is None:
        _refuse_family(document, path, name)
        file = referred_file(document, path, folder=FOLDER, kind="engine", example="vllm-0.19")
    else:
        file = catalog.path_of(FOLDER, name)
    of_file = _of_file(file, 0)
    return file.stem, asked, replace(_over(of_file, _own(document, path, 0)), home=of_file.home)


def refuse_kernels(document: Document, path: KeyPath, engine: Engine, topology: Topology) -> None:
    """Refuse an engine that runs the kernels of one which does not ship, and which the devices have no kernels of.

    Raises
    ------
    InputError
        At ``kernels`` of its file, or of the scenario.
    """
    devices = topology.kinds.devices if topology.kinds is not None else (topology.device,)
    of_devices = {section for device in devices for section in device.engine_kernels}
    shipped = catalog.names(FOLDER)
    known = {*shipped, *(name.partition("-")[0] for name in shipped), *of_devices}
    if not engine.kernels or known & {engine.kernels, engine.kernels.partition("-")[0]}:
        return
    owner, where = _named(document, path)[2].places["kernels"]
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    hint = did_you_mean(engine.kernels, sorted(known))
    message = f"no engine is called {engine.kernels!r}, and {names} has no kernels of one{hint}"
    raise InputError(owner.problem((*where, "kernels"), message))


def _with_kernels(found: _Keys, name: str) -> _Keys:
    """Return the keys of an engine, without ``kernels`` where they are those of its name.

    Raises
    ------
    InputError
        When no engine is called as ``kernels`` says, and one nearly.
    """
    told = found.values.get("kernels")
    if told == name:
        return replace(found, values={key: value for key, value in found.values.items() if key != "kernels"})
    if isinstance(told, str) and (guess := meant(told)):
        (document, path), message = found.places["kernels"], f"no engine is called {told!r}; did you mean {guess!r}?"
        raise InputError(document.problem((*path, "kernels"), message))
    return found


def _refuse_family(document: Document, path: KeyPath, name: str) -> None:
    """Refuse a name that is that of a family, which has no version."""
    if of_family := newest(name):
        where = (*path, "name") if (*path, "name") in document.marks else path
        message = f"no engine {name!r}; expected a version, such as {of_family!r}, the newest that is described"
        raise InputError(document.problem(where, message))


def _of_file(file: Path, depth: int) -> _Keys:
    read = read_mapping(file, "engine", (*COSTS, "inherits"))
    if "inherits" in read.data and "source" not in read.data:
        message = "source: is missing: that of what it inherits says nothing of what it changes; expected a sentence"
        raise InputError(read.problem(("inherits",), message))
    found = _own(read, (), depth)
    ships = file.stem in catalog.names(FOLDER) and file == catalog.path_of(FOLDER, file.stem)
    return replace(found, values={**found.values, "kernels": file.stem}) if ships else found


def _own(document: Document, path: KeyPath, depth: int) -> _Keys:
    """Return the keys of a mapping, over those that it inherits."""
    written = mapping_at(document, path)
    if "since" in written and not _NUMBERS.fullmatch(str(written["since"])):
        message = f"expected a version such as '0.14', but found {written['since']!r}"
        raise InputError(document.problem((*path, "since"), message))
    values = {key: value for key, value in written.items() if key not in ABOUT}
    found = _Keys(values=values, places=dict.fromkeys(values, (document, path)), home=(document, path))
    if "inherits" not in written:
        return found
    where = (*path, "inherits")
    parent = written["inherits"]
    if not isinstance(parent, str) or depth >= MOST_ANCESTORS:
        expected = (
            "the name of an engine"
            if not isinstance(parent, str)
            else f"no engine that inherits from itself, nor from more than {MOST_ANCESTORS}"
        )
        raise InputError(document.problem(where, f"expected {expected}, but found {parent!r}"))
    stands, asked = standing_for(parent)
    if asked is not None and "." in parent:
        message = f"no profile of {parent!r} ships; {stands!r} stands for that version: inherit from it"
        raise InputError(document.problem(where, message))
    mark = document.mark(where)
    base = Path(document.file).parent
    file = find(parent, folder=FOLDER, kind="engine", mark=mark, path="inherits", base=base)
    return _over(_of_file(file, depth + 1), found)


def _over(base: _Keys, own: _Keys) -> _Keys:
    values = {**base.values, **own.values}
    inherited, said = base.values.get("assumed"), own.values.get("assumed", [])
    if isinstance(inherited, list) and isinstance(said, list):  # what is said anew is assumed where that says so
        values["assumed"] = [*(key for key in inherited if key not in own.values and key not in said), *said]
    return replace(own, values=values, places={**base.places, **own.places})


def standing_for(name: str) -> tuple[str, str | None]:
    """Return a name in the catalog, and the one that was asked for where another stands for it.

    The image of a container names the version of its tag. A name that no version of the catalog can stand for is
    returned as it is.
    """
    image = _IMAGE.fullmatch(name)
    name = f"{_OF_IMAGE[image[1]]}-{image[2]}" if image else name
    version = _VERSION.fullmatch(name)
    if name in catalog.names(FOLDER) or version is None:
        return name, None
    profiles = _profiles(version[1])
    older = [profile for since, profile in profiles if since <= _numbers(version[2])]
    return ((older or [profiles[0][1]])[-1], name) if profiles else (name, None)


def meant(name: str) -> str | None:
    """Return what the name of an engine, or of a family of them, seems to mean; None where it may be right.

    One that is like none of the catalog's may be that of a user's own engine.
    """
    known = catalog.names(FOLDER)
    families = tuple(dict.fromkeys(one.partition("-")[0] for one in known))
    if name in known or name in families:
        return None
    stands = standing_for(name)[0]
    family = name.partition("-")[0]
    return stands if stands != name else None if family in families else nearest(name, (*families, *known))


def newest(family: str) -> str | None:
    """Return the newest profile of a family of engines such as ``vllm``; None where it has none with a version."""
    profiles = _profiles(family)
    return profiles[-1][1] if profiles else None


def _profiles(family: str) -> list[tuple[tuple[int, ...], str]]:
    """Return (since which version it is in force, profile) of a family, the oldest first."""
    found = []
    for other in catalog.names(FOLDER):
        named = _VERSION.fullmatch(other)
        if other.partition("-")[0] == family:
            since = read_mapping(catalog.path_of(FOLDER, other), "engine", (*COSTS, "inherits")).data.get("since")
            if since is not None or named:
                found.append((_numbers(str(since) if since is not None else named[2] if named else ""), other))
    return sorted(found)


def _numbers(version: str) -> tuple[int, ...]:
    if not _NUMBERS.fullmatch(version):
        raise InputError(Problem(message=f"since: expected a version such as '0.14', but found {version!r}"))
    return tuple(map(int, version.split(".")))
