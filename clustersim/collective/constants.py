"""Constants of the algorithm families: what a device file says, and what is assumed where it says nothing.

A family is a set of algorithms that one library runs the same way:

========== =================================================================================================
ring       ring, halving_doubling, hierarchical, torus: pipelined steps between neighbours (NCCL, XLA)
tree       double binary tree (NCCL)
direct     all pairs at once, as grouped sends and receives (NCCL all-to-all)
one_shot   custom all-reduce: every rank reads every other's tensor (vLLM, TensorRT-LLM, SGLang)
two_shot   custom all-reduce: direct reduce-scatter, then direct all-gather
in_switch  NVLink SHARP: the switch reduces and multicasts
send       one sender, one receiver
normal_*   DeepEP's normal kernels: dispatch, combine
low_*      DeepEP's low-latency kernels: dispatch, combine
========== =================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

from clustersim.cluster.device import Device
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Constants of one family on one device.

    Parameters
    ----------
    base_s : float
        Launch of the kernel, seconds; the engine's own gap before it is not in here.
    step_s : float
        Per serial step inside a scale-up domain, besides the latency of the route.
    peer_s : float
        Per peer that a rank talks to at the same time.
    efficiency : float
        Share of a link's capacity that payload can reach inside a scale-up domain.
    own_s_per_byte : float
        Per byte of the part that a rank of all-gather, reduce-scatter or all-to-all keeps: 1/n of the payload,
        which it copies in its memory with the few cores that the collective has.
    ramp_s, ramp_half_s : float
        See :class:`~clustersim.collective.price.CommPlan`.
    network_step_s, network_efficiency : float
        The same as ``step_s`` and ``efficiency`` for sends between scale-up domains.
    max_payload_bytes : float
        What the algorithm's buffers hold; ``auto`` does not choose it for more, and never when this is 0.
    """

    base_s: float = 0.0
    step_s: float = 0.0
    peer_s: float = 0.0
    efficiency: float = 1.0
    own_s_per_byte: float = 0.0
    ramp_s: float = 0.0
    ramp_half_s: float = 1e-5
    network_step_s: float = 0.0
    network_efficiency: float = 1.0
    max_payload_bytes: float = math.inf


_NETWORK: Final = {"network_step_s": 8.5e-6, "network_efficiency": 0.85}
_CUSTOM: Final = {"max_payload_bytes": 8.0 * 2**20}  # vLLM and SGLang, custom_all_reduce.py: max_size
_DEEPEP: Final[Mapping[str, Mapping[str, float]]] = {
    "normal_dispatch": {"base_s": 26e-6, "efficiency": 0.6, "network_step_s": 31e-6, "network_efficiency": 0.76},
    "normal_combine": {"base_s": 38e-6, "efficiency": 0.65, "network_step_s": 48e-6, "network_efficiency": 0.6},
    "low_latency_dispatch": {"base_s": 11e-6, "efficiency": 0.55, "network_step_s": 8.5e-6, "network_efficiency": 0.93},
    "low_latency_combine": {"base_s": 11e-6, "efficiency": 0.5, "network_step_s": 13.5e-6, "network_efficiency": 0.94},
}
"""As in the file of H100; the normal kernels without what they lose while their pipelines fill."""
ASSUMED: Final[Mapping[str, Mapping[str, float]]] = {
    "ring": {
        "base_s": 5.0e-6,
        "step_s": 0.2e-6,
        "efficiency": 0.76,
        "own_s_per_byte": 1.3e-12,
        "ramp_s": 22e-6,
        "ramp_half_s": 13e-6,
        **_NETWORK,
    },
    "direct": {
        "base_s": 6.4e-6,
        "peer_s": 0.2e-6,
        "efficiency": 0.67,
        "own_s_per_byte": 1e-12,
        "ramp_s": 8e-6,
        "ramp_half_s": 1e-6,
        **_NETWORK,
    },
    "one_shot": {"base_s": 3.7e-6, "peer_s": 0.06e-6, "efficiency": 0.58, **_CUSTOM},
    "two_shot": {"base_s": 3.7e-6, "peer_s": 0.6e-6, "efficiency": 0.8, **_CUSTOM},
    "in_switch": {"base_s": 15e-6, "efficiency": 0.67, "ramp_s": 75e-6, "ramp_half_s": 40e-6},
    "send": {"base_s": 7.0e-6, "efficiency": 0.8, "network_step_s": 8.5e-6, "network_efficiency": 0.73},
    **_DEEPEP,
}
"""Per family, for devices without measurements: round values between those fitted for H100 and H200 (see
their device files), since newer devices of other makers have links of the same class.
``network_*``: DeepEP and NCCL over 400 Gb/s InfiniBand, as in the H100 file."""

_TREE_EFFICIENCY: Final = 0.92
"""Of a tree against a ring, as in NCCL's own tuning model (``ncclTopoTuneModel``, src/graph/tuning.cc), which
gives both the same latency per step. ``tree`` is derived from ``ring`` unless a device says otherwise."""
FAMILIES: Final = (*ASSUMED, "tree")


def family(device: Device, name: str, ranks: int | None = None) -> Family:
    """Return the constants of family ``name`` on ``device``; what the device's file lacks is assumed.

    Where an engine limits its payloads over so many ``ranks``, and they reach each other's memory, that limit holds.

    Raises
    ------
    InputError
        When the device's ``collectives`` section has an unknown family or constant, or an impossible value.
    """
    check_collectives(device)
    given = device.collectives.get(name)
    if given is None and name == "tree":
        ring = family(device, "ring")
        return replace(
            ring,
            efficiency=ring.efficiency * _TREE_EFFICIENCY,
            network_efficiency=ring.network_efficiency * _TREE_EFFICIENCY,
        )
    assumed = dict(ASSUMED["ring" if name == "tree" else name])
    if name == "two_shot":  # the same kernel and buffers, unless a device says otherwise
        limit = device.collectives.get("one_shot", {}).get("max_payload_bytes", assumed["max_payload_bytes"])
        assumed["max_payload_bytes"] = limit
    # A measured family that says nothing of ramp or peers has none; only what fits don't tell is filled in.
    kept = ("network_step_s", "network_efficiency", "max_payload_bytes")
    base = assumed if given is None else {key: assumed[key] for key in assumed if key in kept}
    found = Family(**{**base, **(given or {})})
    limits = device.custom_limits.get(name)
    if ranks is None or limits is None or not found.max_payload_bytes:
        return found
    return replace(found, max_payload_bytes=next((most for upto, most in limits if ranks <= upto), 0.0))


LEAST_SHARE: Final = 1e-6
"""Of a link's bandwidth (assumed; the fits have 0.3 at least)."""
LONGEST_S: Final = 10.0
"""Of one constant in seconds (assumed; the fits have 25 µs at most)."""
MOST_BYTES: Final = 1e18
"""Of a payload (assumed: a million times what a device holds)."""


def check_collectives(device: Device) -> None:
    """Raise an InputError with all unknown families and constants, and impossible values, of both sections."""
    known = [field.name for field in fields(Family)]
    problems = []
    sections = {"collectives": device.collectives, "collectives_without_peer_access": device.collectives_apart}
    listed = [(section, *one) for section, families in sections.items() for one in families.items()]
    for section, name, constants in listed:
        where = f"{device.name}: {section}.{name}"
        if name not in FAMILIES:
            problems.append(Problem(message=f"unknown family{did_you_mean(name, FAMILIES)}", path=where))
            continue
        for key, value in constants.items():
            wrong = f"{value!r} is not between {LEAST_SHARE:g} and 1"
            if key not in known:
                problems.append(Problem(message=f"unknown constant{did_you_mean(key, known)}", path=f"{where}.{key}"))
            elif key.endswith("efficiency") and not LEAST_SHARE <= value <= 1.0:
                problems.append(Problem(message=wrong, path=f"{where}.{key}"))
            elif value < 0.0 or (key == "ramp_half_s" and value == 0.0):
                problems.append(Problem(message=f"{value!r} is not positive", path=f"{where}.{key}"))
            elif value > (most := LONGEST_S if key.endswith(("_s", "_per_byte")) else MOST_BYTES):
                problems.append(Problem(message=f"{value!r} is more than {most:g}", path=f"{where}.{key}"))
    if problems:
        raise InputError(problems)
