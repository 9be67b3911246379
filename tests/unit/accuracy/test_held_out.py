"""Which constants come from the figures that they are compared with."""

from __future__ import annotations

import pytest

from clustersim import catalog
from clustersim.accuracy import systems
from clustersim.accuracy.held_out import held_out_engine, is_in_sample, refits
from clustersim.accuracy.origins import origins
from clustersim.accuracy.result import read_results
from clustersim.accuracy.row import Row


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


def test_what_is_fitted_to_other_figures_stands_in_where_the_file_has_it(engines):
    path = engines / "scenarios/engines/fast-1.2.yaml"
    path.write_text(path.read_text() + "\nwithout: {F7: {schedule: 1 ms}}\n", encoding="utf-8")
    assert held_out_engine("fast-1.2", "F7-x", "example/runs@0123abc") == {"name": "fast-1.2", "schedule": "1 ms"}
    assert held_out_engine("fast-1.2", "F70-x", "example/runs@0123abc") == "fast-1.3"


def test_constants_stand_in_for_families_that_an_engine_was_fitted_to_alone():
    found = [(engine, family) for engine in catalog.names("scenarios/engines") for family in refits(engine)]
    assert ("vllm-0.12", "F7") in found
    assert all(is_in_sample(engine, family, "") for engine, family in found)


def test_a_limit_that_was_chosen_by_a_family_is_left_out_with_it():
    """Steps of 2,048 tokens, where vLLM on an H100 takes 8,192 (systems.served_otherwise)."""
    row = Row(
        id="F7-1", family="F7-closed-loop", hardware="h100_sxm", num_gpus=2, model="Qwen3-32B", precision="bf16",
        framework="vllm 0.12.0", parallel="TP2", workload="closed loop concurrency 1, ISL 8, OSL 2", metric="TTFT",
        value=1.0, unit="ms", source="ai-dynamo/aiconfigurator@095f58a51c4c:silicon_sample.csv", note="",
    )  # fmt: skip
    assert systems.serving(row)["max_batch_tokens"] == 2048
    assert systems.decided_alone(row) == {"max_batch_tokens": 8192}


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
