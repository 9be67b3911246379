"""One run of many: simulated by whoever is asked, and what is kept of it, as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.errors import ClustersimError, InputError
from clustersim.legality.rule import Verdict, together
from clustersim.report.files.run_directory import write_run
from clustersim.report.files.summary import summary_of
from clustersim.report.metrics.latencies import share_within, targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.queue import queue_numbers
from clustersim.simulation.audit import audit_run
from clustersim.simulation.legality import check_scenario, check_scenario_plan
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.workload.requests import Requests

Row = dict[str, Any]
"""``failed`` (why, or None) and ``numbers`` (dotted key of the summary → value) of a run."""

_PRICES: Final = KeptPrices()
"""What points have in common that this process simulates."""
_LEFT_OUT: Final = frozenset(("scenario", "devices", "targets", "name", "seed", "reasons", "legality"))


def run_point(
    scenario: Scenario,
    requests: Requests,
    audit: bool,
    folder: Path | None,
    layout: Mapping[str, Any] | None,
    above: int | None = None,
) -> Row:
    """Check and simulate a scenario, and return its row; whatever is wrong with it is in the row.

    ``cpu_s`` of the row is the CPU time that it took.

    Parameters
    ----------
    scenario : Scenario
    requests : Requests
        Those of the scenario.
    audit : bool
        Whether to check step graphs (G) and what was recorded (T), too; the plan (P) is checked always.
    folder : Path or None
        Where to write the run directory, with a dashboard of this ``layout``.
    above : int or None
        See :func:`clustersim.report.files.run_directory.write_run`.
    """
    started = time.process_time()
    row = _row(scenario, requests, audit, folder, layout, above)
    return {**row, "cpu_s": time.process_time() - started}


def _row(
    scenario: Scenario,
    requests: Requests,
    audit: bool,
    folder: Path | None,
    layout: Mapping[str, Any] | None,
    above: int | None,
) -> Row:
    try:
        verdict = check_scenario(scenario) if audit else check_scenario_plan(scenario)
        if verdict.violations:
            return _failed(_illegal(verdict))
        result = simulate(scenario, requests=requests, kept=_PRICES)
        if audit:
            verdict = together((verdict, audit_run(result)))
        summary = summary_of(result, verdict)
        if folder is not None and layout is not None:
            try:
                write_run(folder, result, summary, lambda: verdict, layout, above)
            except (InputError, OSError) as error:
                return of_machine(words_of(error) if isinstance(error, InputError) else f"cannot be written ({error})")
        failed = _illegal(verdict) if verdict.violations else None
        queue = queue_numbers(result.columns, scenario)
        numbers = {**numbers_of(summary), **_each_target(result), **_held(result), **queue}
        return {"failed": failed, "numbers": numbers}
    except MemoryError:
        return of_machine("out of memory")
    except ClustersimError as error:
        return _failed(words_of(error))
    except Exception as error:
        return _failed(f"a defect of clustersim: {type(error).__name__}: {error}")


def of_machine(why: str) -> Row:
    """Return the row of a run that failed for want of room: it is not kept, so that a second start tries it again."""
    return _failed(why) | {"again": True}


def words_of(error: ClustersimError) -> str:
    """Return what is wrong, in one line and without places in files."""
    if not isinstance(error, InputError):
        return " ".join(str(error).split())
    told = (f"{one.path}: {one.message}" if one.path else one.message for one in error.problems)
    return "; ".join(dict.fromkeys(told))


def numbers_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a summary, and its digests, by dotted key; lists by device, stage or link are left out."""
    plain = {key: value for key, value in summary.items() if key not in _LEFT_OUT}
    plain["pools"] = {one["name"]: one for one in summary.get("pools") or ()}
    return {**dict(_flat(plain)), "devices": len(summary["devices"])}


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, inside in value.items():
        if isinstance(inside, Mapping):
            yield from _flat(inside, f"{before}{key}.")
        elif isinstance(inside, bool | int | float) or key in ("digest", "timeline_digest"):
            yield f"{before}{key}", inside


def _each_target(result: RunResult) -> dict[str, float]:
    """Return the share of requests that met each target by itself, as ``met.ttft``, and of how many, as ``met_of``."""
    limits = {name: limit for name, limit in targets_ns(result.scenario.targets).items() if name != "itl"}
    shares = {f"met.{name}": share_within(result.columns, {name: limit}) for name, limit in limits.items()}
    of = {"met_of": int(np.count_nonzero(result.columns["output_tokens"]))} if shares else {}
    return {key: share for key, share in shares.items() if share is not None} | of


def _held(result: RunResult) -> dict[str, float]:
    """Return the most K/V blocks that a replica of each pool had in use, as ``kv_held.decode`` or ``kv_held.all``."""
    rows, pools = result.step_rows.kv_rows, result.scenario.pools
    of = result.timeline.layout.of_replica(rows["replica"])
    return {
        f"kv_held.{pool.name if len(pools) > 1 else 'all'}": float(rows["kv_blocks_used"][of == number].max(initial=0))
        for number, pool in enumerate(pools)
    }


def _illegal(verdict: Verdict) -> str:
    told = (f"{one.where}: {one.message}; {one.fix}".removesuffix("; ") for one in verdict.violations)
    return "illegal: " + "; ".join(f"{text} [{one.rule}]" for text, one in zip(told, verdict.violations, strict=True))


def _failed(why: str) -> Row:
    return {"failed": why, "numbers": {}}
