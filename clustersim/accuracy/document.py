"""``docs/accuracy.md`` and the block of the README: a scoreboard in Markdown, and its picture in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from clustersim.accuracy.score import Scoreboard, family_order
from clustersim.accuracy.tables import charts, headline, short_table, tables
from clustersim.report.score_page import BAND, COLOURS, Dot, Table

START: Final = "<!-- accuracy: made by `clustersim accuracy`; pytest --update-golden rewrites it -->"
END: Final = "<!-- /accuracy -->"
_SHIPPED: Final = """\
Each figure was published by somebody else: see the `source` in each row of `scenarios/accuracy/results.csv`, which
has what was predicted and its ratio to what was measured. `clustersim accuracy` shows this without simulating
anything, and `clustersim accuracy TABLE` compares with a table of your own."""
_OWN: Final = """\
The measured figures are the rows of `{table}`; `results.csv` beside this document has, by their `id`, what was
predicted and its ratio to what was measured."""
_SIDE, _GAP, _EDGE, _HEAD = 300, 70, 46, 26


def document(board: Scoreboard, table: str | None = None) -> str:
    """Return the document of a table, named as it is called; of the results that ship without one."""
    sections = "\n\n".join(_section(table) for table in tables(board))
    return f"""# Accuracy

{START}

{headline(board)}.

![Predicted against measured, by family](accuracy.svg)

{_SHIPPED if table is None else _OWN.format(table=table)} Two measurements of one system differ by some percent
themselves.

{sections}
"""


def readme_block(board: Scoreboard) -> str:
    """Return what the README says, from its first mark to its last."""
    summary = short_table(board)
    return f"""{START}
{headline(board)}.

{_markdown(summary)}

{summary.caption}

![Predicted against measured, by family](docs/accuracy.svg)
{END}"""


def with_block(text: str, block: str, first: str = START, last: str = END) -> str:
    """Return a text whose block between the marks is another one; a text without marks as it is."""
    start, end = text.find(first), text.find(last)
    return text if start < 0 or end < start else text[:start] + block + text[end + len(last) :]


def picture(board: Scoreboard) -> str:
    """Return predicted against measured as SVG: a chart per quantity, light or dark as the reader's system is."""
    shown = charts(board)
    families = sorted({result.family for result in board.results}, key=family_order)
    colours = {family: COLOURS[place % len(COLOURS)] for place, family in enumerate(families)}
    across = min(3, max(1, len(shown)))
    down = -(-len(shown) // across)
    legend = 20 * (-(-len(families) // 4)) + 14
    width, height = across * (_SIDE + _GAP) + 10, down * (_SIDE + _GAP + _HEAD) + legend
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Predicted against measured</title>",
        "<style>text{font:11px system-ui,sans-serif;fill:#44525f}"
        ".b{font-weight:600;font-size:12px}.f{fill:none;stroke:#8a97a3}.d{stroke-dasharray:2 3}"
        "@media(prefers-color-scheme:dark){text{fill:#c9d3dc}}</style>",
    ]
    for place, family in enumerate(families):
        x, y = 14 + place % 4 * (width // 4), 14 + place // 4 * 20
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colours[family]}"/>'
            f'<text x="{x + 9}" y="{y}">{escape(family)}</text>'
        )
    for place, (name, dots) in enumerate(shown.items()):
        left, top = place % across * (_SIDE + _GAP) + _EDGE, place // across * (_SIDE + _GAP + _HEAD) + legend + _HEAD
        parts.append(f'<g transform="translate({left} {top})">{_chart(name, dots, colours)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _chart(name: str, dots: Sequence[Dot], colours: dict[str, str]) -> str:
    values = [value for dot in dots for value in (dot.measured, dot.predicted)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    scale = _SIDE / (high - low)

    def at(value: float) -> float:
        return (math.log10(value) - low) * scale

    band = math.log10(BAND) * scale
    parts = [
        f'<text class="b" x="0" y="-8">{escape(name)}</text>',
        f'<rect class="f" width="{_SIDE}" height="{_SIDE}"/><path class="f" d="M0 {_SIDE}L{_SIDE} 0"/>',
        f'<path class="f d" d="M0 {_SIDE - band:.1f}L{_SIDE - band:.1f} 0M{band:.1f} {_SIDE}L{_SIDE} {band:.1f}"/>',
        f'<text x="{_SIDE / 2}" y="{_SIDE + 32}" text-anchor="middle">measured</text>',
        f'<text transform="translate(-34 {_SIDE / 2})rotate(-90)" text-anchor="middle">predicted</text>',
    ]
    for power in range(low, high + 1):
        told, place = _power(power), (power - low) * scale
        parts.append(f'<text x="{place:.1f}" y="{_SIDE + 15}" text-anchor="middle">{told}</text>')
        parts.append(f'<text x="-5" y="{_SIDE - place + 4:.1f}" text-anchor="end">{told}</text>')
    parts += [
        f'<circle cx="{at(dot.measured):.1f}" cy="{_SIDE - at(dot.predicted):.1f}" r="2.6" '
        f'fill="{colours[dot.family]}" fill-opacity=".7"/>'
        for dot in dots
    ]
    return "".join(parts)


def _power(power: int) -> str:
    """Return a power of ten in few letters: 0.1, 100, 10k, 1M."""
    step = max(0, min(2, power // 3)) if power > 3 else 0
    return f"{10.0 ** (power - 3 * step):g}{('', 'k', 'M')[step]}"


def _section(table: Table) -> str:
    caption = f"{table.caption}\n\n" if table.caption else ""
    return f"## {table.title}\n\n{caption}{_markdown(table)}"


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(escape(cell, quote=False).replace("|", "/") for cell in cells) + " |"

    rule = ["---" if place < table.numbers_from else "---:" for place in range(len(table.columns))]
    return "\n".join([line(table.columns), "|" + "|".join(rule) + "|", *(line(row) for row in table.rows)])
