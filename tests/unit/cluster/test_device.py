"""Devices: figures in, units converted, every problem reported at once."""

import pytest

from clustersim.cluster import Device, device_from
from clustersim.errors import InputError

DOCUMENT = {
    "name": "toy",
    "vendor": "nobody",
    "source": "made up",
    "memory": {"capacity": "80 GB", "bandwidth": "2 TB/s"},
    "compute": {"bf16": "100 TFLOP/s", "int8": "200 TOP/s"},
}


def problems_of(document: dict[str, object]) -> list[str]:
    with pytest.raises(InputError) as caught:
        device_from(document, where="toy.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_figures_have_base_units() -> None:
    device = device_from(DOCUMENT)
    assert device.memory_bytes == device.sheet_memory_bytes == 80_000_000_000
    assert device.memory_bytes_per_s == 2e12
    assert device.flops == {"bf16": 100e12, "int8": 200e12}
    assert (device.power_w, device.idle_power_w, device.price_per_hour) == (None, None, None)


def test_power_and_price_may_be_given() -> None:
    power = {"idle": "100 W", "board": "0.7 kW", "source": "a test"}
    device = device_from(DOCUMENT | {"power": power, "price": {"per_hour": "2.5 $/h", "source": "a test"}})
    assert (device.power_w, device.idle_power_w, device.price_per_hour) == (700.0, 100.0, 2.5)
    assert problems_of(DOCUMENT | {"power": power | {"idle": "800 W"}}) == [
        "toy.yaml: power.idle: expected no more than power.board"
    ]


def test_memory_is_what_the_driver_reports_when_it_is_known() -> None:
    memory = {"capacity": "80 GB", "usable": "79 GiB", "bandwidth": "2 TB/s"}
    device = device_from(DOCUMENT | {"memory": memory})
    assert (device.memory_bytes, device.sheet_memory_bytes) == (79 * 2**30, 80_000_000_000)


def test_sections_of_fitted_constants_are_free_and_may_name_sources() -> None:
    sections = {
        "kernels": {"source": "a fit", "gemm_bf16": {"compute": 0.7, "floor_s": 3e-6, "source": "table 1"}},
        "collectives": {"all_reduce": {"step_s": 1}},
    }
    device = device_from(DOCUMENT | sections)
    assert device.kernels == {"gemm_bf16": {"compute": 0.7, "floor_s": 3e-6}}
    assert device.collectives == {"all_reduce": {"step_s": 1.0}}


def test_fitted_constant_that_is_no_number_is_refused_with_its_path() -> None:
    assert problems_of(DOCUMENT | {"kernels": {"gemm": {"compute": "fast"}}}) == [
        "toy.yaml: kernels.gemm.compute: expected a number, but found 'fast'"
    ]


def test_all_problems_are_reported_at_once() -> None:
    memory = {"capacity": 80, "bandwith": "2 TB/s"}
    found = problems_of(DOCUMENT | {"memory": memory, "compute": {}, "nmae": "x"})
    assert [line.split(": ")[1] for line in found] == [
        "memory.capacity",
        "memory.bandwidth",
        "compute",
        "nmae",
        "memory.bandwith",
    ]
    assert "did you mean 'bandwidth'?" in found[-1]


def test_figures_without_a_source_are_refused() -> None:
    document = {key: value for key, value in DOCUMENT.items() if key != "source"}
    assert [line.split(": ")[1] for line in problems_of(document)] == ["memory.source", "compute.source"]


def test_device_needs_only_its_figures_in_python() -> None:
    device = Device(name="d", vendor="v", memory_bytes=1, memory_bytes_per_s=1.0, flops={"bf16": 1.0})
    assert (dict(device.kernels), dict(device.collectives), device.source) == ({}, {}, "")
