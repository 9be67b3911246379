"""What the page of a search at one rate shows."""

from __future__ import annotations

import math

from clustersim.report.search.searched import Plan, Searched
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.files import LAUNCHED, legal_words, search_command
from clustersim.search.plans.fixed.result import NO_SHARE, Fixed, rate_words
from clustersim.search.plans.front.points import Point
from clustersim.search.plans.launches import launch_words, not_started
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import Question
from clustersim.search.plans.standings import PARTITIONS, metrics
from clustersim.units import format_asked, format_share, plural


def fixed_searched_of(found: Fixed, deployments: Deployments, question: Question) -> Searched:
    """Return what the page of a search at one rate shows."""
    front, ties = found.front(), {id(one) for one in found.ties}
    on_front = {id(one.standing) for one in front}
    counting = {id(one): at for at, one in enumerate(found.ranked)}
    plans = []
    for one in sorted(found.standings, key=lambda one: (counting.get(id(one), math.inf), one.fate, one.words)):
        counts = id(one) in counting
        reached = found.value(one) if counts else None
        near = "" if reached is None else f"{reached - found.value(found.best):+.4g} against the best"
        row = one.row if one.fate == "simulated" else None
        point = None if row is None else Point(standing=one, step=0, row=row)
        plans.append(
            Plan(
                words=one.words,
                devices=one.candidate.devices,
                usd_per_hour=question.room.cost(one.candidate),
                fate="best" if one is found.best else "tie" if id(one) in ties else one.fate,
                why=near if counts and one is not found.best else _fixed_why(one),
                bound=None,
                reached=reached,
                requests_per_s=None if row is None else row["numbers"].get("throughput.requests_per_s"),
                numbers=metrics(one, row),
                tokens_per_device=None if point is None else point.per_device,
                tokens_per_user=None if point is None else point.user_rate,
                on_front=id(one) in on_front,
                stands_for=one.same * one.partitions,
                at_length=None if reached is None else True,
                command=search_command(found, deployments, one, None),
                launches_for=launch_words(deployments, one) if counting.get(id(one), LAUNCHED) < LAUNCHED else None,
            )
        )
    return Searched(
        name=deployments.base.name,
        unit=found.objective,
        subtitle=f"{legal_words(found, question)}; best by {found.objective}: {found.best.words}"
        + not_started(deployments, found, "; "),
        plans=plans,
        front=found.drawn(),
        certificate=_fixed_sentences(found),
        at=rate_words(found.rate_per_s),
        is_fixed=True,
    )


def _fixed_why(one: Standing) -> str:
    if one.fate == "pruned":
        return f"proven: {one.why}"
    if one.why == NO_SHARE and one.row is not None:
        return f"{one.why}: {format_share(one.row['numbers'].get('goodput.share', 0.0))}"
    return one.why


def _fixed_sentences(found: Fixed) -> list[str]:
    told = found.certificate()
    lines = [
        f"The best plan has {found.objective} {found.value(found.best):.6g} ({found.direction}) at "
        f"{rate_words(found.rate_per_s)}; it "
        "and those that tie were simulated again and checked (rules of level P, G and T).",
        f"{told['legal']:,} plans are legal; {told['simulated']:,} were simulated once, with the scenario's requests.",
    ]
    reasons = told["pruned"].items()
    lines += [f"{count:,} are left out{'' if why == PARTITIONS else ', proven'}: {why}." for why, count in reasons]
    if found.share is not None and told["too_few_in_time"]:
        lines.append(
            f"Of {told['too_few_in_time']:,} too few requests meet their targets (asked: {format_asked(found.share)}): "
            "they don't count."
        )
    if told["open"]:
        were = plural(told["open"], "plan was", "plans were")
        lines.append(f"{were} not simulated, since the effort was spent (more --effort goes on).")
    lines += [f"{reason}: {plural(count, 'plan')}." for reason, count in told["failed"].items()]
    if found.unreached is not None:
        lines.insert(0, f"Not reached: {found.unreached.problems[0].message}.")
    return [*lines, *(f"Uncertain: {text}." for text in told["uncertain"])]
