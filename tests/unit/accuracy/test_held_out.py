"""Which constants come from the figures that they are compared with."""

from __future__ import annotations

import pytest

from clustersim import catalog
from clustersim.accuracy.held_out import held_out_engine, is_in_sample
from clustersim.accuracy.origins import origins
from clustersim.accuracy.result import read_results


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """Return a folder of engines that takes the place of the one that ships."""
    (tmp_path / "scenarios/engines").mkdir(parents=True)
    monkeypatch.setattr(catalog, "data_root", lambda: tmp_path)
    texts = {
        "fast-1.2": "source: fitted to example/runs@0123abc",
        "fast-1.3": "source: 'see F4, F12'",
        "fast-2.0": "source: assumed",
        "ideal": "source: by definition",
    }
    for name, text in texts.items():
        (tmp_path / f"scenarios/engines/{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("engine", "family", "source", "expected"),
    [
        ("fast-1.2", "F7-x", "example/runs@0123abc:table 3", True),
        ("fast-1.2", "F7-x", "example/runs@fedcba9", False),
        ("fast-1.3", "F4-x", "", True),
        ("fast-1.3", "F1-x", "", False),  # F12 is another one
        ("fast-2.0", "F4-x", "", False),
    ],
)
def test_a_family_or_a_publication_in_the_file_is_in_sample(engines, engine, family, source, expected):
    assert is_in_sample(engine, family, source) == expected


def test_the_nearest_version_without_the_family_stands_in(engines):
    assert held_out_engine("fast-1.2", "F7-x", "example/runs@0123abc") == "fast-1.3"
    assert held_out_engine("fast-1.2", "F4-x", "example/runs@0123abc") == "fast-2.0"
    (engines / "scenarios/engines/fast-2.0.yaml").unlink()
    assert held_out_engine("fast-1.2", "F4-x", "example/runs@0123abc") == "ideal"


def test_origins_name_every_device_with_a_fit_and_every_engine():
    found = {origin.constants: origin for origin in origins([])}
    assert {f"engine {name}" for name in catalog.names("scenarios/engines")} <= found.keys()
    assert found["kernels of h100-sxm-80gb"].fit.endswith("%")
    assert "aiconfigurator" in found["kernels of h100-sxm-80gb"].source


def test_a_family_from_the_publication_of_a_fit_is_named_beside_it():
    """Kernels of the RTX 4090 name a repository without a commit, H800's collectives a commit in fewer letters."""
    results = read_results(catalog.path_of("scenarios/accuracy", "results", ".csv"))
    found = {origin.constants: origin.families for origin in origins(results)}
    assert found["kernels of rtx-4090"] == ("F1-replay-vllm", "F2-h100-70b-modes")
    assert "F11-collectives" in found["collectives of h800-sxm-80gb"]
    assert "F7-closed-loop" in found["kernels of h100-sxm-80gb"]
    assert "F7-closed-loop" not in found["kernels of rtx-4090"]
