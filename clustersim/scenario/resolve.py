"""A scenario with nothing left to look up: the document with its defaults, its text, and its digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from clustersim import catalog
from clustersim.inputs import resolved
from clustersim.scenario.document import KeyPath
from clustersim.scenario.schema import SHORTHANDS
from clustersim.scenario.text.scalars import plain_scalar
from clustersim.values import dataclass

DIGEST_DIGITS: Final = 12
INPUTS: Final = "inputs"
"""The folder of a run directory with copies of the files that its scenario names and that don't ship."""


def with_defaults(part: BaseModel, raw: Any, path: KeyPath = ()) -> dict[str, Any]:
    """Return the document of a validated part: what was written, in full form, and the defaults of the rest.

    What is null or an empty mapping is left out: both mean absent.
    """
    if not isinstance(raw, dict):
        short = SHORTHANDS[path]
        raw = {} if short is None else {short: raw}
    found: dict[str, Any] = {}
    for key in type(part).model_fields:
        value, written = getattr(part, key), raw.get(key)
        if isinstance(value, BaseModel):
            value = with_defaults(value, {} if written is None else written, (*path, key))
        elif written is not None and not (isinstance(written, float) and isinstance(value, int)):
            value = written if (*path, key) not in SHORTHANDS else value
        if value is not None and value != {}:
            found[key] = value
    return found


# Line breaks of Unicode, byte order marks and control characters survive only as escapes in double quotes.
_ESCAPED: Final = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]")


class _Dumper(yaml.SafeDumper):
    """Quotes every text that plain would be read as something else, by YAML 1.2 as by 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        plain = isinstance(plain_scalar(text), str)
    except ValueError:
        plain = False
    style = '"' if _ESCAPED.search(text) else None if plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that reads back as the same data.

    Examples
    --------
    >>> print(to_yaml({"rate": "4/s", "code": "1e9", "list": [1, 2.5]}), end="")
    rate: 4/s
    code: '1e9'
    list:
    - 1
    - 2.5
    """
    return "".join(_entry(key, value) for key, value in data.items()) or _dumped({})


def _dumped(data: dict[str, Any]) -> str:
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


_ENTRIES: Final[dict[str, str]] = {}
"""What was written, and its text: runs of one process share most parts, and a device is a thousand lines."""
_MOST_ENTRIES: Final = 64


def _entry(key: str, value: Any) -> str:
    """Return one entry of a mapping as YAML, which no other entry changes."""
    known = repr((key, value))
    text = _ENTRIES.get(known)
    if text is None:
        text = _dumped({key: value})
        if len(_ENTRIES) >= _MOST_ENTRIES:
            _ENTRIES.clear()
        _ENTRIES[known] = text
    return text


def replaced(document: Any, other: Mapping[str, Any]) -> Any:
    """Return plain data in which each text that is a key of ``other`` is what stands there."""
    if isinstance(document, str):
        return other.get(document, document)
    if isinstance(document, dict):
        return {key: replaced(item, other) for key, item in document.items()}
    return [replaced(item, other) for item in document] if isinstance(document, list) else document


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file that a scenario names: its absolute path, its content, and what a run directory calls it.

    Parameters
    ----------
    path : Path
    sha256 : str
        Of the content, with the class that is named in it.
    portable : str
        The text that stands for it on every machine: where it ships, relative to the catalog; else its copy.
    copy : str or None
        Where in a run directory its copy is; nowhere where it ships.
    """

    path: Path
    sha256: str
    portable: str
    copy: str | None


def named_files(found: Mapping[str, tuple[Path, str]]) -> dict[str, NamedFile]:
    """Return what each text of a resolved document stands for that names a file by its absolute path.

    Parameters
    ----------
    found : Mapping from str to (Path, str)
        Text → the file, and the SHA-256 of its content.
    """
    named: dict[str, NamedFile] = {}
    taken: dict[str, Path] = {}
    shipped = resolved(catalog.data_root() / "scenarios")
    for text, (path, sha256) in found.items():
        copy = None
        if path.is_relative_to(shipped):
            place = f"scenarios/{path.relative_to(shipped).as_posix()}"
        else:
            number, name = 2, path.name
            while taken.setdefault(name, path) != path:
                number, name = number + 1, f"{path.stem}-{number}{path.suffix}"
            place = copy = f"{INPUTS}/{name}"
        named[text] = NamedFile(path=path, sha256=sha256, portable=place + text.removeprefix(str(path)), copy=copy)
    return named


def digest(document: Mapping[str, Any], files: Mapping[str, NamedFile]) -> str:
    """Return a short hash of a resolved document.

    Parameters
    ----------
    document : Mapping
        Resolved plain data; where it names a file, the file counts by its content and not by its path.
    files : Mapping from str to NamedFile
        What each text stands for that names a file.
    """
    by_content = replaced(document, {text: {"sha256": file.sha256} for text, file in files.items()})
    text = json.dumps(by_content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
