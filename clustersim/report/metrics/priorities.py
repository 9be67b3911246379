"""Latencies by priority: what each class of requests got, where a workload tells how urgent its requests are.

The latencies are those of :mod:`clustersim.report.metrics.latencies`, over the finished requests of a class;
inter-token latencies are left out, since gaps are pooled over requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, Int64Array
from clustersim.report.metrics.latencies import Columns, latencies_ns, latency_summary
from clustersim.report.words.run import milliseconds

BY_CLASS: Final = ("ttft", "tpot", "e2e")
"""Latencies that are told by class."""
MOST_CLASSES: Final = 16
"""Classes that are told one by one, the most urgent first; a trace may have any number of them."""

_OTHERS: Final = "others"


def by_priority(requests: Columns, priorities: Int64Array | None) -> dict[str, Any] | None:
    """Return ``priorities`` of ``summary.json``: by priority, requests that arrived and finished, and latencies in ms.

    Parameters
    ----------
    requests : Columns
        The table of requests.
    priorities : int64 array or None
        Of each request of the workload, by its number: a smaller number goes first. None where it has none.

    Returns
    -------
    dict or None
        A smaller number first; beyond the sixteenth they are one class, ``others``. A latency that no finished
        request of a class defines is None.
    """
    if priorities is None:
        return None
    mine = priorities[np.asarray(requests["request"]).astype(np.int64)]
    told = np.unique(mine)
    classes = {str(one): mine == one for one in told[:MOST_CLASSES].tolist()}
    if len(told) > MOST_CLASSES:
        classes[_OTHERS] = mine > told[MOST_CLASSES - 1]
    return {
        name: _class({key: np.asarray(column)[rows] for key, column in requests.items()})
        for name, rows in classes.items()
    }


def _class(requests: Columns) -> dict[str, Any]:
    found = latencies_ns(requests)
    latencies = {
        f"{name}_ms": {key: value / NS_PER_MS for key, value in latency_summary(*found[name]).items()}
        if name in found
        else None
        for name in BY_CLASS
    }
    finished = int((np.asarray(requests["outcome"]).astype(str) == "finished").sum())
    return {"requests": {"arrived": len(requests["arrived_ns"]), "finished": finished}, **latencies}


def priority_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (class, its latencies in words), the most urgent first; nothing where no priorities are told."""
    return [(f"priority {name}" if name != _OTHERS else name, _words(one)) for name, one in _classes(summary)]


def priority_table(summary: Mapping[str, Any]) -> str:
    """Return the latencies by class as a table of HTML; empty where no priorities are told."""
    classes = _classes(summary)
    if not classes:
        return ""
    statistics = ("mean", "p50", "p99")
    head = "".join(f"<th>{name.upper()} {key}</th>" for name in BY_CLASS for key in statistics)
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{one["requests"]["finished"]:,} of {one["requests"]["arrived"]:,}</td>'
        + "".join(
            f"<td>{milliseconds((one[f'{latency}_ms'] or {}).get(key))}</td>"
            for latency in BY_CLASS
            for key in statistics
        )
        + "</tr>"
        for name, one in classes
    )
    return (
        '<h3>Latencies by priority (ms)</h3><table class="narrow classes"><thead>'
        f"<tr><th></th><th>finished</th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
        '<p class="note">A smaller number goes first where serving.order goes by priority.</p>'
    )


def _classes(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list((summary.get("priorities") or {}).items())


def _words(one: Mapping[str, Any]) -> str:
    counts = one["requests"]
    parts = [f"{counts['finished']:,} of {counts['arrived']:,} finished"]
    for name in BY_CLASS:
        latency = one[f"{name}_ms"]
        if latency is not None:
            parts.append(f"{name.upper()} p50 {milliseconds(latency['p50'])} (p99 {milliseconds(latency['p99'])})")
    return ", ".join(parts) + (" ms" if len(parts) > 1 else "")
