"""A comparison in words and numbers, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any, Final

from clustersim.report.comparison.comparison import Cause, Comparison, largest
from clustersim.report.words.run import plan_words
from clustersim.scenario.schema import POOLS
from clustersim.scenario.text.flow import flow
from clustersim.units import plural

MOST_ROWS: Final = 20
Rows = list[tuple[str, ...]]


def number(value: float | None) -> str:
    """Return a number with as many digits as tell two of them apart; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def signed(a: float | None, b: float | None) -> str:
    """Return b less a with its sign, and what share of a that is."""
    if a is None or b is None:
        return "–"
    share = f" ({(b - a) / abs(a):+.1%})" if a else ""
    return f"{'+' if b > a else ''}{number(b - a)}{share}" if b != a else "="


def shown(value: Any, most: int = 60) -> str:
    """Return a value of a scenario, shortened."""
    text = "–" if value is None else value if isinstance(value, str) else flow(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def scenario_rows(found: Comparison) -> Rows:
    """Return what differs in the scenarios, in words; plans of one pool and of two as a whole."""
    rows: Rows = [(path, shown(one), shown(other)) for path, one, other in found.scenario]
    own = [f"plan.{name}" for name in POOLS]
    if not any(path in own and None in (one, other) for path, one, other in found.scenario):
        return rows
    first = next(at for at, (path, _, _) in enumerate(rows) if path.startswith("plan."))
    whole = ("plan", *(plan_words(entry.scenario.document["plan"]) for entry in (found.a, found.b)))
    return [*rows[:first], whole, *(row for row in rows[first:] if not row[0].startswith("plan."))]


def basis(found: Comparison) -> str:
    """Say over which requests causes were added up."""
    if not found.same_requests:
        return (
            "The workloads differ, so no request is compared with itself: means over all that finished, "
            f"{len(found.a.finished):,} and {len(found.b.finished):,}."
        )
    if not len(found.compared):
        return "No request finished in both runs."
    mean = found.difference_ns.sum() / len(found.compared) / 1e6
    both = f"{plural(len(found.compared), 'request')} finished in both; end to end {found.b.name} took"
    if not mean:
        return f"{both} as long on average."
    return f"{both} {number(abs(mean))} ms {'more' if mean > 0 else 'less'} on average, which these parts add up to."


def tables(found: Comparison, most: int = MOST_ROWS) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Return (what it is, columns, rows) of each table: what was changed, what came of it and why, and every figure."""
    a, b = found.a.name, found.b.name
    scenario = scenario_rows(found)
    rows: list[tuple[str, tuple[str, ...], Rows]] = [
        (
            _counted("Scenario", len(scenario), most),
            ("path", a, b),
            scenario[:most],
        )
    ]
    differing = [one for one in found.causes if one.a_ms or one.b_ms]
    causes = [(one.cause, one.kind, *_numbers(one)) for one in differing[:most]]
    if others := differing[most:]:
        a_ms, b_ms, a_first, b_first = map(fsum, zip(*map(_numbers, others), strict=True))
        causes.append((plural(len(others), "other"), "", a_ms, b_ms, a_first, b_first))
    rows.append(
        (
            f"Where the time goes, ms per request. {basis(found)}",
            ("cause", "kind", a, b, "difference", "of it in TTFT"),
            [
                (cause, kind, number(a_ms), number(b_ms), signed(a_ms, b_ms), _change(a_first, b_first))
                for cause, kind, a_ms, b_ms, a_first, b_first in causes
            ],
        )
    )
    if found.same_requests and found.difference_ns.any():
        listed = [(str(one["request"]), *_of_request(one)) for one in largest(found)]
        rows.append(("Requests that differ most, ms", ("request", a, b, "difference", "mostly"), listed))
    odd = [row for row in found.metrics if row[1] != row[2]]
    rows.append(
        (
            f"Figures: {len(odd)} of {len(found.metrics)} {'differs' if len(odd) == 1 else 'differ'}",
            ("figure", a, b, "difference"),
            [(name, number(one), number(other), signed(one, other)) for name, one, other in odd],
        )
    )
    return rows


def _numbers(one: Cause) -> tuple[float, float, float, float]:
    return one.a_ms, one.b_ms, one.a_ttft_ms, one.b_ttft_ms


def _change(a: float, b: float) -> str:
    return f"{'+' if b > a else ''}{number(b - a)}" if b != a else "="


def _of_request(row: dict[str, Any]) -> Sequence[str]:
    return (number(row["a_ms"]), number(row["b_ms"]), signed(row["a_ms"], row["b_ms"]), str(row["cause"]))


def _counted(what: str, many: int, most: int) -> str:
    if not many:
        return f"{what}: no difference"
    return f"{what}: {many} {'value' if many == 1 else 'values'}" + (f", the first {most}" if many > most else "")
