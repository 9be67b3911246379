"""A scenario with nothing left to look up: the document with its defaults, its text, and its digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel

from clustersim.scenario.document import KeyPath
from clustersim.scenario.scalars import plain_scalar
from clustersim.scenario.schema import SHORTHANDS

DIGEST_DIGITS: Final = 12


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
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def digest(document: Mapping[str, Any], file_hashes: Mapping[str, str]) -> str:
    """Return a short hash of a resolved document.

    Parameters
    ----------
    document : Mapping
        Resolved plain data; where it names a file, the file counts by its content and not by its path.
    file_hashes : Mapping from str to str
        Absolute path of each such file → SHA-256 of its content.
    """

    def by_content(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: by_content(item) for key, item in value.items()}
        if isinstance(value, list):
            return [by_content(item) for item in value]
        return {"sha256": file_hashes[value]} if isinstance(value, str) and value in file_hashes else value

    text = json.dumps(by_content(dict(document)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
