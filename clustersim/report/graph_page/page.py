"""The picture of a step graph: one HTML page, a column per stage, layers that are the same folded into one.

The page holds all that it needs and forbids itself every connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.prices.priced import PricedGraph, start_times
from clustersim.plan.parallel import SequencePlan
from clustersim.report.graph_page.drawing import Canvas, canvas_of, section_svg
from clustersim.report.graph_page.rows import Section, StageRows, stages_of
from clustersim.report.graph_page.words import FAMILIES, family, quantity, ranks_words, took
from clustersim.report.page_files import THEME_BUTTON, asset

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_EDGES: Final = {
    "data": ("activations", "#44525f", "#b6c2cd", ""),
    "kv": ("K/V", "#009E73", "#2fc49b", "6 3"),
    "sync": ("send → receive", "#B5568F", "#d987b6", "9 4"),
    "order": ("order of a stream", "#8a97a3", "#8a97a3", "1 4"),
    "boundary": ("end of prefill", "#B3261E", "#ff8a80", "2 3"),
}
"""Kind of edge → (words, colour on a light page and on a dark one, dashes)."""


def graph_page(priced: PricedGraph, *, title: str, subtitle: str, devices: Sequence[str]) -> str:
    """Return the page.

    Parameters
    ----------
    priced : PricedGraph
    title, subtitle : str
        What was deployed where; which step this is.
    devices : sequence of str
        The device of each rank of the replica.
    """
    starts = start_times(priced.graph, priced.duration_ns)
    stages = stages_of(priced)
    columns = "\n".join(_stage(rows, priced, starts, devices) for rows in stages)
    markers = "".join(
        f'<marker id="arrow-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="tip-{kind}" d="M0 0.8L7.5 4L0 7.2z"/></marker>'
        for kind in _EDGES
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<script>
{asset("theme.js")}</script>
<title>{escape(title)} · clustersim</title>
<link rel="icon" href="data:,">
<style>
{asset("graph.css")}{_styles()}</style>
</head>
<body>
<header>{THEME_BUTTON}<h1>{escape(title)}</h1><p>{escape(subtitle)}</p>
<p class="numbers">{_numbers(priced, stages)}</p></header>
{_legend(priced)}
<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{markers}</defs></svg>
<main id="stages">
<svg id="wires" aria-hidden="true"></svg>
{columns}
</main>
<div id="tip" role="tooltip" hidden></div>
<script>
{asset("graph.js")}</script>
</body>
</html>
"""


def _styles() -> str:
    """Return the colours of families and edges, on light pages and on dark ones."""
    rules = [f".edge.{kind} {{ stroke-dasharray: {dashes or 'none'}; }}" for kind, (*_, dashes) in _EDGES.items()]
    for dark, begins in enumerate(("", "[data-theme=dark] ")):
        for kind, (_, *colours) in FAMILIES.items():
            fill, line = colours[2 * dark : 2 * dark + 2]
            rules.append(f"{begins}.{kind} {{ --fill: {fill}; --mark: {line}; }}")
        for kind, (_, *shades, _) in _EDGES.items():
            rules.append(f"{begins}.edge.{kind} {{ stroke: {shades[dark]}; }}")
            rules.append(f"{begins}.tip-{kind} {{ fill: {shades[dark]}; }}")
    screen = "\n".join(rule for rule in rules if rule.startswith("["))
    return "\n".join(rule for rule in rules if not rule.startswith("[")) + f"\n@media screen {{\n{screen}\n}}\n"


def _numbers(priced: PricedGraph, stages: list[StageRows]) -> str:
    graph = priced.graph
    done = quantity(float((priced.flops * np.array([len(g) for g in graph.groups])[graph.group]).sum()), "FLOP")
    span = took(max(rows.end_ns for rows in stages) - min(rows.begin_ns for rows in stages))
    size = f"{len(graph):,} operators, {len(graph.source):,} edges"
    return f"{size}, {done} on all ranks, {span} where nothing else uses the links"


def _legend(priced: PricedGraph) -> str:
    present = list(dict.fromkeys(family(node) for node in priced.graph.symbols))
    boxes = "".join(
        f'<li><i class="{kind}"></i>{words}</li>' for kind, (words, *_) in FAMILIES.items() if kind in present
    )
    kinds = np.unique(priced.graph.kind).tolist()
    lines = "".join(
        f'<li><svg width="34" height="10"><path class="edge {kind}" d="M1 5H31" marker-end="url(#arrow-{kind})"/></svg>'
        f"{words}</li>"
        for number, (kind, (words, *_)) in enumerate(_EDGES.items())
        if number in kinds
    )
    return f"""<details class="legend" open><summary>How to read this</summary>
<ul>{boxes}</ul>
<ul>{lines}</ul>
<p>Each stage is a column, read from top to bottom: that is the order in which its ranks run it. A box is one
operator with its size on one rank; small marks on its rim divide it where each rank of a tensor-parallel group has a
slice of its own, and a box without marks is the same work on every rank. A collective is a bar over the ranks that it
joins, a dot each. At the right of a box is how long it takes and when it starts, counted from the start of the layer;
the strip at its foot compares durations. Layers that are the same are folded: click to open them. Point at a box for
everything about it, what it needs and what it feeds.</p></details>"""


def _stage(rows: StageRows, priced: PricedGraph, starts: Int64Array, devices: Sequence[str]) -> str:
    plan = priced.plan
    first = rows.stage * plan.stage_ranks
    ranks = range(first, first + plan.stage_ranks)
    canvas = canvas_of(rows.sections, plan.sp.degree, plan.tp)
    layers = [layer for section in rows.sections for layer in section.layers]
    held = f"layers {ranks_words(layers)}" if len(layers) > 1 else f"layer {layers[0]}" if layers else "no layers"
    blocks = "\n".join(
        _section(section, f"s{rows.stage}-{number}", rows, canvas, priced, starts, devices)
        for number, section in enumerate(rows.sections)
    )
    names = [devices[rank] for rank in ranks]
    where = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    return f"""<section class="stage" data-stage="{rows.stage}" style="width:{canvas.width + 26}px">
<h2>Stage {rows.stage}<small>{took(rows.end_ns - rows.begin_ns)}</small></h2>
<p>{_ranks(ranks)} on {escape(where)}, {held}</p>
{_shares(rows, priced)}
{_bands(canvas, first, plan.sp)}
{blocks}
</section>"""


def _shares(rows: StageRows, priced: PricedGraph) -> str:
    """Return a bar that says how the stage's first rank spends its time, by family of operators."""
    graph = priced.graph
    rank = rows.stage * priced.plan.stage_ranks
    on_rank = np.array([rank in group for group in graph.groups])[graph.group] & (priced.duration_ns > 0)
    spent: dict[str, int] = {}
    for node in np.flatnonzero(on_rank).tolist():
        kind = family(graph.symbols[int(graph.symbol[node])])
        spent[kind] = spent.get(kind, 0) + int(priced.duration_ns[node])
    whole = max(1, sum(spent.values()))
    order = [kind for kind in FAMILIES if kind in spent]
    bars = ""
    for kind in order:
        words = FAMILIES[kind][0]
        share = spent[kind] / whole
        text = f"{words}: {took(spent[kind])}, {share:.0%} of the time of rank {rank}"
        bars += f'<i class="{kind}" style="width:{100 * share:.2f}%" data-tip="{text}"></i>'
    return f'<div class="shares">{bars}</div>'


def _bands(canvas: Canvas, first: int, sp: SequencePlan) -> str:
    if sp.degree == 1:
        return ""
    heads, noun = "", "Replica" if sp.whole else "SP rank"
    for band, s in enumerate(canvas.bands):
        ranks = range(first + s * canvas.tp, first + (s + 1) * canvas.tp)
        place = f"left:{canvas.left(band) + 13}px;width:{canvas.band_width}px"
        heads += f'<span style="{place}">{noun} {s}: {_ranks(ranks)}</span>'
    hidden = f"<p>{noun}s {canvas.bands[-2] + 1} to {sp.degree - 2} are like their neighbours and not drawn.</p>"
    return f'{hidden if len(canvas.bands) < sp.degree else ""}<div class="bands">{heads}</div>'


def _section(
    section: Section,
    name: str,
    rows: StageRows,
    canvas: Canvas,
    priced: PricedGraph,
    starts: Int64Array,
    devices: Sequence[str],
) -> str:
    if section.like:
        like = " ".join(f"s{rows.stage}-{number}" for number in section.like)
        same = [rows.sections[number].layers[0] for number in section.like]
        turns = len(section.layers) // len(same)
        kind = f"{turns} × the same" if len(same) == 1 else f"{turns} × the same {len(same)}"
        if turns == 1 and len(same) == 1:
            kind = f"the same as layer {same[0]}"
        return (
            f'<details class="run" data-like="{like}"><summary><b>{_layers(section)}</b><span>{kind}</span>'
            f"<time>{took(section.duration_ns)}</time></summary></details>"
        )
    drawn = section_svg(section, canvas, priced, starts, devices)
    if not section.layers:
        return f'<div id="{name}" class="plain">{drawn}</div>'
    head = f"<summary><b>{_layers(section)}</b><time>{took(section.duration_ns)}</time></summary>"
    return f'<details class="layer" open>{head}<div id="{name}">{drawn}</div></details>'


def _layers(section: Section) -> str:
    return f"layer {section.layers[0]}" if len(section.layers) == 1 else f"layers {ranks_words(section.layers)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_words(ranks)}"
