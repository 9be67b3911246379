"""Values: ``dataclass`` of the standard library, of which only ``__init__`` is compiled for each class.

``dataclasses`` writes the text of up to eight methods of a class and compiles each: of 300 classes that a run imports
this took 0.2 s of CPU, a quarter of its start. Here all but ``__init__`` are closures over the names of the fields, and
do the same. Fields, slots, ``replace``, ``fields`` and ``asdict`` are those of the standard library; a class with other
options than ``KNOWN`` is made there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

KNOWN: Final = {"frozen": False, "slots": False, "kw_only": False, "eq": True, "repr": True}
"""Options that are understood here, and what holds without them."""

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a class a dataclass, as ``dataclasses.dataclass`` does."""
        if not KNOWN.keys() >= options.keys():
            return dataclasses.dataclass(cls, **options)
        chosen = KNOWN | options
        return (lambda cls: _made(cls, chosen)) if cls is None else _made(cls, chosen)


def _made(cls: type, options: dict[str, bool]) -> Any:
    own = vars(cls)
    hashes = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    chosen = {name: options[name] for name in ("slots", "kw_only")}
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **chosen)(cls)
    made.__init__ = _LazyInit(made, frozen=options["frozen"])
    if options["repr"] and "__repr__" not in own:
        made.__repr__ = _told([one.name for one in fields(made) if one.repr])
    if options["eq"]:
        equal, hashed = _compared([one.name for one in fields(made) if one.compare])
        if "__eq__" not in own:
            made.__eq__ = equal
        if not hashes:
            made.__hash__ = hashed if options["frozen"] else None
    if options["frozen"]:
        made.__setattr__, made.__delattr__ = _frozen(made)
        if options["slots"]:
            made.__getstate__, made.__setstate__ = _state, _set_state
    return made


class _LazyInit:
    """``__init__`` of a class until somebody asks for it: most classes that a command imports have no instance."""

    __slots__ = ("_cls", "_frozen")

    def __init__(self, cls: Any, *, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Compile it, and leave it where this was found."""
        init = _init(self._cls, frozen=self._frozen)
        self._cls.__init__ = init
        return init if instance is None else init.__get__(instance)


def _init(cls: Any, *, frozen: bool) -> Any:
    """Return ``__init__``, the one method that is compiled: it is called for each value that is made."""
    known: dict[str, Any] = {"set_field": object.__setattr__, "MISSING": MISSING}
    takes: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for one in fields(cls):
        name, default, value = one.name, "", one.name
        if one.default_factory is not MISSING:
            known[f"make_{name}"], default = one.default_factory, "=MISSING"
            value = f"make_{name}() if {name} is MISSING else {name}" if one.init else f"make_{name}()"
        elif one.default is not MISSING:
            known[f"default_{name}"], default = one.default, f"=default_{name}"
            value = name if one.init else f"default_{name}"
        if one.init:
            takes[bool(one.kw_only)].append(name + default)
        if one.init or default:
            lines.append(f"set_field(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    heads = ", ".join(["self", *takes[False], *(["*", *takes[True]] if takes[True] else [])])
    exec(f"def __init__({heads}):\n " + "\n ".join(lines or ["pass"]), known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _told(names: list[str]) -> Any:
    """Return ``__repr__``."""

    @recursive_repr()
    def told(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return told


def _compared(names: list[str]) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int]]:
    """Return ``__eq__`` and ``__hash__``."""

    def one_by_one(self: Any) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in names)

    values: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else one_by_one

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return equal, hashed


def _frozen(cls: Any) -> tuple[Callable[[Any, str, Any], None], Callable[[Any, str], None]]:
    """Return ``__setattr__`` and ``__delattr__`` of values that nobody changes."""
    names = frozenset(one.name for one in fields(cls))

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return assign, delete


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


__all__ = ["dataclass"]
