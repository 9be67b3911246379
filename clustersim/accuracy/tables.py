"""A scoreboard in words: tables for the page, the document and the terminal, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from clustersim.accuracy.order import Order
from clustersim.accuracy.origins import origins
from clustersim.accuracy.result import Result
from clustersim.accuracy.score import Score, Scoreboard, family_order, reasons
from clustersim.report.score_page import Dot, Table

_ERRORS: Final = ("figures", "expressed", "median", "p90", "bias", "left out")
_UNITS: Final = {"ms": ("ms", 1.0), "s": ("ms", 1e3), "us": ("ms", 1e-3)}
"""In which unit a chart shows a time, and what it is multiplied by."""


def summary_table(board: Scoreboard) -> Table:
    """Return the errors by family and quantity, those of all figures last."""
    rows = [(score.family, score.metric, *_errors(score)) for score in board.totals]
    return Table(
        title="By family",
        caption="The error of a figure is |predicted / measured − 1|, and 100 % where it can't be expressed. Bias is "
        "the geometric mean of predicted / measured over what is expressed, less one. Left out: the median without the "
        "constants of the engine where those were found with the family; as the median where none were. In their stead "
        "stands what is fitted to other figures, or was known before (`without` of the engine), else the nearest "
        "version in whose constants the family has no part, else `ideal`.",
        columns=("family", "metric", *_ERRORS),
        rows=[*rows, ("all", "", *_errors(board.overall))],
        numbers_from=2,
    )


def short_table(board: Scoreboard) -> Table:
    """Return the errors by quantity, with the family that is worst predicted, those of all figures last."""
    rows = []
    for one in board.metrics:
        worst = max((total for total in board.totals if total.metric == one.metric), key=lambda total: total.median)
        rows.append((one.metric, *_errors(one), f"{worst.family} {worst.median:.1%}"))
    return Table(
        title="By metric",
        caption=summary_table(board).caption,
        columns=("metric", *_ERRORS, "worst family, median"),
        rows=[*rows, ("all", *_errors(board.overall), "")],
        numbers_from=1,
    )


def tables(board: Scoreboard) -> tuple[Table, ...]:
    """Return all tables of a scoreboard, the summary first."""
    return (
        summary_table(board), _engine_table(board), _device_table(board), _order_table(board), _reason_table(board),
        _origin_table(board),
    )  # fmt: skip


def charts(board: Scoreboard) -> dict[str, list[Dot]]:
    """Return the dots of the scatter, by quantity and unit."""
    found: dict[str, list[Dot]] = {}
    for result in sorted(board.results, key=lambda result: (family_order(result.family), result.id)):
        if result.predicted is not None and result.measured is not None:
            unit, factor = _UNITS.get(result.unit, (result.unit, 1.0))
            found.setdefault(f"{result.quantity}, {unit}", []).append(
                Dot(
                    family=result.family,
                    measured=float(f"{result.measured * factor:.4g}"),
                    predicted=float(f"{result.predicted * factor:.4g}"),
                    words=words(result),
                )
            )
    return found


def words(result: Result) -> str:
    """Return what a figure is of, in a line."""
    parts = (result.metric, result.model, result.engine, result.device, result.parallel, result.workload)
    return " · ".join(part for part in (*parts, result.id) if part and part != "-")


def headline(board: Scoreboard) -> str:
    """Return the errors of all figures in a sentence."""
    score = board.overall
    ranks = _told(board.order)
    order = f"; order of plans {_mean(ranks):.2f} over {len(ranks)} workloads (Spearman)" if ranks else ""
    apart = f" ({score.held_out:.1%} without what was found with the family)" if score.held_out != score.median else ""
    return (
        f"{score.rows:,} measured figures, {score.expressed:,} expressed: error median {score.median:.1%}{apart}, "
        f"p90 {score.p90:.1%}{order}"
    )


def plain(board: Scoreboard, *, recorded: bool) -> dict[str, Any]:
    """Return a scoreboard as plain data for JSON.

    Parameters
    ----------
    board : Scoreboard
    recorded : bool
        Whether these are the results that ship, or were simulated now.
    """
    return {
        "recorded": recorded,
        "overall": _plain(board.overall, *_NUMBERS),
        "families": [_plain(score, "family", "engine", "metric", *_NUMBERS) for score in board.families],
        "totals": [_plain(score, "family", "metric", *_NUMBERS) for score in board.totals],
        "devices": [_plain(score, "family", "engine", "device", "metric", *_NUMBERS) for score in board.devices],
        "profiles": [
            {"engine": engine, "profile": profile, "rows": count}
            for (engine, profile), count in profiles(board.results).items()
        ],
        "order": [asdict(order) for order in board.order],
        "inexpressible": [
            {"family": family, "reason": reason, "rows": len(ids)}
            for (family, reason), ids in reasons(board.results).items()
        ],
        "constants": [asdict(origin) for origin in origins(board.results)],
        "points": [
            _plain(result, "id", "family", "metric", "unit", "profile", "measured", "predicted", "ratio", "reason")
            for result in board.results
        ],
    }


_NUMBERS: Final = ("rows", "expressed", "median", "p90", "bias", "held_out")


def _plain(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _errors(score: Score) -> tuple[str, ...]:
    bias = "–" if score.bias is None else f"{score.bias:+.1%}"
    return (
        f"{score.rows:,}",
        f"{score.expressed:,}",
        f"{score.median:.1%}",
        f"{score.p90:.1%}",
        bias,
        f"{score.held_out:.1%}",
    )


def profiles(results: Sequence[Result]) -> dict[tuple[str, str], int]:
    """Return how many figures are of an engine, by (engine as it is written, the profile that stands for it)."""
    return dict(sorted(Counter((one.engine, one.profile) for one in results if one.profile).items()))


def _engine_table(board: Scoreboard) -> Table:
    rows = [(engine, profile, f"{count:,}") for (engine, profile), count in profiles(board.results).items()]
    return Table(
        title="Engines",
        caption="Which profile of scenarios/engines stands for an engine as it is written.",
        columns=("engine", "simulated as", "figures"),
        rows=rows or [("–", "–", "0")],
        numbers_from=2,
    )


def _device_table(board: Scoreboard) -> Table:
    return Table(
        title="By engine and device",
        caption="The same, for each engine and device of a family.",
        columns=("family", "engine", "device", "metric", *_ERRORS),
        rows=[(one.family, one.engine, one.device, one.metric, *_errors(one)) for one in board.devices],
        numbers_from=4,
    )


def _order_table(board: Scoreboard) -> Table:
    groups: dict[tuple[str, str, str, str], list[Order]] = {}
    for order in board.order:
        groups.setdefault((order.family, order.engine, order.device, order.model), []).append(order)
    rows = [
        (*key, _counted(orders), str(len(orders)), *([f"{_mean(told):.2f}", f"{min(told):.2f}"] if told else "––"))
        for key, orders in groups.items()
        for told in [_told(orders)]
    ]  # fmt: skip
    return Table(
        title="Order of plans",
        caption="Spearman's correlation of ranks, predicted and measured, wherever several plans served one workload: "
        "1 where they are ranked as measured, 0 where a plan can't be expressed; left out, –, where all were measured "
        "alike: they have no order.",
        columns=("family", "engine", "device", "model", "plans", "workloads", "mean", "least"),
        rows=rows,
        numbers_from=5,
    )


def _told(orders: Iterable[Order]) -> list[float]:
    """Return the correlations of those orders that have one."""
    return [order.spearman for order in orders if order.spearman is not None]


def _counted(orders: Sequence[Order]) -> str:
    """Return the plans that these orders have, without their devices."""
    return ", ".join(sorted({plan.partition(" on ")[0] for order in orders for plan in order.plans}))


def _reason_table(board: Scoreboard) -> Table:
    rows = [(family, reason, str(len(ids))) for (family, reason), ids in reasons(board.results).items()]
    return Table(
        title="What can't be expressed",
        caption="Each of these figures counts as an error of 100 %.",
        columns=("family", "why", "figures"),
        rows=rows or [("–", "nothing", "0")],
        numbers_from=2,
    )


def _origin_table(board: Scoreboard) -> Table:
    return Table(
        title="How the constants were found",
        caption="No constant of a kernel or collective was fitted to a serving figure. Families are those with figures "
        "from the same publication. Beside an engine these are no prediction of it. Beside kernels and collectives "
        "they are other measurements that the same people published; only of F11 some are the very figures of the fit, "
        "as the file of the device says.",
        columns=("constants", "found by", "from", "error of the fit", "families from the same publication"),
        rows=[(one.constants, one.found_by, one.source, one.fit, ", ".join(one.families) or "none")
              for one in origins(board.results)],
        numbers_from=5,
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
