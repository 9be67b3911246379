"""How a broken rule can be mended: candidate changes, and the deployment that each would make.

A rule names candidates; :mod:`clustersim.legality.check` runs the rules again on each before it offers one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import gcd
from typing import Any, Final

from clustersim.legality.deployment import Deployment
from clustersim.legality.rule import Change
from clustersim.plan.parallel import Cut
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One change that may mend a fault.

    Parameters
    ----------
    text : str
        How the fix names it, after "use".
    change : Change
    distance : float
        How far it is from what the plan has; of several that would do, the nearest is taken.
    kind : str
        Of several of one kind, only the first that would do is offered; empty: each is.
    last_resort : bool
        Offered only when nothing before it would do.
    """

    text: str
    change: Change
    distance: float = 0.0
    kind: str = ""
    last_resort: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a rule found wrong: where, what, the candidates that may mend it, and a word when none does."""

    where: str
    message: str
    advice: str
    repairs: Callable[[], Iterable[Repair]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says of a deployment: its faults, and how much it looked at."""

    looked_at: int
    faults: tuple[Fault, ...] = ()


def _tuple_of_cuts(value: Any) -> tuple[Cut, ...] | None:
    if value == "balanced":
        return None
    pairs = [str(cut).partition(".") for cut in value["cuts"]]
    return tuple(Cut(layer=int(layer), before="ffn" if part == "ffn" else "attention") for layer, _, part in pairs)


_PLAN: Final[dict[str, Callable[[Any], Any]]] = {
    "plan.dp": int,
    "plan.pp": int,
    "plan.devices": int,
    "plan.stages": _tuple_of_cuts,
    "plan.placement": lambda value: None if value == "packed" else tuple(value),
}
_PARTS: Final = ("plan.sp.", "plan.ep.")


def changed(deployment: Deployment, change: Change) -> Deployment:
    """Return the deployment with every (path, value) of a change applied, as ``--set`` would."""
    plan = deployment.plan
    for path, value in change:
        head, _, name = path.rpartition(".")
        if path in _PLAN:
            plan = replace(plan, **{name: _PLAN[path](value)})
        elif path == "plan.tp.degree":
            plan = replace(plan, tp=value)
        elif head == "plan.tp":
            plan = replace(plan, split=replace(plan.split, **{name: value}))
        elif f"{head}." in _PARTS:
            part = head.removeprefix("plan.")
            value = None if path == "plan.ep.routing" else value  # the only one that a rule proposes: balanced
            plan = replace(plan, **{part: replace(getattr(plan, part), **{name: value})})
        elif head == "serving":
            deployment = replace(deployment, limits=replace(deployment.limits, **{name: value}))
        elif head == "precision":
            deployment = replace(deployment, precision=replace(deployment.precision, modules=(), **{name: value}))
        else:
            raise ValueError(f"no rule proposes to change {path}")
    return deployment if plan is deployment.plan else replace(deployment, plan=plan.settled())


_DEGREES: Final = {
    "dp": "plan.dp",
    "pp": "plan.pp",
    "tp": "plan.tp.degree",
    "sp": "plan.sp.degree",
    "ep": "plan.ep.degree",
}


def degree_change(deployment: Deployment, **degrees: int) -> Change:
    """Return the change to these degrees, and what must follow it.

    An ep that no longer divides the ranks shrinks to what does, and explicit lists that belong to the old degrees
    go back to their default.
    """
    plan = deployment.plan
    after = {"dp": plan.dp, "tp": plan.tp, "sp": plan.sp.degree, "ep": plan.ep.degree} | degrees
    ranks = after["sp"] * after["tp"] * (after["dp"] if plan.ep.scope == "global" else 1)
    if "ep" not in degrees and after["ep"] > 1 and ranks % after["ep"]:
        degrees["ep"] = gcd(after["ep"], ranks)
    change: list[tuple[str, Any]] = [(_DEGREES[name], degree) for name, degree in degrees.items()]
    if "pp" in degrees and plan.stages is not None:
        change.append(("plan.stages", "balanced"))
    if "ep" in degrees and isinstance(plan.ep.placement, tuple):
        change.append(("plan.ep.placement", "contiguous"))
    if degrees.get("ep") == 1 and plan.ep.routing is not None:
        change.append(("plan.ep.routing", "balanced"))
    if "ep" in degrees and (copies := _nearest_copies(deployment, degrees["ep"])) != plan.ep.redundant:
        change.append(("plan.ep.redundant", copies))
    if degrees.get("ep") == 1 and plan.ep.overlap != "none":
        change.append(("plan.ep.overlap", "none"))
        least = ("overlap_decode_tokens", "overlap_prefill_tokens")
        change += [(f"plan.ep.{name}", 0) for name in least if getattr(plan.ep, name)]
    if degrees.get("ep") == 1 and plan.ep.exchange != "all_to_all" and not plan.ep.exchange_by_engine:
        change.append(("plan.ep.exchange", "all_to_all"))
        change += [("plan.ep.dispatch", None)] if plan.ep.dispatch is not None else []
    if plan.placement is not None and set(degrees) - {"ep"}:
        change.append(("plan.placement", "packed"))
    return tuple(change)


def _nearest_copies(deployment: Deployment, ep: int) -> int:
    """Return the copies of experts that ``ep`` ranks have in equal numbers, none of them two of one expert."""
    most = min((moe.num_experts for moe in deployment.moes), default=0) * (ep - 1)
    return min(deployment.plan.ep.redundant, most) // ep * ep


def degree_repairs(deployment: Deployment, name: str, values: Iterable[int], now: int) -> Iterable[Repair]:
    """Yield a repair for each value of one degree; the nearest to ``now`` is preferred, the smaller of two."""
    for value in values:
        change = degree_change(deployment, **{name: value})
        more = [_change_word(path, new) for path, new in change[1:]]
        text = f"{value} (with {' and '.join(more)})" if more else str(value)
        yield Repair(text=text, change=change, distance=abs(value - now))


def degree_words(change: Change) -> str:
    """Return how a fix names a change of degrees: ``plan.tp 4 with plan.pp 2``."""
    first, *more = [_change_word(path, value) for path, value in change]
    return f"{first} with {' and '.join(more)}" if more else first


def _change_word(path: str, value: Any) -> str:
    return f"{path.removesuffix('.degree')} {'null' if value is None else value}"
