"""What all pages share: files of style and script that ship with them, and the button for light and dark."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

THEME_BUTTON: Final = '<button type="button" id="theme" title="light or dark" aria-label="light or dark">◐</button>'
"""What exchanges the colours of a page (``page/theme.js``)."""


def asset(name: str) -> str:
    """Return a file of style or script that ships with the pages."""
    return files("clustersim.report").joinpath("page", name).read_text(encoding="utf-8")
