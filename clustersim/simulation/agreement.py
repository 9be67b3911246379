"""Whether what is said of a run is what its timeline says: values compared one by one, and tables row by row.

Of a run that has just been simulated, and of one that is read again, the same is compared: what became of each request
with what facts and tokens tell, and how many steps and operators there are. All figures of a summary follow from
these, from the timeline and from the scenario.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from clustersim.column import is_one, parts
from clustersim.legality.deployment import counted
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.memory import let_go
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

CLOSE: Final = 1e-9
"""Relative difference of two sums of the same numbers: machines may add them in another order."""
REQUESTS: Final = "requests.parquet"
SCENARIO: Final = "scenario.yaml"
EXPLAINED: Final = ("rejected", "cancelled", "lost")
"""Outcomes that have a reason."""
_NAMED: Final = 8
"""Of values that differ, how many more are named."""
_FIX: Final = "run the scenario again, or use what follows from the timeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many values of a file were compared, and the first one that is not what follows from the timeline.

    Parameters
    ----------
    rule : str
        The rule that asks for it: RUN-4 for the account of requests, RUN-5 for what else was recorded.
    file, what : str
        Of what the values are: ``requests.parquet``, ``12 requests``.
    looked_at : int
    violation : Violation or None
    """

    rule: Literal["RUN-4", "RUN-5"]
    file: str
    what: str
    looked_at: int
    violation: Violation | None


Compared = tuple[str, Any, Any]
"""Where a value is, what is said there, and what follows from the timeline."""


def of_a_run(said: Mapping[str, Any], follows: Mapping[str, Any], timeline: Timeline) -> tuple[Agreement, Agreement]:
    """Compare what is said of a run beside its timeline with that.

    Parameters
    ----------
    said, follows : mapping
        Column → values, a row per request that arrived, as they are told and as they follow
        (:func:`clustersim.simulation.recorded.request_columns`).
    timeline : Timeline
    """
    rows = counted(len(follows["request"]), "request")
    return (
        agreement("RUN-4", REQUESTS, rows, _requests(said, follows)),
        agreement("RUN-5", "timeline/templates.json", "counts", _head(timeline)),
    )


def _requests(said: Mapping[str, Any], follows: Mapping[str, Any]) -> Iterator[Compared]:
    yield from tables(said, follows)
    outcome, reason = follows["outcome"], said["reason"]
    if len(reason) == len(outcome):
        for some in parts(1 if is_one(reason) and is_one(outcome) else len(reason), 8):
            explained = np.isin(np.asarray(outcome[some], object), EXPLAINED)
            has = np.array([why is not None for why in reason[some]], bool)
            for row in (some.start + np.flatnonzero(has != explained))[:1].tolist():
                yield f"reason, row {row + 1}", reason[row], f"that it is {outcome[row]}"
                return


def _head(timeline: Timeline) -> Iterator[Compared]:
    yield "num_spans", timeline.num_spans, timeline.count_spans()
    yield "num_steps", timeline.num_steps, timeline.count_steps()


def with_agreements(verdict: Verdict, found: Sequence[Agreement]) -> Verdict:
    """Return a verdict together with what the files say otherwise; another scenario is told before what follows."""
    looked = {rule: sum(one.looked_at for one in found if one.rule == rule) for rule in ("RUN-4", "RUN-5")}
    told = [one.violation for one in found if one.violation is not None]
    causes = [one for one in told if one.where == SCENARIO]
    return Verdict(
        violations=(*causes, *verdict.violations, *(one for one in told if one not in causes)),
        rules=tuple(_looked_further(entry, looked.get(entry.id, 0)) for entry in verdict.rules),
    )


def _looked_further(entry: LookedAt, more: int) -> LookedAt:
    return replace(entry, looked_at=entry.looked_at + more)


def _by_timeline(where: str) -> str:
    del where
    return "the timeline says"


def agreement(
    rule: Literal["RUN-4", "RUN-5"],
    file: str,
    what: str,
    values: Iterator[Compared],
    by: Callable[[str], str] = _by_timeline,
) -> Agreement:
    """Compare values of a file; ``by`` says of a place who says what follows."""
    looked_at, odd = 0, []
    for where, said, follows in values:
        looked_at += 1
        if not same(said, follows):
            odd.append((where, said, follows))
    violation = None
    if odd:
        (where, said, follows), *more = odd
        named = ", ".join((*(one for one, _, _ in more[:_NAMED]), *("…" for _ in more[_NAMED:][:1])))
        others = f" (and {len(more):,} more {'differs' if len(more) == 1 else 'differ'}: {named})" if more else ""
        message = f"says {_shown(said)}, {by(where)} {_shown(follows)}{others}"
        violation = Violation(rule=rule, level="T", where=f"{file}, {where}", message=message, fix=_FIX)
    return Agreement(rule=rule, file=file, what=what, looked_at=looked_at, violation=violation)


def same(said: Any, follows: Any) -> bool:
    """Return whether a file says what follows; sums of numbers may differ by as much as machines may."""
    if isinstance(said, Mapping) and isinstance(follows, Mapping):
        return said.keys() == follows.keys() and all(same(said[key], follows[key]) for key in follows)
    if isinstance(said, float) and isinstance(follows, (int, float)):
        both_nan = math.isnan(said) and math.isnan(follows)
        return both_nan or math.isclose(said, follows, rel_tol=CLOSE)
    return type(said) is type(follows) and bool(said == follows)


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def tables(said: Mapping[str, Any], follows: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare a table row by row; of each column its first difference and how many values there are."""
    columns = list(follows)
    rows = len(follows[columns[0]]), len(said[columns[0]])
    yield "rows", rows[1], rows[0]
    count = min(rows)
    for name in columns:
        row = _first_difference(follows[name][:count], said[name][:count])
        if row is None:
            yield name, count, count
        else:
            yield f"{name}, row {row + 1}", _plain(said[name][row]), _plain(follows[name][row])
        let_go()


def _first_difference(mine: Any, other: Any) -> int | None:
    """Return the first row in which columns differ; NaN and NaN do not."""
    if is_one(mine) and is_one(other):
        mine, other = mine[:1], other[:1]
    for some in parts(len(mine), 8):
        one, two = np.asarray(mine[some]), np.asarray(other[some])
        differ = one != two
        if {one.dtype.kind, two.dtype.kind} in ({"f"}, {"f", "i"}) and differ.any():
            differ = differ & ~(np.isnan(one.astype(np.float64)) & np.isnan(two.astype(np.float64)))
        places = np.flatnonzero(differ)
        if len(places):
            return int(some.start) + int(places[0])
    return None


def _plain(value: Any) -> Any:
    found = value.item() if isinstance(value, np.generic) else value
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found
