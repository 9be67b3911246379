"""A small model on few devices, and what a search of its plans needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clustersim.limits import Limits
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import Question
from clustersim.search.plans.room import room_of
from clustersim.search.plans.search import Search
from clustersim.search.runs import Variants
from clustersim.search.varied import varied_of

SMALL = """
name: small
seed: 3
topology: {name: dgx-h100, nodes: 1}
model: llama-2-7b
plan: {tp: 1}
serving: {max_batch_tokens: 1024, max_batch_requests: 32}
workload:
  arrivals: {process: poisson, rate: 20/s}
  prompt_tokens: {uniform: {low: 200, high: 1200}}
  output_tokens: {uniform: {low: 5, high: 40}}
  requests: 40
targets: {ttft: 300 ms, tpot: 25 ms}
"""


def deployments(folder: Path, text: str = SMALL, *, devices: int, knobs: tuple[str, ...] = ()) -> Deployments:
    """Return what builds the plans of a scenario on so many devices."""
    path = folder / "small.yaml"
    path.write_text(text)
    variants = Variants(str(path), limits=Limits(memory_bytes=8e9, seconds=1e4))
    _, always = room_of(variants.scenario(), devices=devices, exactly=False, usd=None)
    return Deployments(variants, [varied_of(text, "--knobs") for text in knobs], always)


@contextmanager
def search(
    folder: Path, text: str = SMALL, *, devices: int, knobs: tuple[str, ...] = (), exhaustive: bool = False
) -> Iterator[Search]:
    """Open a search in this process."""
    made = deployments(folder, text, devices=devices, knobs=knobs)
    room, _ = room_of(made.variants.scenario(), devices=devices, exactly=False, usd=None)
    question = Question(room=room, share=0.9, lasting_s=3.0, objective="capacity_per_device", exhaustive=exhaustive)
    with opened("local", 1) as executors, opened_journal(folder / f"kept-{exhaustive}") as journal:
        yield Search(made, question, executors, journal)


def bounded(found: Search, some: list[Standing] | None = None) -> list[Standing]:
    """Return every legal plan, or some of them, with their bounds."""
    standings = found.standings() if some is None else some
    for place in (1, 0):
        found.bound(standings, place)
    return standings


def look(found: Search, asked: Sequence[tuple[Standing, int]]) -> None:
    """Look at each pool of plans, each from a step on."""
    for place in (1, 0):
        found.looks.look(asked, place)
