"""What rules of levels P, G and T can say is wrong, text by text, and which of these texts no test has made them say.

``CLUSTERSIM_VIOLATIONS=FILE pytest tests/legality`` keeps what is said in a file (``conftest.py``);
``python -m tests.legality.violations FILE`` lists the texts of the rules that are not among it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RULES: Final = Path(__file__).parents[2] / "clustersim" / "legality"
ROOMS: Final = ("plan_rules", "graph_rules", "timeline_rules")
LEAST_WORDS: Final = 3
SAID: Final = re.compile(r"^(?!plan\.|rit,)(?!.*(recorded|not told|not follow|not declared)\)?$)")
"""No paths of plans, sums of arrays, and reasons why something can't be judged."""
PLACES: Final = re.compile(
    r"(\W|_|a|all|and|begins|block|first|head|in|layer|link|local|number|of|on|operator|pool|ranks?|replica|request|row|send|SP"
    r"|stages?|steps?|step|swap|template|the|to|token|TP|value)*"
)
"""Words of texts that say where something is."""


def texts() -> list[str]:
    """Return each text of a message or of what would be legal, with its module; what is filled in is ``{}``."""
    found = []
    for room in ROOMS:
        for file in sorted((RULES / room).rglob("*.py")):
            own = dict.fromkeys(_of(ast.parse(file.read_text(encoding="utf-8"))))
            found += [f"{file.relative_to(RULES)}: {text}" for text in own]
    return found


def _of(tree: ast.AST) -> Iterator[str]:
    """Yield texts of a module, but for docstrings and what says that something was not recorded."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "lacking":
        return
    if isinstance(tree, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in tree.values]
        yield from _told("".join(map(str, parts)))
    elif isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield from _told(tree.value)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _of(child)


def _told(text: str) -> Iterator[str]:
    text = re.sub(r"\{[^{}]*\}", "{}", text).rstrip(",")
    words = re.findall(r"[A-Za-z_']+", text)
    if len(words) >= LEAST_WORDS and not PLACES.fullmatch(text) and SAID.search(text):
        yield text


def unsaid(said: str) -> list[str]:
    """Return the texts that none of some messages, a line each, has."""

    def has(text: str) -> bool:
        parts = text.partition(": ")[2].split("{}")
        return re.search(".*?".join(map(re.escape, parts)), said) is not None

    return [text for text in texts() if not has(text)]


if __name__ == "__main__":
    print("\n".join(unsaid(Path(sys.argv[1]).read_text(encoding="utf-8"))))
