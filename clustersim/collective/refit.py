"""Refit of all families of a device from its measurements, as was done for the device files.

Which measurement tells of which family:

========== =================================================================================================
ring       NCCL's all-gather, reduce-scatter and all-reduce of half; of int8 where a switch would reduce half
direct     NCCL's all-to-all; between nodes DeepEP's low-latency dispatch and combine
one_shot   vLLM's custom all-reduce over 2, or below 256 KiB (its own rule, csrc/custom_all_reduce.cuh)
two_shot   the same from there to below 8 MiB, its largest buffer; on PCIe it does not run on more than 2
in_switch  NCCL's all-reduce of half from 4 MiB on, where a switch reduces
send       Vidur's send_recv, inside a node and between two
normal_*   DeepEP's normal dispatch and combine, inside a node and between two
low_*      DeepEP's low-latency dispatch and combine, likewise
========== =================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.cluster.topology import Topology
from clustersim.collective.fit import Fitted, fit_family
from clustersim.collective.measurements import Measurement, newest, samples

_ONE_SHOT_BYTES: Final = 256 * 1024
_CUSTOM_BYTES: Final = 8 * 1024 * 1024
_IN_SWITCH_BYTES: Final = 4 * 1024 * 1024
_RING_KINDS: Final = ("all_gather", "reduce_scatter", "all_reduce")
_PER_PEER: Final = ("direct", "one_shot", "two_shot")
_LEAST: Final = 4  # measurements of a family
_PER_OCTAVE: Final = 4


def refit(
    topology: Topology, measurements: Sequence[Measurement], *, custom: str = "vLLM_custom_graph"
) -> dict[str, Fitted]:
    """Fit every family that the measurements tell of.

    Parameters
    ----------
    topology : Topology
        Of the machine that was measured: its links set what the algorithms' loads take at full capacity.
    measurements : sequence of Measurement
        Of one device; the newest version of each library counts.
    custom : str
        The library whose custom all-reduces are taken.

    Returns
    -------
    dict
        Constants by family. The step of ``direct``, ``one_shot`` and ``two_shot`` is per peer. ``F.network``
        has the ``network_`` step and efficiency of family F, and no base.
    """
    cases = newest(measurements)
    nccl = [one for one in cases if one.library == "NCCL" and one.nodes == 1]
    fits: dict[str, Fitted] = {}
    rings = [one for one in nccl if one.kind in _RING_KINDS and _is_ring(one, topology)]
    if len(rings) >= _LEAST:
        fits["ring"] = fit_family(samples(topology, "ring", rings))
    _fit_custom(topology, [one for one in cases if one.library == custom], fits)
    halves = [one for one in nccl if one.kind == "all_reduce" and one.dtype == "half" and one.devices > 2]
    large = [one for one in halves if one.payload_bytes >= _IN_SWITCH_BYTES]
    if topology.in_switch_reduction and len(large) >= _LEAST:
        # NCCL did not choose the switch for the smallest, so it takes at least as long as what it chose.
        base_s = min(one.seconds for one in halves)
        fits["in_switch"] = fit_family(samples(topology, "in_switch", large), base_s=base_s)
    for name, kind in (("direct", "all_to_all"), ("send", "send")):
        own = [
            one
            for one in cases
            if one.kind == kind and one.exchange is None and (one.library == "NCCL" or one.nodes > 1)
        ]
        _fit_near_and_far(topology, name, _thinned(own), fits)
    exchanges = [one for one in cases if one.exchange is not None]
    for name in sorted({one.exchange.family for one in exchanges if one.exchange is not None}):
        _fit_exchange(topology, name, [one for one in exchanges if one.exchange and one.exchange.family == name], fits)
    return fits


def _fit_exchange(topology: Topology, name: str, cases: list[Measurement], fits: dict[str, Fitted]) -> None:
    near, far = ([one for one in cases if one.nodes == nodes] for nodes in (1, 2))
    if len(near) < _LEAST:
        return
    fitted = fit_family(samples(topology, "", near), efficiency=(0.1, 1.0), ramp=name.startswith("normal"))
    fits[name] = fitted
    if len(far) >= _LEAST:  # a step to the rail, and one on it
        base_s = fitted.base_s + fitted.step_s
        found = replace(samples(topology, "", far), steps=np.ones(len(far)))
        ramp = fitted.ramp_s, fitted.ramp_half_s
        fits[f"{name}.network"] = fit_family(found, base_s=base_s, ramp=ramp, efficiency=(0.1, 1.0))


def _is_ring(one: Measurement, topology: Topology) -> bool:
    """NCCL reduces half in the switch where it can, over more than two devices; int8 it never does."""
    in_switch = topology.in_switch_reduction and one.kind == "all_reduce" and one.devices > 2
    return one.dtype == ("int8" if in_switch else "half")


def _fit_custom(topology: Topology, own: list[Measurement], fits: dict[str, Fitted]) -> None:
    is_pcie = "pcie" in (topology.link_tier[link] for link in topology.route(0, 1))
    small = [one for one in own if one.payload_bytes < _CUSTOM_BYTES and (one.devices == 2 or not is_pcie)]
    once = [one for one in small if one.devices == 2 or one.payload_bytes < _ONE_SHOT_BYTES]
    twice = [one for one in small if one not in once]
    if len(once) >= _LEAST:
        fits["one_shot"] = fit_family(samples(topology, "one_shot", once, per_peer=True), ramp=False)
    if "one_shot" in fits and len(twice) >= _LEAST:
        base_s = fits["one_shot"].base_s  # the same kernel with one barrier more
        cases = samples(topology, "two_shot", twice, per_peer=True)
        fits["two_shot"] = fit_family(cases, base_s=base_s, ramp=False)


def _fit_near_and_far(topology: Topology, name: str, cases: list[Measurement], fits: dict[str, Fitted]) -> None:
    near = [one for one in cases if one.nodes == 1]
    far = [one for one in cases if one.nodes == 2]
    per_peer = name in _PER_PEER
    if len(near) < _LEAST:
        return
    fitted = fits[name] = fit_family(samples(topology, "direct", near, per_peer=per_peer))
    if len(far) >= _LEAST:
        peers = far[0].devices - 1 if per_peer else 0
        base_s = fitted.base_s + fitted.step_s * peers
        cases_far = samples(topology, "direct", far)
        known_s = cases_far.latency_seconds + cases_far.own_bytes * fitted.own_s_per_byte
        cases_far = replace(cases_far, latency_seconds=known_s, own_bytes=np.zeros_like(known_s))
        fits[f"{name}.network"] = fit_family(cases_far, base_s=base_s, ramp=False, efficiency=(0.1, 1.0))


def _thinned(cases: Sequence[Measurement]) -> list[Measurement]:
    """Keep one case per quarter octave of payload: a dense linear scan shall not outvote small sizes."""
    kept: dict[tuple[str, int, int, str, int], Measurement] = {}
    for one in cases:
        octave = int(np.floor(np.log2(max(one.payload_bytes, 1.0)) * _PER_OCTAVE))
        kept.setdefault((one.library, one.devices, one.nodes, one.dtype, octave), one)
    return list(kept.values())


def constants(fits: Mapping[str, Fitted]) -> dict[str, dict[str, float]]:
    """Return fitted constants as the ``collectives`` section of a device file has them: three digits."""
    section: dict[str, dict[str, float]] = {}
    for name, fitted in fits.items():
        if name.endswith(".network"):
            network = {"network_step_s": fitted.step_s, "network_efficiency": fitted.efficiency}
            section[name.removesuffix(".network")].update(_rounded(network))
            continue
        values = {"base_s": fitted.base_s, "peer_s" if name in _PER_PEER else "step_s": fitted.step_s}
        values["efficiency"] = fitted.efficiency
        if fitted.own_s_per_byte > 0.0:
            values["own_s_per_byte"] = fitted.own_s_per_byte
        if fitted.ramp_s > 0.0:
            values |= {"ramp_s": fitted.ramp_s, "ramp_half_s": fitted.ramp_half_s}
        section[name] = _rounded(values)
    return section


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.3g}") for key, value in values.items()}
