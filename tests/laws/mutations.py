"""Ways to break something: a piece of one function is replaced, for as long as a test runs."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from clustersim.graph.expand import step_blueprints
from clustersim.graph.operators import single_device


@dataclass(frozen=True, slots=True)
class Mutation:
    """One function of ``owner``, a class or a module, in which ``old`` becomes ``new``."""

    owner: Any
    function: str
    old: str
    new: str


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Break something; raise AssertionError where ``old`` is not in the function exactly once."""
    found = getattr(mutation.owner, mutation.function)
    function = inspect.unwrap(getattr(found, "fget", found))  # of what is cached, what is called
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutation.old)
    assert count == 1, f"{mutation.function} has {count} times {mutation.old!r}: adapt this mutation"
    replaced = source.replace(mutation.old, mutation.new)
    within = f"def made(__class__):\n{textwrap.indent(replaced, '    ')}\n    return {mutation.function}"  # for super()
    code = compile(within, "mutated", "exec", flags=annotations.compiler_flag, dont_inherit=True)
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)
    try:
        _forget()
        made = names["made"](mutation.owner)
        with ExitStack() as stack:
            for owner in _owners(mutation.owner, mutation.function):
                stack.enter_context(mock.patch.object(owner, mutation.function, made))
            yield
    finally:
        _forget()


def _owners(owner: Any, function: str) -> list[Any]:
    """Return the class or the module, and what others of the core have taken the function from there."""
    if isinstance(owner, type):
        return [owner]
    core = [module for name, module in sys.modules.items() if name.startswith("clustersim.core.")]
    takers = [one for one in core if getattr(one, function, None) is getattr(owner, function) and one is not owner]
    return [owner, *takers]


def _forget() -> None:
    """Expand anew what was expanded before."""
    step_blueprints.cache_clear()
    single_device.cache_clear()
