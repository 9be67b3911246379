"""Single changes of the source of the replay: a text in a module, what stands there instead, and where it shows.

``changed`` lets the functions that a text is in run with the other one. A change must move the digest of its scenario:
then the audit of that run finds it (``test_source_mutations``).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Change:
    """A text of a module, another one instead of it, and the name of a scenario."""

    module: str
    old: str
    new: str
    scenario: str = ""


def changed(patch: pytest.MonkeyPatch, change: Change) -> None:
    """Let the functions that a change is in run as it says."""
    module = importlib.import_module(change.module)
    path = Path(str(module.__file__))
    source = path.read_text(encoding="utf-8")
    assert source.count(change.old) == 1, (change.module, change.old, source.count(change.old))
    was, other = (compile(text, str(path), "exec") for text in (source, source.replace(change.old, change.new)))
    found = [one for one in differing(was, other) if patched(patch, module, one)]
    assert found, f"no function of {change.module} differs with {change.new!r}"


def differing(was: CodeType, other: CodeType, names: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], CodeType]]:
    """Return names and code of the functions of a module or class that differ."""
    found = []
    before = [one for one in was.co_consts if isinstance(one, CodeType)]
    after = [one for one in other.co_consts if isinstance(one, CodeType)]
    for one, another in zip(before, after, strict=True):
        inner = (*names, one.co_name)
        if one.co_flags & 0x2:  # of a function: it has locals that are optimized together with CO_NEWLOCALS
            found += [(inner, another)] if _bytes(one) != _bytes(another) else []
        else:
            found += differing(one, another, inner)
    return found


def _bytes(code: CodeType) -> Any:
    """Return what a function does, without where it stands."""
    inner = tuple(_bytes(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, inner


def patched(patch: pytest.MonkeyPatch, module: ModuleType, one: tuple[tuple[str, ...], CodeType]) -> bool:
    """Let a function run other code; return whether it was found."""
    names, code = one
    found: Any = module
    for name in names:
        found = found.__dict__.get(name)
        found = getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", found)
    if not isinstance(found, FunctionType) or len(found.__code__.co_freevars) != len(code.co_freevars):
        return False
    patch.setattr(found, "__code__", code)
    return True
