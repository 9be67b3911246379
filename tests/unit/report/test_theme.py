"""Colours of light and dark pages: all of them can be told from the page they are on, and from each other."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from clustersim.report.figures import style
from clustersim.report.figures.causes import COLOURS
from clustersim.report.graph_page import words
from clustersim.report.page_files import asset
from clustersim.report.traces.spans import FAMILIES

DARK = dict(re.findall(r'"(#[0-9a-f]{6}|white)": "(#[0-9a-f]{6})"', asset("theme.js")))
CARD = DARK["#ffffff"]
LEAST = 2.5
"""Contrast of a filled bar beside the page, by WCAG's formula; its own for parts of pictures is 3, of text 4.5."""


def shown(colour: str) -> str:
    return DARK.get(colour.lower(), colour)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [*COLOURS.values(), *FAMILIES.values(), style.TARGET])
def test_bars_can_be_seen_on_a_dark_page(colour: str) -> None:
    assert contrast(shown(colour), CARD) >= LEAST


@pytest.mark.parametrize("colour", [style.INK, style.MUTED, style.TARGET])
def test_texts_can_be_read_on_both_pages(colour: str) -> None:
    assert contrast(colour, "#ffffff") >= 4.5
    assert contrast(shown(colour), CARD) >= 4.5


def test_causes_are_told_apart_on_both_pages() -> None:
    def apart(one: str, other: str) -> int:
        return sum(abs(int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) for at in (1, 3, 5))

    light = min(apart(one, other) for one, other in combinations(COLOURS.values(), 2))
    assert min(apart(shown(one), shown(other)) for one, other in combinations(COLOURS.values(), 2)) >= min(light, 40)


@pytest.mark.parametrize("family", words.FAMILIES)
def test_operators_of_a_step_graph_can_be_read_on_both_pages(family: str) -> None:
    _, fill, line, dark_fill, dark_line = words.FAMILIES[family]
    assert contrast(style.INK, fill) >= 4.5
    assert contrast(shown(style.INK), dark_fill) >= 4.5
    assert contrast(line, fill) >= 2
    assert contrast(dark_line, dark_fill) >= 3
