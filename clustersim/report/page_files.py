"""What all pages share: files of style and script that ship with them, plotly's script, the button for light and dark.

A page holds plotly's script, or takes it from a file beside it that other pages of the folder take, too.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from clustersim.files import written_whole

THEME_BUTTON: Final = '<button type="button" id="theme" title="light or dark" aria-label="light or dark">◐</button>'
"""What exchanges the colours of a page (``page/theme.js``)."""


def asset(name: str) -> str:
    """Return a file of style or script that ships with the pages."""
    return files("clustersim.report").joinpath("page", name).read_text(encoding="utf-8")


def script_inside() -> str:
    """Return the element with plotly's script."""
    return f"<script>{_plotly_script()}</script>"


@cache
def _plotly_script() -> str:
    """Return plotly's script, 5 MB: ``plotly.offline.get_plotlyjs()`` without 60 ms to import what nobody asks for."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def script_name() -> str:
    """Return the name of the file with plotly's script: pages of one folder may need several versions."""
    version = re.search(r"plotly\.js v([\w.]+)", _plotly_script()[:1000])
    assert version is not None
    return f"plotly-{version[1]}.min.js"


def with_script_beside(html: str, above: int = 0) -> str:
    """Return a page that takes plotly's script from a file in place of holding it.

    Parameters
    ----------
    html : str
        A page that holds it.
    above : int
        In which folder the file is: that of the page, or so many above it.
    """
    source = "../" * above + script_name()
    told = f"const SCRIPT_FILE = {json.dumps(script_name())}, SCRIPT_SOURCE = {json.dumps(source)};"
    beside = f'<script src="{source}"></script>\n<script>\n{told}\n{asset("lacking.js")}</script>'
    html = html.replace(script_inside(), beside, 1)
    return html.replace("script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'self' file:", 1)


def write_script(folder: Path) -> Path:
    """Write plotly's script into a folder, unless it is there, and return its path."""
    file, text = folder / script_name(), _plotly_script()
    if not file.is_file() or file.stat().st_size != len(text.encode()):
        with written_whole(file) as beside:
            beside.write_text(text, encoding="utf-8")
    return file
