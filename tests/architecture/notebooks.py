"""Notebooks run as a reader would run them: each cell in turn, with what it prints and shows kept as its outputs."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from typing import Any


def lines(text: str) -> list[str]:
    """Return a text as notebooks store it."""
    return text.splitlines(keepends=True)


def run_cells(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs that its cells have now; a cell that raises ends it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = cell | {"execution_count": count, "outputs": _outputs("".join(cell["source"]), names, count)}
        cells.append(cell)
    return notebook | {"cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; a last line that is an expression is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, found = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            found = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue()
    outputs: list[dict[str, Any]] = [{"output_type": "stream", "name": "stdout", "text": lines(text)}] if text else []
    if found is not None:
        data = {"text/plain": lines(repr(found))}
        if hasattr(found, "_repr_html_"):
            data["text/html"] = lines(found._repr_html_())
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def examples(root: Path) -> list[Path]:
    """Return the notebooks that ship."""
    return sorted((root / "examples").glob("*.ipynb"))
