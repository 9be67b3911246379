"""The dashboard as a file: alone, bounded, the same for the same run; texts in the data stay texts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checked_figure import checked
from report_data import small_run, summary_of

from clustersim.report.dashboard import dashboard_html, write_dashboard
from clustersim.report.figures.layout import FIGURES
from clustersim.report.figures.series import batch_figure, kv_share, tokens_per_step
from clustersim.report.figures.style import CONFIG
from clustersim.report.folded.asked import Asked
from clustersim.units import format_seconds, plural

LAYOUT: dict[str, Any] = {"figures": [{"figure": name} for name in FIGURES]}
WHOLE: dict[str, Any] = {
    "end": 10**9, "rows": [[0, 0]], "devices": ["</script><script>alert(2)</script>"], "streams": ["compute"],
    "sections": {}, "windows": None, "link_load": None, "faults": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return small_run(requests=40)


def page_of(run: dict[str, Any], **changes: Any) -> str:
    summary = {**summary_of(run), **changes}
    return dashboard_html(summary, run["requests"], run["steps"], WHOLE, LAYOUT, token_gaps=run["token_gaps"])


def own_part(page: str) -> str:
    """The page without plotly.js, which is one script of four megabytes."""
    return re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.usefixtures("checked_figures")
def test_the_same_run_gives_the_same_bytes(run: dict[str, Any]) -> None:
    assert page_of(run) == page_of(run)


def test_the_page_loads_nothing(run: dict[str, Any]) -> None:
    page = page_of(run)
    assert page.count("plotly.js v") == 1
    own = own_part(page)
    assert len(own) < 1_000_000
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)""", own) == []
    assert re.findall(r"https?:", own) == []
    assert "default-src 'none'" in own
    assert (CONFIG["showSendToCloud"], CONFIG["plotlyServerURL"], CONFIG["displaylogo"]) == (False, "", False)


def test_texts_of_the_data_stay_texts(run: dict[str, Any]) -> None:
    evil = "</script><script>alert(1)</script>"
    assert "<script>alert" not in page_of(run, name=evil, scenario={"model": evil}, seed=evil)


def test_what_is_asked_for_comes_first_and_is_told_at_the_top(run: dict[str, Any]) -> None:
    def titles(**asked: Any) -> tuple[list[str], str]:
        page = own_part(
            dashboard_html(summary_of(run), run["requests"], run["steps"], WHOLE, LAYOUT, wanted=Asked(**asked))
        )
        return re.findall(r'id="of-figure-\d+"><h2>(.*?)</h2>', page), page

    plain, page = titles()
    assert plain[0] == "What requests waited for, and what they got"
    assert "remarks asked" not in page
    of_request, page = titles(request=7)
    assert of_request[0] == "Requests, one by one"
    assert sorted(of_request) == sorted(plain)
    one = {name: values[7] for name, values in run["requests"].items()}
    told = f'<a href="#of-figure-1">Request 7</a>: {plural(int(one["prompt_tokens"]), "prompt token")}, '
    assert page.index(told) < page.index('class="tiles"') < page.index('id="of-figure-1"')
    took = format_seconds((one["first_token_ns"] - one["arrived_ns"] + one["front_end_ns"]) / 1e9)
    assert f"first token after {took}" in page
    at, page = titles(at_ns=10**9)
    assert at == plain
    assert '<a href="#of-figure-2">At 1 s</a>: devices, links and requests show the second around it first.' in page


def test_wall_time_does_not_enter_the_page(run: dict[str, Any]) -> None:
    assert page_of(run) == page_of(run, wall_s={"total": 99.0, "simulate": 98.0})


def test_a_missed_target_says_so(run: dict[str, Any]) -> None:
    assert '<td class="missed">missed</td>' in page_of(run, targets={"ttft": "1 ms"})
    assert '<td class="met">met</td>' in page_of(run, targets={"ttft": "1 h"})


def test_the_badge_names_the_levels_that_were_asked(run: dict[str, Any]) -> None:
    whole = {"P": "legal", "G": "legal", "T": "legal"}
    assert '<span class="badge legal">legal: plan, graph and timeline</span>' in page_of(run, legality=whole)
    del whole["T"]
    badge = '<span class="badge partly">plan and graph legal, timeline not audited</span>'
    assert badge in page_of(run, legality=whole)


def test_an_illegal_run_is_marked(run: dict[str, Any]) -> None:
    page = page_of(run, legal=False)
    assert '<span class="badge illegal">' in page
    assert "broke legality rules" in page


def test_a_run_in_which_nothing_happened_still_has_a_page() -> None:
    nothing = {
        table: {name: column[:0] for name, column in columns.items()}
        for table, columns in small_run(requests=2).items()
        if table != "token_gaps"
    }
    summary = summary_of({**nothing, "token_gaps": None})
    page = dashboard_html(summary, nothing["requests"], nothing["steps"], None, LAYOUT)
    assert own_part(page).count('class="empty"') == len(FIGURES) - 1


@pytest.mark.parametrize(("later_ns", "words"), [(0, "RUN --max-page SIZE makes one"), (1 << 52, "more than 52 days")])
def test_a_run_that_is_too_long_for_a_page_says_so(run: dict[str, Any], later_ns: int, words: str) -> None:
    steps = {**run["steps"], "end_ns": run["steps"]["end_ns"] + later_ns}
    page = dashboard_html(summary_of(run), run["requests"], steps, None, LAYOUT, kv_rows=run["steps"])
    assert own_part(page).count(words) == 2


def test_a_long_run_stays_small() -> None:
    """A million steps and requests: every series is binned, so the file hardly grows."""
    many = 1_000_000
    each = {name: np.resize(column, many) for name, column in small_run(requests=40)["requests"].items()}
    each["arrived_ns"] = np.arange(many) * 10**6
    for name in ("first_token_ns", "finished_ns"):
        each[name] = each["arrived_ns"] + 10.0**8
    steps = {name: np.resize(column, many) for name, column in small_run(requests=40)["steps"].items()}
    steps["start_ns"] = np.arange(many) * 10**6
    steps["end_ns"] = steps["start_ns"] + 10**6
    summary = summary_of({"requests": each, "steps": steps, "token_gaps": None})
    page = dashboard_html(summary, each, steps, WHOLE, LAYOUT)
    assert len(own_part(page)) < 600_000


def test_a_dashboard_is_written_whole(tmp_path: Any) -> None:
    write_dashboard(tmp_path / "dashboard.html", "<p>µ</p>")
    assert [path.name for path in tmp_path.iterdir()] == ["dashboard.html"]
    assert (tmp_path / "dashboard.html").read_text(encoding="utf-8") == "<p>µ</p>"


def test_tokens_per_step_weigh_every_step_alike() -> None:
    steps = {
        "start_ns": np.array([0, 90]),
        "end_ns": np.array([90, 100]),
        "count": np.array([3, 1]),
        "prefill_tokens": np.array([4, 8]),
    }
    assert tokens_per_step(steps, "prefill_tokens", np.array([0, 100])).mean.tolist() == [5.0]


def test_kv_share_is_over_the_blocks_of_all_replicas() -> None:
    steps = {
        "replica": np.array([0, 1]),
        "start_ns": np.array([0, 0]),
        "end_ns": np.array([10, 10]),
        "empties_ns": np.array([10, 10]),
        "kv_blocks_used": np.array([30, 10]),
        "kv_blocks_total": np.array([100, 60]),
    }
    assert kv_share(steps, np.array([0, 10])).mean.tolist() == [0.25]


def test_the_batch_of_each_pool_is_drawn_apart():
    steps = {
        "replica": np.array([0, 1]),
        "count": np.array([1, 1]),
        "start_ns": np.array([0, 0]),
        "end_ns": np.array([10, 10]),
        "empties_ns": np.array([10, 10]),
        "running": np.array([3, 40]),
        "waiting": np.array([5, 0]),
        "prefill_tokens": np.array([512, 0]),
        "decode_tokens": np.array([0, 40]),
    }
    pools = [{"name": "prefill", "replicas": 1}, {"name": "decode", "replicas": 1}]
    figure = checked(batch_figure(steps, pools, 1, 300))
    assert {trace.name: float(trace.y[0]) for trace in figure.data if trace.name} == {
        "prefill: running": 3,
        "prefill: waiting": 5,
        "prefill: prefill tokens": 512,
        "decode: running": 40,
        "decode: waiting": 0,
        "decode: decode tokens": 40,
    }


def test_the_tile_of_the_cache_says_whose_peak_it_is(run: dict[str, Any]) -> None:
    pools = [{"name": "prefill", "replicas": 1, "kv_peak": 0.25}, {"name": "decode", "replicas": 1, "kv_peak": 0.5}]
    assert "of a decode replica&#x27;s blocks; prefill 25%" in page_of(run, pools=pools)


def test_series_are_of_the_smallest_type(run: dict[str, Any]) -> None:
    figure = checked(batch_figure(run["steps"], (), 100, 300))
    assert {trace.y.dtype for trace in figure.data} == {np.dtype(np.float32)}
    assert len(figure.data[0].x) == 101
