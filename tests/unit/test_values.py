"""Values behave as dataclasses of the standard library do: each case is made both ways and told in words."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

import clustersim
from clustersim import values

OPTIONS = (
    {}, {"frozen": True}, {"frozen": True, "slots": True}, {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True, "eq": False}, {"frozen": True, "eq": False, "repr": False}, {"order": True, "frozen": True},
)  # fmt: skip


def _classes(make: Callable[..., Any], options: dict[str, bool]) -> tuple[type, ...]:
    @make(**options)
    class Base:
        """Has a field without a default."""

        size: int

    @make(**options)
    class Derived(Base):
        """Has one of each kind of default, and what is made behind them."""

        names: list[str] = field(default_factory=list)
        told: int = field(default=3, repr=False, compare=False)
        made: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", self.size + 1)

    @make(**options)
    class Own:
        """Has a hash and words of its own."""

        size: int = 2

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    @make(**options)
    class Empty:
        """Has no field."""

    return Base, Derived, Own, Empty


def _told(act: Callable[[], object]) -> str:
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _behaviour(make: Callable[..., Any], options: dict[str, bool]) -> Iterator[str]:
    base, derived, own, empty = _classes(make, options)
    for act in (
        lambda: base(size=1), lambda: base(1), base, lambda: derived(size=1, names=["a"], told=4),
        lambda: derived(size=1).names, lambda: derived(size=1, made=3), own, lambda: own(size=3), empty,
        lambda: hash(base(size=1)) == hash((1,)), lambda: hash(own()), lambda: hash(empty()) == hash(()),
        lambda: hash(derived(size=1, told=1)) == hash(derived(size=1)), lambda: base(size=1) == base(size=1),
        lambda: base(size=1) == derived(size=1),
        lambda: derived(size=1, told=1) == derived(size=1, told=2), lambda: empty() == empty(),
        lambda: setattr(base(size=1), "size", 2), lambda: delattr(base(size=1), "size"),
        lambda: base(size=1) < base(size=2),
        lambda: dataclasses.replace(base(size=1), size=2).size, lambda: dataclasses.asdict(derived(size=1)),
        lambda: copy.copy(derived(size=1, names=["a"])).names, lambda: copy.deepcopy(base(size=[1])).size,
        lambda: [one.name for one in dataclasses.fields(derived)], lambda: base.__match_args__,
    ):  # fmt: skip
        yield re.sub(r"0x[0-9a-f]+", "0x", _told(act))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "none")
def test_dataclass_does_what_the_standard_library_does(options: dict[str, bool]) -> None:
    assert list(_behaviour(values.dataclass, options)) == list(_behaviour(dataclasses.dataclass, options))


@values.dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers, known by name where it is unpickled."""

    first: int
    second: int = 2


def test_dataclass_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pair(1))) == Pair(1, 2)


def test_all_dataclasses_are_made_by_values() -> None:
    told = re.compile(r"from dataclasses import .*\bdataclass\b|import dataclasses")
    root = Path(clustersim.__file__).parent
    here = {str(path.relative_to(root)) for path in root.rglob("*.py") if told.search(path.read_text("utf-8"))}
    assert here == {"values.py", "cli/commands/models.py"}
