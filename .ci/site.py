"""What the site of the documentation does with a page: the name of a file that a block shows stands above it."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take the name out of a block's first line, where Markdown has no place for it."""
    return re.sub(r"^```(\w+) (\S+)$", r"`\2`:\n\n```\1", markdown, flags=re.MULTILINE)
