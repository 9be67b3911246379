"""What each limit of a scenario costs, for programs and notebooks."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from html import escape
from pathlib import Path

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.files import written_whole
from clustersim.library.arguments import parameters, path_given, text_given
from clustersim.report.layouts import layout as read
from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.why.lifted import METRICS, Lifted, misses
from clustersim.report.why.page import check_layout, shown, why_html
from clustersim.scenario.load import build_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.search.lifts import NAMES
from clustersim.search.point import Row, run_point
from clustersim.search.why import lifted_limits
from clustersim.serving.user_class import code_allowed
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Why:
    """The limits of a scenario, ranked by what it gains without each.

    Parameters
    ----------
    name : str
    baseline : mapping
        Key of the summary → value as the scenario is; None where it is not defined.
    limits : tuple of Lifted
        Each with ``limit`` in words, ``key``, ``metrics``, ``gains`` (relative; above 0 is better) and ``enough``.
    targets : mapping
        Latency → target in ns.
    """

    name: str
    baseline: Mapping[str, float | None]
    limits: tuple[Lifted, ...]
    targets: Mapping[str, float] = field(default_factory=dict)

    def page(self, path: str | Path, layout: str = "why") -> Path:
        """Write the page with a tornado plot, and return its path; see :meth:`clustersim.Result.dashboard`."""
        file = path_given("path", path)
        with parameters():
            panels = read(text_given("layout", layout))
        check_layout(panels)
        with written_whole(file) as beside:
            beside.write_text(
                why_html(self.name, self.baseline, list(self.limits), panels, self.targets), encoding="utf-8"
            )
        return file

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [("as it is", "", *self._cells(self.baseline))]
        helps = [one for one in self.limits if one.binds]
        return rows + [(one.limit, one.key, *self._cells(one.metrics)) for one in helps]

    def _cells(self, metrics: Mapping[str, float | None]) -> list[str]:
        missed = {name: misses(name, metrics[name], self.targets) for name in METRICS}
        return [shown(metrics[name]) + " (missed)" * missed[name] for name in METRICS]

    def __repr__(self) -> str:
        helps = [f"{one.limit} ({one.key}) helps {math.exp(one.best):.3g} times" for one in self.limits if one.binds]
        return f"<Why {self.name} is as it is: {'; '.join(helps) or 'no limit binds'}>"

    def _repr_html_(self) -> str:
        head = ("limit", "key", *(words for words, _ in METRICS.values()))
        lines = [f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr>"]
        lines += [f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in self._rows()]
        return f"<b>{escape(self.name)}</b>: what each limit costs<table>{''.join(lines)}</table>"


def why_of(scenario: Scenario, requests: Requests, allow_code: bool | None, only: Collection[str] = ()) -> Why:
    """Simulate a scenario as it is, and with one limit lifted at a time.

    Parameters
    ----------
    scenario : Scenario
    requests : Requests
        Those of the scenario.
    allow_code : bool or None
        See :func:`clustersim.load`.
    only : collection of str
        Of ``NAMES``: which limits; all where there is none.

    Raises
    ------
    InputError
        For what is none of them.
    """
    if isinstance(only, str):
        only = (only,)
    if not isinstance(only, Collection):
        raise TypeError(f"only: expected some of {', '.join(NAMES)}, but found {only!r}")
    if odd := [one for one in only if one not in NAMES]:
        message = f"{odd[0]!r} is no limit{did_you_mean(str(odd[0]), NAMES)}"
        raise InputError(Problem(path="only", message=message))
    document, allowed = scenario.origin, code_allowed(allow_code)

    def rows(all_changes: Sequence[Sequence[str]]) -> list[Row]:
        found = []
        for changes in all_changes:
            changed = apply_overrides(document, (*changes, "expect={}"), SHORTHANDS)
            variant = build_scenario(replace(changed, data=copy.deepcopy(changed.data)), allow_code=allowed)
            found.append(run_point(variant, requests, False, None, None))
        return found

    first, limits = lifted_limits(scenario, len(requests), rows, only)
    return Why(
        name=scenario.name,
        baseline={name: first["numbers"].get(name) for name in METRICS},
        limits=tuple(limits),
        targets=targets_ns(scenario.targets),
    )
