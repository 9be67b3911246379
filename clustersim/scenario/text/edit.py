"""Changes of a YAML text that keep what they do not concern: comments, order, formatting.

Only the values that differ are rewritten, and missing keys are added where they belong. What comes out is read again;
where that is not what was asked for (a key is an alias, say), the whole document is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from clustersim.errors import InputError
from clustersim.scenario.document import KeyPath, parse_json, parse_yaml
from clustersim.scenario.resolve import to_yaml
from clustersim.scenario.text.anchors import parted
from clustersim.scenario.text.flow import flow

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COMMENT: Final = re.compile(r"(?P<close>[\]} ]*?)(?P<spaces> {2,})(?=#)")
_BOM: Final = "\ufeff"


def edited(text: str, data: dict[str, Any], file: str) -> str:
    """Return a text that reads as ``data``, as like the one given as can be.

    Parameters
    ----------
    text : str
        A YAML text, or a JSON text where ``file`` ends with ``.json``; it holds a mapping.
    data : dict
        What it is to hold; no key of the text may be missing in it.
    file : str
        Name of the file.
    """
    if file.endswith(".json"):
        same = parse_json(text, file).data == data
        return text if same else json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    found = text.removeprefix(_BOM)
    try:
        for path, value in differences(parse_yaml(text, file).data, data):
            found = _assigned(parted(found, path), path, value, data)
        if parse_yaml(found, file).data == data:
            return (_BOM if text.startswith(_BOM) else "") + found
    except (InputError, yaml.YAMLError):
        pass  # the edit does not fit this text: it is written anew
    return to_yaml(data)


def differences(before: Any, after: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, new value) wherever two documents differ, as deep in mappings as can be."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in after.items():
            if key not in before:
                yield (*path, key), value
            else:
                yield from differences(before[key], value, (*path, key))
    elif before != after or type(before) is not type(after):
        yield path, after


def _assigned(text: str, path: KeyPath, value: Any, data: dict[str, Any]) -> str:
    """Return the text with one value replaced, or added with all that ``data`` has where nothing is written yet."""
    node: Any = yaml.compose(text, Loader=_Loader)
    wanted: Any = data
    for part in path:
        wanted = wanted[part]
        pair = next((pair for pair in node.value if pair[0].value == part), None)
        if pair is None:
            return _added(text, node, str(part), wanted)
        key, node = pair
    return _replaced(text, key, node, value)


def _replaced(text: str, key: Any, node: Any, value: Any) -> str:
    colon = text.index(":", key.end_mark.index) + 1
    start, end = node.start_mark.index, _end(node)
    between = text[colon:start]
    if "\n" not in between and start > colon:
        return _spliced(text, start, end, flow(value))
    comment = between.splitlines()[0].strip() if between.strip() else ""
    return f"{text[:colon]} {flow(value)}{f'  {comment}' if comment else ''}{text[max(end, colon) :]}"


def _added(text: str, mapping: Any, key: str, value: Any) -> str:
    entry = f"{flow(key)}: {flow(value)}"
    if mapping.flow_style:
        close = mapping.end_mark.index - 1
        last = len(text[:close].rstrip())
        glue = "" if text[last - 1] == "{" else " " if text[last - 1] == "," else ", "
        return _spliced(text, last, last, glue + entry)
    indent = " " * mapping.value[0][0].start_mark.column  # the mapping itself may begin with an anchor
    end = _end(mapping)
    newline = "\r\n" if "\r\n" in text else "\n"
    if text[end - 1 : end] == "\n":  # after a block of text
        return f"{text[:end]}{indent}{entry}{newline}{text[end:]}"
    rest = re.compile(r"[^\r\n]*").match(text, end)
    line_end = rest.end() if rest is not None else end
    return f"{text[:line_end]}{newline}{indent}{entry}{text[line_end:]}"


def _spliced(text: str, start: int, end: int, new: str) -> str:
    """Return the text with a part replaced; a comment behind it stays in its column where it can."""
    rest = text[end:]
    comment = _COMMENT.match(rest)
    if comment is not None:
        spaces = " " * max(2, len(comment["spaces"]) - len(new) + end - start)
        rest = comment["close"] + spaces + rest[comment.end() :]
    return text[:start] + new + rest


def _end(node: Any) -> int:
    """Return where a node ends, without the comments and empty lines that a block takes along."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        end: int = node.end_mark.index
        return end
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
