"""Fits recover what made the data, and measurements are read as they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collective_topologies import crossbar

from clustersim.collective.fit import Fitted, Samples, fit_family
from clustersim.collective.measurements import (
    Measurement,
    newest,
    read_aiconfigurator,
    read_deepep,
    read_vidur,
    samples,
)
from clustersim.collective.refit import constants, refit

TRUTH = Fitted(base_s=5e-6, step_s=1e-6, efficiency=0.7, ramp_s=20e-6, ramp_half_s=15e-6)


def made_samples(truth: Fitted = TRUTH) -> Samples:
    """Twenty sizes each over 2 devices (1 step) and over 8 (7 steps), as ``truth`` has them."""
    steps = np.repeat([1.0, 7.0], 20)
    blank = Samples(
        steps=steps,
        ideal_seconds=np.tile(np.geomspace(1e-8, 1e-3, 20), 2),
        latency_seconds=steps * 1e-7,
        seconds=steps,
        own_bytes=np.tile(np.geomspace(1e3, 1e8, 20), 2) / (steps + 1.0),
    )
    return replace(blank, seconds=truth.predict(blank))


def measurement(kind: str, devices: int, payload_bytes: float, seconds: float, **rest: str) -> Measurement:
    values = {"library": "NCCL", "version": "2.1", "dtype": "half"} | rest
    return Measurement(kind=kind, devices=devices, nodes=1, payload_bytes=payload_bytes, seconds=seconds, **values)


def test_fit_recovers_the_constants_that_made_the_data():
    fitted = fit_family(made_samples())
    assert fitted.base_s == pytest.approx(TRUTH.base_s, rel=0.02)
    assert fitted.step_s == pytest.approx(TRUTH.step_s, rel=0.02)
    assert fitted.efficiency == pytest.approx(TRUTH.efficiency, rel=0.02)
    assert fitted.p90_error < 0.01


def test_fit_is_not_pulled_by_an_outlier():
    clean = made_samples(replace(TRUTH, ramp_s=0.0))
    seconds = clean.seconds.copy()
    seconds[3] *= 10.0
    assert fit_family(replace(clean, seconds=seconds), ramp=False).base_s == pytest.approx(TRUTH.base_s, rel=0.05)


def test_fit_tells_the_copy_of_the_own_part_from_the_links():
    fitted = fit_family(made_samples(replace(TRUTH, ramp_s=0.0, own_s_per_byte=2e-12)), ramp=False)
    assert fitted.efficiency == pytest.approx(0.7, rel=0.02)
    assert fitted.own_s_per_byte == pytest.approx(2e-12, rel=0.05)


def test_fit_puts_all_into_the_base_when_every_case_has_as_many_steps():
    ideal = np.geomspace(1e-7, 1e-3, 9)
    ones = np.ones(9)
    cases = Samples(
        steps=ones,
        ideal_seconds=ideal,
        latency_seconds=0 * ones,
        seconds=4e-6 + ideal / 0.5,
        own_bytes=0 * ones,
    )
    fitted = fit_family(cases, ramp=False)
    assert (fitted.step_s, fitted.ramp_s) == (0.0, 0.0)
    assert fitted.base_s == pytest.approx(4e-6, rel=0.02)
    assert fitted.efficiency == pytest.approx(0.5, rel=0.01)


def test_samples_count_steps_bytes_and_latency_of_the_topology():
    # Ring all-reduce over 4: 6 steps over two links of 1 µs; 1.5 bytes per payload byte at 1 GB/s.
    topology = crossbar(4, latency_s=1e-6)
    cases = samples(topology, "ring", [measurement("all_reduce", 4, 1e9, 2.0)])
    assert list(cases.steps) == [6.0]
    assert list(cases.ideal_seconds) == [1.5]
    assert list(cases.latency_seconds) == pytest.approx([12e-6])
    assert list(samples(topology, "direct", [measurement("all_to_all", 4, 1.0, 1.0)], per_peer=True).steps) == [3]


def test_newest_keeps_the_median_of_the_newest_version():
    found = newest(
        [
            measurement("all_gather", 2, 8.0, 9.0, version="2.9"),
            measurement("all_gather", 2, 8.0, 1.0, version="2.10"),
            measurement("all_gather", 2, 8.0, 2.0, version="2.10"),
            measurement("all_gather", 2, 8.0, 7.0, version="2.10"),
        ]
    )
    assert [(one.version, one.seconds) for one in found] == [("2.10", 2.0)]


def test_refit_of_what_a_ring_takes_gives_that_ring():
    topology = crossbar(8)
    cases = [
        measurement("all_gather", devices, size, 3e-6 + (devices - 1) * 1e-6 + size * (devices - 1) / devices / 0.5e9)
        for devices in (2, 8)
        for size in np.geomspace(1e2, 1e8, 12)
    ]
    section = constants(refit(topology, cases))
    assert list(section) == ["ring"]
    assert section["ring"]["base_s"] == pytest.approx(3e-6, rel=0.03)
    assert section["ring"]["step_s"] == pytest.approx(1e-6, rel=0.03)
    assert section["ring"]["efficiency"] == pytest.approx(0.5, rel=0.03)


def test_refit_leaves_out_custom_all_reduces_that_pcie_does_not_run():
    cases = [
        measurement("all_reduce", devices, size, 1e-6 * devices + size / 1e9, library="vLLM_custom_graph")
        for devices in (2, 8)
        for size in np.geomspace(1e2, 1e7, 12)
    ]
    assert refit(crossbar(8, tier="pcie"), cases)["one_shot"].num_samples == 11  # below 8 MiB, over 2
    assert refit(crossbar(8), cases)["one_shot"].num_samples == 11 + 8  # and over 8 below 256 KiB


def test_read_aiconfigurator_counts_elements_and_milliseconds(tmp_path: Path):
    path = tmp_path / "nccl.csv"
    path.write_text(
        "system,kernel_source,version,op_name,nccl_dtype,allreduce_dtype,num_gpus,message_size,latency\n"
        "h100_sxm,NCCL,2.29.2,alltoall,half,,8.0,1024.0,0.010\n"
        "h100_sxm,vLLM_custom_graph,0.19,all_reduce,,bfloat16,2.0,64.0,0.005\n"
        "h100_sxm,NVLinkOneSided,1.2,alltoall_dispatch,,,8.0,,0.005\n"
        "a100_sxm,NCCL,2.27,alltoall,half,,8.0,1024.0,0.010\n"
    )
    first, second = read_aiconfigurator(path, "h100_sxm")
    assert (first.kind, first.devices, first.payload_bytes, first.seconds) == ("all_to_all", 8, 2048.0, 1e-5)
    assert (second.library, second.payload_bytes, second.seconds) == ("vLLM_custom_graph", 128.0, 5e-6)


def test_read_vidur_counts_bytes_and_nodes(tmp_path: Path):
    path = tmp_path / "send_recv.csv"
    path.write_text(
        "time_stats.send_recv.median,num_workers,size,collective,devices_per_node\n0.017,2,2048,send_recv,1\n"
    )
    (only,) = read_vidur(path)
    assert (only.kind, only.nodes, only.payload_bytes, only.seconds) == ("send", 2, 2048.0, 0.017 * 1e-3)


def test_read_deepep_takes_bytes_from_time_and_bandwidth(tmp_path: Path):
    path = tmp_path / "deepep.csv"
    path.write_text(
        "system,version,node_num,dispatch_avg_t_us,dispatch_bandwidth_gbps,combine_avg_t_us,combine_bandwidth_gbps\n"
        "h100_sxm,0.5,2,64,5,32,8\n"
    )
    dispatch, combine = read_deepep(path, "h100_sxm")
    assert (dispatch.devices, dispatch.payload_bytes, dispatch.seconds) == (16, 320e3, 64 * 1e-6)
    assert (combine.library, combine.payload_bytes, combine.seconds) == ("DeepEP_combine", 256e3, 32 * 1e-6)
