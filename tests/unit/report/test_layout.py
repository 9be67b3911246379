"""A dashboard's layout: defaults, and every mistake at once."""

from __future__ import annotations

import pytest
import yaml

from clustersim.catalog import path_of
from clustersim.errors import InputError
from clustersim.report.figures.layout import FIGURES, read_layout
from clustersim.report.figures.panels import PANELS


def problems_of(layout: dict[str, object]) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_layout(layout)
    return [str(problem) for problem in caught.value.problems]


def test_every_figure_has_a_drawer() -> None:
    assert list(PANELS) == list(FIGURES)


def test_the_shipped_overview_shows_the_defaults() -> None:
    layout = yaml.safe_load(path_of("dashboards", "overview").read_text(encoding="utf-8"))
    assert read_layout(layout) == read_layout({"figures": [{"figure": name} for name in FIGURES]})
    for written, options in zip(layout["figures"], FIGURES.values(), strict=True):
        assert set(written) - {"figure"} == set(options)


def test_an_option_left_out_has_its_default() -> None:
    (panel,) = read_layout({"figures": [{"figure": "batch", "bins": 7}]}).panels
    assert panel.options == {"height": 460, "bins": 7}
    assert panel.width == "full"


def test_all_mistakes_are_named_with_the_nearest_choice() -> None:
    figures = [
        {"figure": "batsch"},
        {"figure": "kv_cache", "heigth": 3},
        {"figure": "requests", "bins": 0},
        "batch",
    ]
    found = problems_of({"figures": figures, "titel": "x"})
    assert found[0] == "unknown key 'titel'; did you mean 'title'?"
    assert found[1] == "figures[0]: unknown figure 'batsch'; did you mean 'batch'?"
    assert found[2] == "figures[1]: unknown option 'heigth' of kv_cache; did you mean 'height'?"
    assert found[3] == "figures[2].bins: expected a whole number from 1 to 100,000, but found 0"
    assert found[4] == "figures[3]: expected {figure: NAME, …}, but found 'batch'"


def test_a_choice_outside_the_list_is_refused() -> None:
    figures = [{"figure": "latencies", "scale": "sqrt", "metrics": ["ttft", "tbt"]}]
    scale, metrics = problems_of({"figures": figures})
    assert scale.endswith("expected one of auto, linear, log, but found 'sqrt'")
    assert "expected a list of some of ttft, tpot, itl, e2e" in metrics


def test_a_layout_without_figures_is_refused() -> None:
    assert "expected a list of figures" in problems_of({"title": "x"})[0]
