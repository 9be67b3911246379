"""One kind of accelerator: memory, compute, power, price and fitted constants, from ``topologies/devices``.

Not modelled: clocks that depend on temperature or power, sparsity, and CUDA-core (non-tensor) rates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Final

from clustersim.cluster.reading import Reader
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

DTYPES: Final = ("bf16", "fp16", "fp8", "int8", "fp4")


_USABLE: Final = 1.1
"""Most that is usable of a data sheet's capacity: GB may mean GiB there, and is rounded (TPU v5p: 95 GB, 95.74 GiB)."""

Limits = tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
"""An engine's own all-reduces → largest payloads in bytes, each up to so many ranks, the fewest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of accelerator.

    Parameters
    ----------
    memory_bytes : int
        Memory that a process can allocate: what the driver reports where known (``memory.usable``), else the
        data sheet's capacity. An "80 GB" H100 reports 79.1 GiB = 84.9 GB: the sheet means 80 GiB less what
        ECC and firmware keep.
    sheet_memory_bytes : int or None
        The capacity of the data sheet, in decimal GB as it is written there.
    memory_bytes_per_s : float
        Peak memory bandwidth in bytes/s.
    flops : Mapping of str to float
        Peak dense FLOP/s (OP/s for int8) by dtype; a dtype without hardware support is absent.
    power_w, price_per_hour : float or None
        Board power in W, and price in USD/h; None when unknown.
    idle_power_w : float or None
        Power in W with nothing to do; None when unknown.
    kernels, collectives : Mapping of str to Mapping of str to float
        Fitted constants of the cost model and of collectives, section by section.
    collectives_apart : Mapping of str to Mapping of str to float
        Constants of collectives where devices do not reach each other's memory, of the sections that differ
        (``collectives_without_peer_access`` of the file).
    custom_limits : Mapping of str to tuple of (int, float)
        Largest payloads in bytes of an engine's own all-reduces (``one_shot``, ``two_shot``), each up to so many ranks,
        the fewest first; of more ranks none. What is not named is as ``collectives`` have it.
    engine_kernels : Mapping of str to Mapping
        Sections of ``kernels`` that hold only for engines of one family, such as ``trtllm``, or for one of them, such
        as ``trtllm-0.9``, by that name.
    grids, engine_grids : mapping
        Text of measured points by section of ``kernels``, and of ``engine_kernels``, where a section has any.
    source : str
        Where the figures come from.
    assumed : tuple of str
        Keys and sections of the file, such as ``kernels.gemm_bf16``, that are not measured or published.
    """

    name: str
    vendor: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops: Mapping[str, float]
    power_w: float | None = None
    price_per_hour: float | None = None
    idle_power_w: float | None = None
    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    collectives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    collectives_apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    custom_limits: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    engine_kernels: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    source: str = ""
    sheet_memory_bytes: int | None = None
    grids: Mapping[str, str] = field(default_factory=dict)
    engine_grids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    def without_peer_access(self) -> Device:
        """Return the device where others do not reach its memory: without custom all-reduces, which read it."""
        none = {name: {"max_payload_bytes": 0.0} for name in ("one_shot", "two_shot")}
        return replace(self, collectives={**self.collectives, **none, **self.collectives_apart})

    def running(self, *engines: str, quantises: bool = True) -> Device:
        """Return the device as an engine finds it: its own kernels, then its family's, then those of all engines.

        The family is the engine's name up to the first hyphen: ``trtllm`` of ``trtllm-0.9``. Of several ``engines`` the
        last one's stand first. Unless it ``quantises`` in kernels of their own, no product moves bytes for that.
        """
        own: dict[str, Mapping[str, float]] = {}
        grids = dict(self.grids)
        for section in [name for engine in engines for name in (engine.partition("-")[0], engine)]:
            own |= self.engine_kernels.get(section, {})
            for name in self.engine_kernels.get(section, {}):
                grids.pop(name, None)
            grids |= self.engine_grids.get(section, {})
        if quantises:
            return replace(self, kernels={**self.kernels, **own}, grids=grids) if own else self
        fused = {"quantise_bytes": 0.0}
        kernels = {**self.kernels, **own}.items()
        found = {name: {**one, **fused} if fused.keys() <= one.keys() else one for name, one in kernels}
        return replace(self, kernels=found, grids=grids)


def device_from(document: Mapping[str, object], *, where: str | None = None) -> Device:
    """Build a device from its YAML document.

    Parameters
    ----------
    document : Mapping
        A file of ``topologies/devices`` after YAML parsing.
    where : str or None
        The file's name, for error messages.

    Raises
    ------
    InputError
        With every problem of the document; ``Problem.path`` is the dotted key, such as ``memory.capacity``.
    """
    problems: list[Problem] = []
    top = Reader(document, problems, file=where)
    memory, compute = top.section("memory"), top.section("compute")
    power, price = top.section("power"), top.section("price")
    name, vendor = top.text("name"), top.text("vendor")
    sheet_bytes = memory.quantity("capacity", "bytes")
    usable_bytes = memory.maybe("usable", "bytes")
    if usable_bytes is not None and usable_bytes > _USABLE * sheet_bytes:
        memory.problem("usable", f"expected no more than memory.capacity ({memory.raw('capacity')}; as GiB)")
    kernels, engine_kernels, grids, engine_grids = _kernels(top.section("kernels"))
    device = Device(
        name=name,
        vendor=vendor,
        memory_bytes=int(sheet_bytes if usable_bytes is None else usable_bytes),
        sheet_memory_bytes=int(sheet_bytes),
        memory_bytes_per_s=memory.quantity("bandwidth", "bandwidth"),
        flops={dtype: compute.quantity(dtype, "flops") for dtype in DTYPES if compute.has(dtype)},
        power_w=power.maybe("board", "power"),
        price_per_hour=price.maybe("per_hour", "price"),
        idle_power_w=power.maybe("idle", "power"),
        kernels=kernels,
        engine_kernels=engine_kernels,
        grids=grids,
        engine_grids=engine_grids,
        collectives=_constants(top.section("collectives"), {}),
        collectives_apart=_constants(top.section("collectives_without_peer_access"), {}),
        source=_sources(top.raw("source"), memory, compute, power, price),
        assumed=top.texts("assumed"),
    )
    for one in device.assumed:
        if not _has(document, one):
            top.problem("assumed", f"expected keys of this file such as kernels.gemm_bf16, but found {one!r}")
    if device.idle_power_w is not None and device.idle_power_w > (device.power_w or 0.0):
        power.problem("idle", "expected no more than power.board")
    if not device.flops:
        compute.problem("", f"missing; expected the dense FLOP/s of one or more of {', '.join(DTYPES)}")
    for reader in (top, memory, compute, power, price):
        reader.finish()
    if problems:
        raise InputError(problems)
    return device


def _has(section: object, path: str) -> bool:
    """Tell whether there is something at a dotted path; keys may have dots of their own (``trtllm-0.9``)."""
    if not isinstance(section, Mapping):
        return False
    return path in section or any(
        _has(inner, path[len(str(key)) + 1 :]) for key, inner in section.items() if path.startswith(f"{key}.")
    )


def _sources(whole: object, *sections: Reader) -> str:
    """Join the sources of the sections; a section with figures and without any source is a problem."""
    found = [str(whole)] if whole is not None else []
    for section in sections:
        if section.has("source"):
            found.append(f"{section.path}: {section.text('source')}")
        elif section.written() and whole is None:
            section.problem("source", "missing; expected where these figures come from")
    return "; ".join(found)


Constants = dict[str, dict[str, float]]
"""Group → constant → number."""


def _kernels(section: Reader) -> tuple[Constants, dict[str, Constants], dict[str, str], dict[str, dict[str, str]]]:
    """Read ``{group: {constant: number}, family: {group: {constant: number}}}``; a family is one that holds groups.

    Behind the constants come the texts of grids, of the groups and of the families.
    """
    families: dict[str, Constants] = {}
    grids: dict[str, str] = {}
    family_grids: dict[str, dict[str, str]] = {}
    for name in section.written():
        inside = section.raw(name)
        if isinstance(inside, Mapping) and any(isinstance(value, Mapping) for value in inside.values()):
            families[name] = _constants(section.section(name), family_grids.setdefault(name, {}), gridded=True)
    return _constants(section, grids, besides=families, gridded=True), families, grids, family_grids


def _constants(
    section: Reader, grids: dict[str, str], besides: Collection[str] = (), *, gridded: bool = False
) -> Constants:
    """Read ``{name: {constant: number, …}, …}``; texts called ``source`` may stand anywhere inside.

    Where groups may have measured points, too, their texts are put into ``grids``.
    """
    constants: Constants = {}
    texts = ("source", "grid") if gridded else ("source",)
    for name in section.written():
        if name in besides:
            continue
        if name == "source":
            section.text(name)
            continue
        group = section.section(name)
        constants[name] = {
            constant: group.number(constant, least=-math.inf) for constant in group.written() if constant not in texts
        }
        found = {key: group.text(key) for key in texts if group.has(key)}
        if "grid" in found:
            grids[name] = found["grid"]
        group.finish()
    section.finish()
    return constants
