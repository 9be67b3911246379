"""The topology of a scenario: by name, by path, by name with changes, or written out (with a ``fabric``).

Its device is a name in ``topologies/devices``, a path, or written out in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clustersim import catalog
from clustersim.cluster.build import TOP_KEYS, build_topology
from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology
from clustersim.collective.constants import check_collectives
from clustersim.cost.check_prices import check_grids
from clustersim.cost.grid import grid_problems
from clustersim.cost.roofline import absent_constants, check_kernels, kernel_problems
from clustersim.errors import InputError, Problem
from clustersim.scenario.build.engines import meant
from clustersim.scenario.build.references import mapping_at, referred_file
from clustersim.scenario.document import Document, KeyPath, dotted, read_mapping
from clustersim.scenario.lookup import find
from clustersim.scenario.text.scalars import kind_of


def build_cluster(document: Document, path: KeyPath = ("topology",)) -> tuple[Topology, dict[str, Any]]:
    """Return the topology of a scenario, and its mapping with everything written out.

    Raises
    ------
    InputError
        With every problem, placed in the scenario, the topology's file or the device's file.
    """
    written = mapping_at(document, path)
    inline = written.get("fabric")
    whole = "device" in written or (isinstance(inline, dict) and inline.get("kind") == "groups")
    if "fabric" in written and not whole and written.get("name") in catalog.names("topologies"):
        example = f"{dotted((*path, 'nic_bandwidth'))}: 50 GB/s"
        message = f"a topology that is named is changed by the keys of its fabric themselves, such as '{example}'"
        raise InputError(document.problem((*path, "fabric"), message))
    if "fabric" in written:
        read, inside, changes = document, path, {}
    else:
        file = referred_file(document, path, folder="topologies", kind="topology", example="dgx-h100")
        read, inside = read_mapping(file, "topology", ("fabric", "device", "nodes")), ()
        changes = {key: value for key, value in written.items() if key != "name"}
    base: dict[str, Any] = {"name": "inline"} | dict(mapping_at(read, inside))
    fabric = base.get("fabric")
    if isinstance(fabric, dict) and fabric.get("kind") == "groups":
        return _of_groups(document, path, (read, inside), base, changes)
    origin = (document, (*path, "device")) if "device" in changes else (read, (*inside, "device"))
    device, device_path = _device_document(*origin, changes.get("device", base.get("device")))
    name = mapping_at(device, device_path).get("name")
    device_data = dict(mapping_at(device, device_path))
    if "device" in changes:
        changes["device"] = name
    base["device"] = name
    try:
        topology = build_topology(base, changes, device_data, where=read.file)
        _check_constants(topology.device)
    except InputError as error:
        raise InputError(_placed(error, document, path, (read, inside), (device, device_path))) from None
    return topology, _written_out(base, changes, device_data)


def _of_groups(
    document: Document, path: KeyPath, topology: tuple[Document, KeyPath], base: dict[str, Any], changes: dict[str, Any]
) -> tuple[Topology, dict[str, Any]]:
    """Return a topology of groups of nodes, each of which names its device; see :func:`build_cluster`."""
    read, inside = topology
    changed = "groups" in changes
    written = changes["groups"] if changed else base["fabric"].get("groups")
    owner, at = (document, (*path, "groups")) if changed else (read, (*inside, "fabric", "groups"))
    devices: dict[str, tuple[Document, KeyPath]] = {}
    groups = []
    for number, group in enumerate(written if isinstance(written, list) else ()):
        if isinstance(group, dict):
            origin = _device_document(owner, (*at, number, "device"), group.get("device"))
            name = mapping_at(*origin).get("name", "?")
            if name in devices and mapping_at(*devices[name]) != mapping_at(*origin):
                message = f"another group has a device {name!r} with other figures; give it a name of its own"
                raise InputError(owner.problem((*at, number, "device"), message))
            devices[name] = origin
            groups.append(dict(group) | {"device": name})
        else:
            groups.append(group)
    data = {name: dict(mapping_at(*origin)) for name, origin in devices.items()}
    if isinstance(written, list):
        base["fabric"] = dict(base["fabric"]) | {"groups": groups}
        changes = {key: value for key, value in changes.items() if key != "groups"}
    if "device" in base or "device" in changes:
        message = "each group of nodes names its device, in fabric.groups; remove it here"
        where, key = (document, path) if "device" in changes else (read, inside)
        raise InputError(where.problem((*key, "device"), message))
    first = next(iter(data), "?")
    if not data:
        raise InputError(owner.problem(at, "expected a list of groups of nodes, each with a device"))
    try:
        found = build_topology({**base, "device": first}, changes, data[first], where=read.file, others=data)
        for kind in found.kinds.devices if found.kinds is not None else ():
            _check_constants(kind)
    except InputError as error:
        problems = []
        for problem in error.problems:
            of = (problem.file or "").removeprefix("device ")
            problems += _placed(InputError(problem), document, path, topology, devices.get(of, topology))
        raise InputError(problems) from None
    groups = [group | {"device": data[group["device"]]} for group in groups]
    resolved = {**base, "fabric": {**base["fabric"], **changes, "groups": groups}}
    return found, resolved


def _check_constants(device: Device) -> None:
    """Raise an InputError with every unknown or impossible constant of the cost models in a device's file."""
    problems: list[Problem] = []
    for check in (check_kernels, check_collectives):
        try:
            check(device)
        except InputError as error:
            problems += error.problems
    problems += grid_problems(device.grids, "kernels") or check_grids(device, device.grids, "kernels")
    for group, constants in device.kernels.items():
        problems += absent_constants(group, constants, "kernels")
    for family, groups in device.engine_kernels.items():
        if guess := meant(family):
            message = f"no engine, and no family of engines, is called {family!r}; did you mean {guess!r}?"
            problems.append(Problem(message=message, path=f"kernels.{family}"))
        for group, constants in groups.items():
            problems += absent_constants(group, constants, f"kernels.{family}")
        problems += kernel_problems(groups, f"kernels.{family}")
        grids = device.engine_grids.get(family, {})
        problems += grid_problems(grids, f"kernels.{family}") or check_grids(device, grids, f"kernels.{family}")
    if problems:
        prefix = f"{device.name}: "
        raise InputError(
            replace(found, file=f"device {device.name}", path=found.path.removeprefix(prefix)) for found in problems
        )


def _device_document(document: Document, path: KeyPath, value: object) -> tuple[Document, KeyPath]:
    """Return the document that holds the device, and where in it the device is."""
    if isinstance(value, dict):
        return document, path
    if not isinstance(value, str):
        found = "it is missing" if value is None else f"found {kind_of(value)}"
        message = f"expected the name of a device such as h100-sxm-80gb, but {found}"
        raise InputError(document.problem(path, message))
    file = find(
        value,
        folder="topologies/devices",
        kind="device",
        mark=document.mark(path),
        path=dotted(path),
        base=Path(document.file).parent,
    )
    return read_mapping(file, "device", ("memory", "compute", "kernels", "collectives")), ()


def _placed(
    error: InputError,
    document: Document,
    path: KeyPath,
    topology: tuple[Document, KeyPath],
    device: tuple[Document, KeyPath],
) -> list[Problem]:
    """Give every problem its file and line: overrides have no file, the device's file is ``device NAME``."""
    found: list[Problem] = []
    for problem in error.problems:
        if problem.file is None:
            found += document.placed([replace(problem, path=problem.path.removeprefix("topology."))], path)
        elif problem.file.startswith("device "):
            found += device[0].placed([replace(problem, file=None)], device[1])
        else:
            found += topology[0].placed([problem], topology[1])
    return found


def _written_out(base: Mapping[str, Any], changes: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Any]:
    fabric = {key: value for key, value in changes.items() if key not in TOP_KEYS}
    top = {key: changes[key] for key in TOP_KEYS if key in changes and key != "device"}
    return {**base, **top, "device": dict(device), "fabric": {**base["fabric"], **fabric}}
