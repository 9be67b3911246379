"""The page of a sweep: which figures it has, what they show, and that a click tells the command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from checked_figure import checked

from clustersim.errors import InputError
from clustersim.report.figures.layout import read_layout
from clustersim.report.sweep.figures import FIGURES, PANELS
from clustersim.report.sweep.page import check_layout, sweep_html
from clustersim.report.sweep.swept import Swept, is_better_low, leading

LAYOUT: dict[str, Any] = {"figures": [{"figure": name} for name in FIGURES]}


def swept(varied: dict[str, Sequence[str]], chosen: Sequence[Sequence[str]], failed: int | None = None) -> Swept:
    """A sweep whose n-th run has n ms of TTFT and 10 n tokens/s."""
    numbers = [
        {}
        if run == failed
        else {"ttft_ms.p99": float(run), "tpot_ms.p99": 1.0, "throughput.output_tokens_per_s": 10.0 * run}
        for run in range(len(chosen))
    ]
    return Swept(
        name="</script>",
        varied=varied,
        numbers=numbers,
        chosen=chosen,
        failed=["too <large>" if run == failed else None for run in range(len(chosen))],
        commands=[f"clustersim run x --set n={run}" for run in range(len(chosen))],
        targets={"ttft": 2.0},
    )


ONE = swept({"workload.arrivals.rate": ("2/s", "10/s", "1/s")}, [("2/s",), ("10/s",), ("1/s",)])
TWO = swept({"plan.tp": ("1", "2"), "seed": ("1", "2")}, [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")], failed=3)


def drawn(of: Swept, name: str, **options: Any) -> Any:
    (panel,) = read_layout({"figures": [{"figure": name, **options}]}, FIGURES).panels
    found = PANELS[name](of, panel, "f")
    return found if found is None or found.figure is None else replace(found, figure=checked(found.figure))


def test_a_figure_for_which_too_little_varies_is_left_out() -> None:
    assert [name for name in FIGURES if drawn(ONE, name) is not None] == ["curve", "points"]
    assert [name for name in FIGURES if drawn(TWO, name) is not None] == list(FIGURES)


def test_a_curve_goes_along_the_rate_in_its_order() -> None:
    line = drawn(ONE, "curve").figure.data[0]
    assert list(line.customdata) == [3, 1, 2]
    assert list(line.y) == [2.0, 0.0, 1.0]
    rates, seeds = ("1/s", "2/s"), [str(seed) for seed in range(9)]
    many = swept({"workload.arrivals.rate": rates, "seed": seeds}, [(rate, seed) for rate in rates for seed in seeds])
    looks = {(one.line.color, one.marker.symbol) for one in drawn(many, "curve").figure.data if one.showlegend}
    assert len(looks) == 9  # more lines than colours


def test_a_heat_map_has_the_best_of_a_cell_and_none_where_runs_failed() -> None:
    three = swept(
        {"a": ("1", "2"), "b": ("1", "2"), "c": ("1", "2")}, [("1", "1", "1"), ("1", "1", "2"), ("2", "2", "1")]
    )
    latency, tokens = drawn(
        three, "heat_map", x="a", y="b", values=["ttft_ms.p99", "throughput.output_tokens_per_s"]
    ).figure.data
    assert [list(row) for row in latency.z] == [[0.0, None], [None, 2.0]]
    assert [list(row) for row in tokens.z] == [[10.0, None], [None, 20.0]]
    assert "Empty cells failed, or were not asked for." in drawn(three, "heat_map", x="a", y="b").caption
    assert "Empty cells failed." in drawn(TWO, "heat_map").caption
    many = replace(three, numbers=[{"throughput.output_tokens_per_s": 1060.4, "ttft_ms.p99": 0.12345}])
    many = replace(many, numbers=many.numbers * 3)
    texts = [list(one.text[0]) for one in drawn(many, "heat_map", x="a", y="b").figure.data]
    assert texts == [["1,060", ""], ["0.123", ""]]


def test_a_heat_map_opens_on_the_first_number_that_a_run_has() -> None:
    figure = drawn(TWO, "heat_map").figure
    shown = [one for one in figure.data if one.visible]
    assert [one.colorbar.title.text for one in shown] == ["throughput.output_tokens_per_s"]
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == [one.colorbar.title.text for one in figure.data]
    assert "goodput.share" not in labels


def test_a_caption_speaks_of_a_target_only_where_one_is_drawn() -> None:
    assert "Dashed red: the target. Throughput counts until the last request has ended" in drawn(ONE, "curve").caption
    assert "Throughput" not in drawn(ONE, "curve", x="ttft_ms.p50").caption
    assert "target" not in drawn(replace(ONE, targets={}), "curve").caption


@pytest.mark.parametrize(("value", "best"), [("ttft_ms.p99", 1), ("throughput.output_tokens_per_s", 3)])
def test_yellow_is_better_in_a_heat_map_and_side_by_side(value: str, best: int) -> None:
    """Both colour the same run alike: less time, or more tokens."""
    yellow = drawn(TWO, "heat_map", values=[value]).figure.data[0].reversescale
    assert yellow == is_better_low(value)
    found = drawn(TWO, "parallel", values=[value])
    (line,) = [one for one in found.figure.data if one.line.color == "#e3d010"]
    assert set(line.customdata) == {best}
    assert f"its colour is {value}, yellow where it is better" in found.caption


def test_the_page_escapes_what_it_is_given_and_holds_every_command() -> None:
    html = sweep_html(TWO, LAYOUT)
    assert "too &lt;large&gt;" in html
    assert "<h1></script>" not in html
    assert all(command in html for command in TWO.commands)


@pytest.mark.parametrize(
    ("panel", "told"),
    [
        ({"figure": "curv"}, "did you mean 'curve'"),
        ({"figure": "curve", "x": "ttft.p99"}, "did you mean 'ttft_ms.p99'"),
        ({"figure": "points", "values": ["tpot_ms.p98"]}, "did you mean 'tpot_ms"),
        ({"figure": "points", "rows": 0}, "from 1 to"),
    ],
)
def test_a_layout_is_checked(panel: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_layout({"figures": [panel]})


def test_numbers_are_read_off_values_and_known_by_their_names() -> None:
    assert [leading(text) for text in ("2.5/s", "-1 ms", "8")] == [2.5, -1.0, 8.0]
    assert math.isnan(leading("ring"))
    assert [is_better_low(key) for key in ("ttft_ms.p99", "makespan_s", "devices", "goodput.share")] == [True] * 3 + [
        False
    ]
    assert not is_better_low("user_tokens_per_s.p50")
