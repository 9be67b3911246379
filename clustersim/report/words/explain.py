"""How a run was replayed: what was folded and what was not, and why; and in how many processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.replay import ReplayResult
from clustersim.report.words.run import number
from clustersim.units import plural

_MOST_PLACES: Final = 20


def explanation_of(replayed: ReplayResult, plans: Sequence[ParallelPlan]) -> dict[str, Any]:
    """Return the object ``explain`` of ``clustersim run --explain --json``.

    ``by`` says whether the core simulated steps by itself or events did, and ``obstacle`` why these. ``runs`` of
    equal steps stand for all ``steps``. Of the ``passes`` of a stage in a step, ``stretched`` took longer than alone.
    """
    timeline, contention = replayed.timeline, replayed.contention
    return {
        "by": "events" if replayed.obstacle else "core",
        "obstacle": replayed.obstacle,
        "steps": timeline.num_steps,
        "runs": len(timeline.steps["count"]),
        "passes": int(timeline.passes["steps"].sum()),
        "stretched": int(np.count_nonzero(timeline.passes["irregular"] >= 0)),
        "stages": sum(plan.dp * plan.pp for plan in plans),
        "stages_that_can_be_disturbed": len(contention.stages),
        "boundaries": sum(plan.dp * (plan.pp - 1) for plan in plans),
        "boundaries_that_can_be_disturbed": len(contention.boundaries),
        "meetings": list(contention.shared),
        "processes": replayed.processes,
        "undivided": replayed.undivided,
    }


def explanation_lines(explained: Mapping[str, Any]) -> list[str]:
    """Return the same in sentences."""
    if explained["obstacle"]:
        lines = [f"replayed by events: {explained['obstacle']}"]
    else:
        disturbed = "only its own sends and collectives, or K/V on its way, disturb a replica, so passes that meet none"
        who = disturbed if explained["meetings"] else "nothing disturbs a replica, so steps"
        lines = [f"replayed by the core: {who} are sums of prices and need no events"]
    steps, runs = explained["steps"], explained["runs"]
    each = f", {number(steps / runs, 3)} each" if runs else ""
    lines.append(f"folded: {plural(steps, 'step')} in {plural(runs, 'run')} of equal steps{each}")
    if explained["boundaries"] and not explained["obstacle"]:
        lines[-1] = f"folded: {plural(steps, 'step')}; all instants of a micro-batch are worked out when it is launched"
    lines.append(f"stretched: {explained['stretched']:,} of {plural(explained['passes'], 'pass', 'passes')}")
    meetings = explained["meetings"]
    if meetings:
        parts = [f"{explained['stages_that_can_be_disturbed']:,} of {plural(explained['stages'], 'stage')}"]
        if explained["boundaries"]:
            count = plural(explained["boundaries"], "boundary", "boundaries")
            parts.append(f"{explained['boundaries_that_can_be_disturbed']:,} of {count}")
        lines.append(f"can be disturbed: {' and '.join(parts)}")
        lines.extend(f"  {meeting}" for meeting in meetings[:_MOST_PLACES])
        if len(meetings) > _MOST_PLACES:
            lines.append(f"  … and {plural(len(meetings) - _MOST_PLACES, 'more meeting')}")
    as_asked = explained["undivided"] == "no more were asked for"
    lines.append(
        f"processes: {explained['processes']}, {'as asked' if as_asked else 'since ' + explained['undivided']}"
    )
    return lines
