"""What keys of a ``quantization_config`` hold, so that a slip is told at its place before anything is read of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

DTYPE: Final = ("dtype", "torch_dtype")
KEYS: Final = ("quantization_config", "compression_config", "quantization")
"""Where a configuration keeps it; ``quantization`` is what ModelOpt writes in a file of its own."""
IGNORED: Final = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "llm_int8_skip_modules",
)
"""Keys that list what stays as it was."""


def slips(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key with another value than it can have, and what was expected; null is as good as none."""
    for key, (words, holds) in _SHAPES.items():
        found = config.get(key)
        try:
            right = found is None or holds(found)
        except (AttributeError, TypeError, KeyError, re.error):  # it is made of something else
            right = False
        if not right:
            yield key, f"expected {words}, but found {found!r:.60}"


def _names(found: Any) -> bool:
    return isinstance(found, list | tuple) and all(
        not entry.startswith("re:") or re.compile(entry[3:]) is not None for entry in found
    )


def _whole(found: Any) -> bool:
    return found is None or type(found) is int


def _groups(found: Any) -> bool:
    each = [(one["weights"], one.get("targets") or []) for one in found.values()]
    blocks = [weights["block_structure"] for weights, _ in each if weights.get("block_structure") is not None]
    return all(_whole(weights.get("group_size")) and _names(targets) for weights, targets in each) and all(
        map(_pair, blocks)
    )


def _by_regex(found: Any) -> bool:
    right = (_whole(own.get("group_size")) and str(own.get("bits", 4)) in ("4", "8") for own in found.values())
    return _names([f"re:{one.removeprefix('-:').removeprefix('+:')}" for one in found]) and all(right)


def _layers(found: Any) -> bool:
    return _names([*found]) and all(isinstance(one, Mapping) for one in found.values())


def _pair(found: Any) -> bool:
    return len(found) == 2 and all(type(size) is int and size > 0 for size in found)


_SHAPES: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(IGNORED, ("a list of names, globs and re:…", _names)),
    **dict.fromkeys(("group_size", "q_group_size", "bits", "w_bit"), ("a whole number", _whole)),
    "weight_block_size": ("two whole numbers", _pair),
    "config_groups": ("groups with weights and targets", _groups),
    "quantized_layers": ("names with mappings", _layers),
    "dynamic": ("REGEX, +:REGEX and -:REGEX with mappings", _by_regex),
    "modules_in_block_to_quantize": ("a list of lists of names", lambda found: all(map(_names, found))),
}
"""Key → what is expected there, and whether it is."""
