"""Where the files lie that a scenario names: in the catalog by name, else by path.

A name is that of a file in the catalog's folder. Anything else is a path: relative to the file that names it
(to the working directory when ``--set`` names it), then to the folder that holds ``topologies/``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clustersim import catalog
from clustersim.errors import InputError, Problem, did_you_mean, nearest_file
from clustersim.inputs import is_file
from clustersim.scenario.document import Mark, shown

RESOLVED: Final = "scenario.yaml"
"""In a run directory: the scenario of the run, with everything written out."""
_LONGEST: Final = 200
"""Letters of a name that is quoted."""


def is_path(text: str) -> bool:
    """Tell whether a reference is meant as a path: it has a folder or the suffix of a data file."""
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml", ".json")) or text in (".", "..")


def referred(file: Path, folder: Path) -> str:
    """Return how a scenario in a folder names a file: absolute where it was so, else from there."""
    return str(file) if file.is_absolute() else f"./{Path(os.path.relpath(file, folder)).as_posix()}"


def find(text: str, *, folder: str, kind: str, mark: Mark, path: str, base: Path) -> Path:
    """Return the file of a topology, device, model or engine.

    Parameters
    ----------
    text : str
        The name or path that was written.
    folder : str
        Folder of the catalog, such as ``scenarios/models``.
    kind : str
        What it is, for messages, such as ``model``.
    mark, path : Mark, str
        Where it was written, for messages.
    base : Path
        Folder of the file that names it.

    Raises
    ------
    InputError
        With the nearest name, or the places that were searched.
    """
    known = catalog.names(folder)
    if text in known:
        return catalog.path_of(folder, text)
    if is_path(text):
        return find_file(text, kind=kind, mark=mark, path=path, base=base)
    raise InputError(_problem(_unknown(text, kind, known, _bases(mark, base)), mark, path))


def find_file(text: str, *, kind: str, mark: Mark, path: str, base: Path) -> Path:
    """Return the file at a path; see :func:`find`."""
    bases = _bases(mark, base)
    for folder in bases:
        if (folder / text).exists():
            return folder / text
    near = [entry.name for folder in bases for entry in _listed((folder / text).parent)]
    guess = nearest_file(Path(text).name, near)
    hint = f"; did you mean {guess!r}?" if guess else ""
    if (catalog.data_root() / "scenarios" / text).is_file():  # a scenario that ships, copied elsewhere
        hint = f"; did you mean {f'scenarios/{text}'!r}?"
    shorts = [shown(folder) for folder in bases]
    places = " and ".join(dict.fromkeys("here" if short == "." else short for short in shorts))
    looked = f"{hint} (looked from {places})" if hint else f"; looked from {places}"
    what = kind if kind.startswith("file") else f"{kind} file"
    message = f"no {what} {text!r}{looked}"
    raise InputError(_problem(message, mark, path))


def _bases(mark: Mark, base: Path) -> Sequence[Path]:
    first = [Path.cwd()] if mark.file.startswith("--set") else []
    return [*first, base, catalog.data_root()]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _problem(message: str, mark: Mark, path: str) -> Problem:
    return Problem(message=message, file=mark.file, line=mark.line, column=mark.column, path=path)


def find_scenario(text: str) -> Path:
    """Return the file of a scenario: a path, the name of one in the catalog, or a run directory, which holds one.

    Raises
    ------
    InputError
        With the nearest name.
    """
    known = catalog.names("scenarios")
    if not is_path(text) and text in known:
        return catalog.path_of("scenarios", text)
    if is_file(Path(text) / RESOLVED):
        return Path(text) / RESOLVED
    if is_path(text) or is_file(Path(text)):
        return Path(text)
    raise InputError(Problem(message=_unknown(text, "scenario", known, [Path.cwd()])))


def _unknown(text: str, kind: str, known: Sequence[str], bases: Sequence[Path]) -> str:
    near = {entry.name for folder in bases for entry in _listed(folder)}
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if f"{text}.yaml" in near:
        return f"no {kind} {text!r}; did you mean './{text}.yaml'?"
    holds = {"model": "config.json", "scenario": RESOLVED}.get(kind, "")
    if holds and text in near and any((folder / text).is_dir() for folder in bases):
        there = any((folder / text / holds).is_file() for folder in bases)
        hint = f"did you mean './{text}'?" if there else f"the folder of this name has no {holds}"
        return f"no {kind} {text!r}; {hint}"
    hint = did_you_mean(text, known)
    file = f"./{text}/config.json" if kind == "model" else f"./{text}.yaml"
    own = "" if "did you mean" in hint else f" (a file of your own is a path, such as {file})"
    return f"no {kind} {text!r}{hint}{own}"
