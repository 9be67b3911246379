"""Two runs laid side by side: scenario, figures of the summary, requests, and causes that add up to the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, Int64Array
from clustersim.errors import InputError, Problem
from clustersim.report.comparison.entries import Entry
from clustersim.simulation.comparison import differences, same_requests
from clustersim.values import dataclass

NO_FIGURES: Final = ("seed", "wall_s", "scenario", "devices", "legality")
FIRST: Final = (
    "requests", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_queueing_ms", "ttft_prefill_ms", "user_tokens_per_s",
    "throughput", "goodput", "targets", "makespan_s", "utilisation", "batch", "kv_occupancy", "preempted", "energy",
    "cost",
)  # fmt: skip
"""Figures of the summary in the order in which a run prints them; others follow as they are in it."""
LAST: Final = ("steady", "causes")
"""What says some of it again: rates of a part of the run, and shares of what the causes have in milliseconds."""
MOST: Final = 10**300
"""No figure of a run is as large; what is was not written by one."""
MOST_REQUESTS: Final = 10
"""Requests that are listed, those that differ most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What a part of the time of all compared requests was: in run a, and in run b.

    ``a_ns`` and ``b_ns`` are sums over requests, ``a_ms`` and ``b_ms`` means; ``a_ttft_ms`` and ``b_ttft_ms`` what of
    these lies before the first token.
    """

    cause: str
    kind: str
    a_ns: int
    b_ns: int
    a_ms: float
    b_ms: float
    a_ttft_ms: float
    b_ttft_ms: float

    @property
    def difference_ms(self) -> float:
        """Mean difference of a request."""
        return self.b_ms - self.a_ms


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Run b beside run a.

    Parameters
    ----------
    a, b : Entry
    scenario : list of (path, a, b)
    metrics : list of (name, a, b)
        Every number of both summaries; None where one of them has none.
    same_requests : bool
        Whether both ran the same requests; only then each is compared with itself.
    compared : int64 array
        These requests: those that finished in both.
    difference_ns : int64 array of shape (compared requests,)
        End-to-end latency in b less that in a.
    causes : list of Cause
        By how much they differ. Over the same requests they add up to the sum of ``difference_ns``, to the nanosecond.
    """

    a: Entry
    b: Entry
    scenario: list[tuple[str, Any, Any]]
    metrics: list[tuple[str, float | None, float | None]]
    same_requests: bool
    compared: Int64Array
    difference_ns: Int64Array
    causes: list[Cause]


def compare(a: Entry, b: Entry) -> Comparison:
    """Lay two runs side by side."""
    same = same_requests(a.arrivals, b.arrivals)
    compared = np.intersect1d(a.finished, b.finished, assume_unique=True) if same else np.empty(0, np.int64)
    chosen = [one.rows_of(compared if same else one.finished) for one in (a, b)]
    of = [one.causes.ns[which] for one, which in zip((a, b), chosen, strict=True)]
    totals = [
        {
            label: (whole, first)
            for label, whole, first in zip(
                one.causes.labels,
                ns.sum(axis=0).tolist(),
                one.causes.to_first_ns[which].sum(axis=0).tolist(),
                strict=True,
            )
        }
        for one, ns, which in zip((a, b), of, chosen, strict=True)
    ]
    many = [max(1, len(which)) * NS_PER_MS for which in chosen]
    causes = []
    for label in dict.fromkeys((*totals[0], *totals[1])):
        (a_ns, a_first), (b_ns, b_first) = (total.get(label, (0, 0)) for total in totals)
        if a_ns or b_ns:
            causes.append(
                Cause(
                    cause=label[0],
                    kind=label[1],
                    a_ns=a_ns,
                    b_ns=b_ns,
                    a_ms=a_ns / many[0],
                    b_ms=b_ns / many[1],
                    a_ttft_ms=a_first / many[0],
                    b_ttft_ms=b_first / many[1],
                )
            )
    causes.sort(key=lambda one: (-abs(one.difference_ms), one.cause))
    return Comparison(
        a=a,
        b=b,
        scenario=differences(a.scenario, b.scenario),
        metrics=list(_metrics(a.summary, b.summary)),
        same_requests=same,
        compared=compared,
        difference_ns=of[1].sum(axis=1) - of[0].sum(axis=1) if same else np.empty(0, np.int64),
        causes=causes,
    )


def _metrics(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None]]:
    one, other = dict(_numbers(a)), dict(_numbers(b))
    for name in sorted(dict.fromkeys((*one, *other)), key=_place):
        yield name, one.get(name), other.get(name)


def _place(name: str) -> int:
    head = name.partition(".")[0]
    return FIRST.index(head) if head in FIRST else len(FIRST) + (1 + LAST.index(head) if head in LAST else 0)


def _numbers(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and (path or key not in NO_FIGURES):
            yield from _numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (path or key not in NO_FIGURES):
            if not -MOST < value < MOST:
                message = f"expected a number between -1e300 and 1e300, but found {str(value)[:30]}"
                raise InputError(Problem(file="summary.json", path=f"{path}{key}", message=message))
            yield f"{path}{key}", value


def largest(found: Comparison, most: int = MOST_REQUESTS) -> list[dict[str, Any]]:
    """Return the requests whose latency differs most, each with the cause that differs most."""
    order = np.argsort(-np.abs(found.difference_ns), kind="stable")[:most]
    labels = list(dict.fromkeys((*found.a.causes.labels, *found.b.causes.labels)))
    rows = []
    for at in order.tolist():
        request = int(found.compared[at])
        own = [
            dict(zip(one.causes.labels, one.causes.ns[one.rows_of(found.compared[at])].tolist(), strict=True))
            for one in (found.a, found.b)
        ]
        changes = {label: own[1].get(label, 0) - own[0].get(label, 0) for label in labels}
        most_changed = max(changes, key=lambda label: abs(changes[label]))
        a_ns, b_ns = (sum(part.values()) for part in own)
        rows.append(
            {
                "request": request,
                "a_ms": a_ns / NS_PER_MS,
                "b_ms": b_ns / NS_PER_MS,
                "difference_ms": (b_ns - a_ns) / NS_PER_MS,
                "cause": most_changed[0],
            }
        )
    return rows


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return everything as plain data."""
    causes = [
        {
            "cause": one.cause,
            "kind": one.kind,
            "a_ms": one.a_ms,
            "b_ms": one.b_ms,
            "difference_ms": one.difference_ms,
            "a_ns": one.a_ns,
            "b_ns": one.b_ns,
            "a_ttft_ms": one.a_ttft_ms,
            "b_ttft_ms": one.b_ttft_ms,
            "difference_ns": one.b_ns - one.a_ns if found.same_requests else None,
        }
        for one in found.causes
    ]
    metrics = [
        {"name": name, "a": a, "b": b, "difference": None if a is None or b is None else b - a}
        for name, a, b in found.metrics
    ]
    return {
        "a": found.a.given,
        "b": found.b.given,
        "names": [found.a.name, found.b.name],
        "scenario": [{"path": path, "a": a, "b": b} for path, a, b in found.scenario],
        "metrics": metrics,
        "requests": {
            "same": found.same_requests,
            "finished": {"a": len(found.a.finished), "b": len(found.b.finished)},
            "compared": len(found.compared),
            "difference_ns": int(found.difference_ns.sum()) if found.same_requests else None,
            "largest": largest(found) if found.same_requests else [],
        },
        "causes": causes,
    }
