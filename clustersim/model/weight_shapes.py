"""What keys of a ``quantization_config`` hold, so that a slip is told at its place before anything is read of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

IGNORED: Final = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "llm_int8_skip_modules",
)
"""Keys that list what stays as it was."""


def _names(found: object) -> bool:
    """Whether it is a list of names, globs and regular expressions; null is."""
    if found is None:
        return True
    if not isinstance(found, list | tuple) or not all(isinstance(entry, str) for entry in found):
        return False
    try:
        return bool([re.compile(entry[3:]) for entry in found if entry.startswith("re:")] or True)
    except re.error:
        return False


def _whole(found: object) -> bool:
    return found is None or (isinstance(found, int) and not isinstance(found, bool))


def _groups(found: object) -> bool:
    """Whether it is a mapping of groups, each with its weights and a list of targets."""
    if found is None:
        return True
    groups = list(found.values()) if isinstance(found, Mapping) else [None]
    return all(
        isinstance(one, Mapping)
        and isinstance(one.get("weights"), Mapping)
        and _names(one.get("targets"))
        and _whole(one["weights"].get("group_size"))
        for one in groups
    )


def _by_regex(found: object) -> bool:
    if found is None:
        return True
    return (
        isinstance(found, Mapping)
        and _names([f"re:{str(regex)[2:]}" for regex in found])
        and all(str(regex)[:2] in ("+:", "-:") and isinstance(own, Mapping) for regex, own in found.items())
        and all(_whole(own.get("group_size")) and own.get("bits", 4) in (4, 8) for own in found.values())
    )


def _by_layer(found: object) -> bool:
    return found is None or (isinstance(found, Mapping) and all(isinstance(one, Mapping) for one in found.values()))


def _pair(found: object) -> bool:
    sizes = found if isinstance(found, list | tuple) else ()
    return found is None or (len(sizes) == 2 and all(type(size) is int and size > 0 for size in sizes))


SHAPES: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    **dict.fromkeys(IGNORED, ("a list of names, globs and re:…", _names)),
    **dict.fromkeys(("group_size", "q_group_size"), ("a whole number", _whole)),
    "weight_block_size": ("two whole numbers", _pair),
    "config_groups": ("groups with weights and targets", _groups),
    "quantized_layers": ("a mapping of names to mappings", _by_layer),
    "dynamic": ("a mapping of +:REGEX and -:REGEX to mappings", _by_regex),
    "modules_in_block_to_quantize": (
        "a list of lists of names",
        lambda found: found is None or (isinstance(found, list) and all(map(_names, found)) and None not in found),
    ),
}
"""Key → what is expected there, and whether it is."""
