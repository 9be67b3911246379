"""Which constants come from the figures that they are compared with, and what stands for them when they must not.

Constants of kernels and collectives are fitted to kernels and collectives. Those of engines partly come from serving
runs, and the file of an engine says from which: by the family of the figures (F4), or by the publication
(``owner/repository@commit``), which a figure's ``source`` names, too. For such a figure a second prediction is made:
leave one family out. Its engine has what the file's ``without`` says of the family: constants that were fitted to what
is left, or were known before. Where it says nothing it is another engine, in whose file neither stands.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.scenario.document import read_document, read_text

PUBLISHED: Final = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{7,40}")
_FAMILY: Final = re.compile(r"\bF\d+\b")


def is_in_sample(engine: str, family: str, source: str) -> bool:
    """Whether constants of an engine come from what a figure comes from: its family, or the same publication.

    Parameters
    ----------
    engine : str
        A file of ``scenarios/engines``.
    family, source : str
        Of the figure.
    """
    told = _text(catalog.path_of("scenarios/engines", engine))
    return family.partition("-")[0] in _FAMILY.findall(told) or bool(
        set(PUBLISHED.findall(source)) & set(PUBLISHED.findall(told))
    )


def held_out_engine(engine: str, family: str, source: str) -> str | dict[str, Any]:
    """Return the engine that stands for one whose constants must not be used: refitted, or the nearest version without.

    Of another name only ``ideal`` is left, which has no constants.
    """
    refitted = refits(engine).get(family.partition("-")[0])
    if refitted is not None:
        return {"name": engine, **refitted}
    name, version = _version(engine)
    others = [
        other
        for other in catalog.names("scenarios/engines")
        if _version(other)[0] == name and other != engine and not is_in_sample(other, family, source)
    ]
    return min(others, key=lambda other: (abs(_version(other)[1] - version), other), default="ideal")


def refits(engine: str) -> dict[str, dict[str, Any]]:
    """Return what the file of an engine says in the stead of constants that were found with a family, by family."""
    found = read_document(catalog.path_of("scenarios/engines", engine)).data.get("without", {})
    return {family: dict(constants) for family, constants in found.items()}


@cache
def _text(path: Path) -> str:
    """Return the whole file of an engine, with those that it inherits from."""
    parent = read_document(path).data.get("inherits")
    return read_text(path) + (_text(path.with_name(f"{parent}.yaml")) if isinstance(parent, str) else "")


def _version(engine: str) -> tuple[str, float]:
    """Return the name of an engine and its version as a number: ``vllm-0.19-eager`` is 0.019 of vllm."""
    name, _, rest = engine.partition("-")
    numbers = re.match(r"(\d+)(?:\.(\d+))?", rest)
    return (name, int(numbers[1]) + int(numbers[2] or 0) / 1000.0) if numbers else (engine, 0.0)
