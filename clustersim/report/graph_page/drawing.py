"""Draws a section of a step graph as SVG: a row per operator, a band per SP rank, edges beside them.

Edges to the next row are arrows between boxes; longer ones run in a gutter at the right of their band, each in a
lane of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from clustersim.clock import Int64Array
from clustersim.graph.prices.priced import PricedGraph
from clustersim.report.graph_page.rows import Link, Section, Shape
from clustersim.report.graph_page.words import duration_words, everything, family, shape_words, took
from clustersim.values import dataclass

MOST_BANDS: Final = 4
_HEIGHT: Final = 38
_GAP: Final = 14
_PITCH: Final = _HEIGHT + _GAP
_LEFT: Final = 22
_LANE: Final = 9
_TOP: Final = 16
_MOST_MARKS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """Where things are on one stage.

    Parameters
    ----------
    bands : tuple of int
        SP coordinates that are drawn, each in a band of its own.
    band_width, gutter : int
        Pixels of a box, and of the lanes at its right.
    tp : int
        Ranks per SP coordinate.
    """

    bands: tuple[int, ...]
    band_width: int
    gutter: int
    tp: int

    @property
    def width(self) -> int:
        """Pixels of the stage."""
        return _LEFT + len(self.bands) * (self.band_width + self.gutter)

    def left(self, band: int) -> int:
        """Return the left edge of a band's boxes."""
        return _LEFT + band * (self.band_width + self.gutter)

    def right(self, band: int) -> int:
        """Return the right edge of a band's boxes."""
        return self.left(band) + self.band_width


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """When a section begins, and how long its longest operator takes."""

    begin_ns: int
    longest_ns: int


def canvas_of(sections: Sequence[Section], sp: int, tp: int) -> Canvas:
    """Choose the bands of a stage, and gutters as wide as its fullest one needs."""
    bands = tuple(range(sp)) if sp <= MOST_BANDS else (*range(MOST_BANDS - 1), sp - 1)
    lanes = max((1 + max(_lanes(part, s).values(), default=-1) for part in sections for s in bands), default=0)
    width = 330 if len(bands) == 1 else 290
    return Canvas(bands=bands, band_width=width, gutter=_LANE * lanes + 14, tp=tp)


def section_svg(
    section: Section, canvas: Canvas, priced: PricedGraph, starts: Int64Array, devices: Sequence[str]
) -> str:
    """Return one section as an SVG element."""
    height = _TOP + (section.shapes[-1].row + 1) * _PITCH
    scale = _Scale(
        begin_ns=min(int(starts[list(shape.nodes)].min()) for shape in section.shapes if not shape.node.is_structural),
        longest_ns=max(1, *(int(priced.duration_ns[list(shape.nodes)].max()) for shape in section.shapes)),
    )
    size = f'viewBox="0 0 {canvas.width} {height}" width="{canvas.width}" height="{height}"'
    parts = [f'<svg class="section" {size} role="img">']
    parts += [_module(first, last, module) for first, last, module in section.modules]
    for band, s in enumerate(canvas.bands):
        parts += _links(section, canvas, band, s, height)
    for number, shape in enumerate(section.shapes):
        covered = [band for band, s in enumerate(canvas.bands) if s in shape.s]
        if covered:
            start = int(starts[shape.nodes[0]])
            text = everything(shape, priced, start, devices)
            parts.append(_box(shape, number, covered, canvas, priced, scale, start, text))
    return "".join([*parts, "</svg>"])


def _module(first: int, last: int, module: str) -> str:
    top, bottom = _y(first), _y(last) + _HEIGHT
    middle = (top + bottom) / 2
    word = (
        f'<text class="module" transform="translate(11 {middle:g}) rotate(-90)">{escape(module)}</text>'
        if bottom - top > 7 * len(module)
        else ""
    )
    return f'<path class="bracket" d="M16 {top}V{bottom}"/>{word}'


def _y(row: int) -> int:
    return _TOP + row * _PITCH


def _box(
    shape: Shape,
    number: int,
    covered: list[int],
    canvas: Canvas,
    priced: PricedGraph,
    scale: _Scale,
    start_ns: int,
    text: str,
) -> str:
    kind = family(shape.node)
    x, y = canvas.left(covered[0]), _y(shape.row)
    width = canvas.right(covered[-1]) - x
    round_ = 17 if kind in ("structural", "transfer", "host") else 3
    dash = ' stroke-dasharray="4 3"' if kind == "structural" else ""
    wire = f' data-wire="{shape.node.op}-{shape.s[0]}"' if kind == "transfer" else ""
    parts = [
        f'<g class="op {kind}" tabindex="0" data-n="{number}"{wire} data-tip="{escape(text)}">',
        f'<rect x="{x}" y="{y}" width="{width}" height="{_HEIGHT}" rx="{round_}" class="box"{dash}/>',
    ]
    parts += _ticks(shape, x, y, width, canvas)
    duration = duration_words(shape, priced)
    if duration and kind != "host":
        strip = max(1.5, float(priced.duration_ns[list(shape.nodes)].max()) / scale.longest_ns * (width - 2))
        parts.append(f'<rect x="{x + 1}" y="{y + _HEIGHT - 3.5}" width="{strip:.1f}" height="3" class="mark"/>')
    parts.append(f'<text class="name" x="{x + 9}" y="{y + 15}">{escape(shape.node.name)}</text>')
    if duration:
        since = took(start_ns - scale.begin_ns)
        parts.append(f'<text class="time" x="{x + width - 8}" y="{y + 15}">{duration}</text>')
        parts.append(f'<text class="since" x="{x + width - 8}" y="{y + 29}">at {since}</text>')
    parts.append(f'<text class="shape" x="{x + 9}" y="{y + 29}">{escape(shape_words(shape, priced))}</text></g>')
    return "".join(parts)


def _ticks(shape: Shape, x: int, y: int, width: int, canvas: Canvas) -> list[str]:
    """Mark the ranks: a line between them where each has its own slice, a dot for each that a collective joins."""
    if canvas.tp > _MOST_MARKS or shape.node.is_structural:
        return []
    cell = canvas.band_width / canvas.tp
    if shape.node.is_collective:
        parts = []
        for band, s in enumerate(canvas.bands):
            if s in shape.s:
                dots = (canvas.left(band) + cell * (rank + 0.5) for rank in range(canvas.tp))
                parts += [f'<circle cx="{dot:.1f}" cy="{y}" r="2.5" class="mark"/>' for dot in dots]
        inner = shape.groups[1:] if len(shape.s) == 1 else ()
        cuts = (x + cell * (group[0] % canvas.tp) for group in inner)
        return parts + [
            f'<rect x="{cut - 3:.1f}" y="{y - 1}" width="6" height="{_HEIGHT + 2}" class="gap"/>' for cut in cuts
        ]
    if shape.node.copies > 1:
        return []
    marks = "".join(
        f"M{x + cell * rank:.1f} {y}v4M{x + cell * rank:.1f} {y + _HEIGHT}v-7" for rank in range(1, canvas.tp)
    )
    return [f'<path class="tick" d="{marks}"/>'] if marks else []


def _reach(section: Section, link: Link) -> tuple[int, int]:
    """Return the rows that a link connects; what lies before the section is row −1, behind it one past the last."""
    first = -1 if link.source is None else section.shapes[link.source].row
    last = section.shapes[-1].row + 1 if link.target is None else section.shapes[link.target].row
    return first, last


def _touches(section: Section, link: Link, s: int) -> bool:
    """Whether both ends of a link are at an SP coordinate."""
    return all(end is None or s in section.shapes[end].s for end in (link.source, link.target))


def _lanes(section: Section, s: int) -> dict[tuple[int | None, str], int]:
    """Return the lane of the gutter in which the links of one kind from one source run that skip rows."""
    reaches: dict[tuple[int | None, str], tuple[int, int]] = {}
    for link in section.links:
        first, last = _reach(section, link)
        if _touches(section, link, s) and last - first > 1:
            key = (link.source, link.kind)
            reaches[key] = (first, max(last, reaches.get(key, (first, last))[1]))
    taken: list[list[tuple[int, int]]] = []
    found = {}
    for key, reach in sorted(reaches.items(), key=lambda item: (item[1][1] - item[1][0], item[1], item[0][1])):
        free = (n for n, lane in enumerate(taken) if all(reach[1] <= a or reach[0] >= b for a, b in lane))
        found[key] = next(free, len(taken))
        if found[key] == len(taken):
            taken.append([])
        taken[found[key]].append(reach)
    return found


def _links(section: Section, canvas: Canvas, band: int, s: int, height: int) -> list[str]:
    lanes = _lanes(section, s)
    edge = canvas.right(band)
    middle = (canvas.left(band) + edge) / 2
    parts = []
    for link in section.links:
        if not _touches(section, link, s):
            continue
        first, last = _reach(section, link)
        bottom = height if link.target is None else _y(last)
        if last - first == 1:
            top = 0 if first < 0 else _y(first) + _HEIGHT
            parts.append(_path(link, f"M{middle + _KIND_OFFSET[link.kind]:g} {top}V{bottom}"))
            continue
        x = edge + 9 + _LANE * lanes[link.source, link.kind]
        if first < 0:
            start = f"M{x} 0"
        elif _covers_gutter(section, link.source, canvas, band):
            start = f"M{x} {_y(first) + _HEIGHT}"
        else:
            start = f"M{edge} {_y(first) + _HEIGHT - 9}H{x - 4}q4 0 4 4"
        straight = link.target is None or _covers_gutter(section, link.target, canvas, band)
        parts.append(_path(link, start + (f"V{bottom}" if straight else f"V{bottom + 8}q0 4 -4 4H{edge}")))
    return parts


def _covers_gutter(section: Section, number: int | None, canvas: Canvas, band: int) -> bool:
    """Whether a shape reaches over the gutter at the right of a band into the next one."""
    return number is not None and any(s in section.shapes[number].s for s in canvas.bands[band + 1 :])


_KIND_OFFSET: Final = {"data": 0, "kv": 12, "sync": 24, "order": -12, "boundary": -24}


def _path(link: Link, shape: str) -> str:
    source, target = ("" if end is None else end for end in (link.source, link.target))
    ends = f'data-from="{source}" data-to="{target}"'
    return f'<path class="edge {link.kind}" d="{shape}" marker-end="url(#arrow-{link.kind})" {ends}/>'
