"""Reads typed fields from a configuration under any of several keys, and collects every mistake on the way.

A field that is missing or ill-typed adds a :class:`~clustersim.errors.Problem` and yields None (a size: 0):
one pass finds all mistakes; :meth:`ConfigReader.raise_problems` ends it. ``null`` counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from clustersim.errors import InputError, Problem, nearest
from clustersim.model.weight_shapes import DTYPE, KEYS
from clustersim.units import plural

NESTED: Final = ("text_config", "llm_config")
"""Where a multimodal configuration keeps its language model."""

SHARED: Final = ("model_type", "tie_word_embeddings", *DTYPE, *KEYS)
"""Keys that a nested language model inherits from the level above when it lacks them."""


MOST: Final = 2**24
"""A larger size is taken for a mistake (assumed: published ones end at 10,485,760 positions, and 262,208 words)."""
_MOST_NUMBER: Final = 1e9
"""Likewise of what is no size."""


class ConfigReader:
    """One pass over a Hugging Face ``config.json``.

    Parameters
    ----------
    config : mapping
        The parsed file. Where it nests its language model, the nested keys are read.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._values: dict[str, object] = {}
        self._prefix: dict[str, str] = {}
        self._used: set[str] = set()
        self._outer: tuple[str, ...] = ()
        self._home = ""
        self.problems: list[Problem] = []
        inner = next((key for key in NESTED if isinstance(config.get(key), Mapping)), None)
        if inner is None:
            self._take("", config)
            return
        nested = config[inner]
        assert isinstance(nested, Mapping)
        self._take("", {key: config[key] for key in SHARED if key in config})
        self._home = f"{inner}."
        self._take(self._home, nested)
        self._outer = tuple(str(key) for key in config if key != inner and key not in SHARED)

    def _take(self, prefix: str, values: Mapping[str, object]) -> None:
        for key, value in values.items():
            if value is not None or key not in self._values:  # what is null inside is not so above
                self._values[str(key)], self._prefix[str(key)] = value, prefix

    def path(self, key: str) -> str:
        """Return the dotted path of ``key`` in the file, where it is or where it would have to be."""
        return self._prefix.get(key, self._home) + key

    def present(self, keys: Sequence[str]) -> str | None:
        """Return the first of ``keys`` that has a value; it, and others of that value, count as read."""
        found = [key for key in keys if self._values.get(key) is not None]
        self._used.update(key for key in found if self._values[key] == self._values[found[0]])
        return found[0] if found else None

    def value(self, key: str) -> object:
        """Return the raw value of ``key``, None if absent, and count it as read."""
        self._used.add(key)
        return self._values.get(key)

    def assume(self, defaults: Mapping[str, object]) -> None:
        """Take values for keys that the file does not have; ``null`` in the file stays."""
        self._used.update(defaults)
        self._values = {**defaults, **self._values}

    def set_keys(self) -> tuple[str, ...]:
        """Return the keys of the language model that have a value, in the order of the file."""
        return tuple(key for key, value in self._values.items() if value is not None)

    def unused(self, harmless: Iterable[str]) -> tuple[str, ...]:
        """Return the sorted paths of the keys that were not read and are not ``harmless``."""
        ignored = set(harmless)
        inner = [self.path(key) for key in self.set_keys() if key not in self._used | ignored]
        return tuple(sorted([*inner, *(key for key in self._outer if key not in ignored)]))

    def fail(self, key: str, message: str) -> None:
        """Record what is wrong with ``key``, once."""
        problem = Problem(message=message, path=self.path(key))
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_problems(self) -> None:
        """Raise everything that was recorded.

        Raises
        ------
        InputError
            When at least one problem was recorded.
        """
        if self.problems:
            raise InputError(self.problems)

    def integer(self, keys: Sequence[str], *, most: int | None = None) -> int:
        """Return the whole number ≥ 1 under the first present key; it must be there (0 where it is not)."""
        key = self.present(keys)
        if key is None:
            self._missing(keys, "a whole number of at least 1")
            return 0
        return self._checked(key, self._values[key], 1, most) or 0

    def optional_integer(self, keys: Sequence[str], *, least: int = 1) -> int | None:
        """Return the whole number under the first present key, or None."""
        key = self.present(keys)
        return None if key is None else self._checked(key, self._values[key], least, None)

    def optional_number(self, keys: Sequence[str]) -> float | None:
        """Return the finite number above 0 under the first present key, or None."""
        key = self.present(keys)
        if key is None:
            return None
        found = self._values[key]
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= _MOST_NUMBER:
            self.fail(key, f"expected a number above 0, but found {found!r}")
            return None
        return float(found)

    def flag(self, keys: Sequence[str]) -> bool | None:
        """Return the truth value under the first present key, or None."""
        key = self.present(keys)
        if key is None:
            return None
        found = self._values[key]
        if not isinstance(found, bool):
            self.fail(key, f"expected true or false, but found {found!r}")
            return None
        return found

    def word(self, keys: Sequence[str]) -> str | None:
        """Return the text under the first present key, or None."""
        key = self.present(keys)
        if key is None:
            return None
        found = self._values[key]
        if not isinstance(found, str):
            self.fail(key, f"expected a text, but found {found!r}")
            return None
        return found

    def integers(self, key: str, *, length: int = 0) -> tuple[int, ...] | None:
        """Return the list of whole numbers ≥ 0 under ``key``, or None; it has ``length`` entries (0: any)."""
        found = self._list(key, length)
        if found is None:
            return None
        checked = [self._checked(key, item, 0, None) for item in found]
        return tuple(item or 0 for item in checked)

    def words(self, key: str, choices: Sequence[str], *, length: int) -> tuple[str, ...] | None:
        """Return the list of texts, each one of ``choices``, under ``key``, or None; ``length`` as above."""
        found = self._list(key, length)
        if found is None:
            return None
        unknown = [item for item in found if item not in choices]
        if unknown:
            self.fail(key, f"{unknown[0]!r} layers are not modelled; only {' and '.join(choices)} are")
            return None
        return tuple(str(item) for item in found)

    def _list(self, key: str, length: int) -> list[object] | None:
        if self.present((key,)) is None:
            return None
        found = self._values[key]
        if not isinstance(found, list | tuple):
            self.fail(key, f"expected a list, but found {found!r}")
            return None
        if length and len(found) != length:
            self.fail(key, f"has {plural(len(found), 'entry', 'entries')}, but the model has {plural(length, 'layer')}")
            return None
        return list(found)

    def _checked(self, key: str, found: object, least: int, most: int | None) -> int | None:
        number = found if isinstance(found, int) and not isinstance(found, bool) else None
        if number is not None and least <= number <= (most or MOST):
            return number
        too_many = number is not None and number > least
        wanted = f"from {least} to {most or MOST}" if too_many else f"of at least {least}"
        self.fail(key, f"expected a whole number {wanted}, but found {found!r}")
        return None

    def _missing(self, keys: Sequence[str], wanted: str) -> None:
        first, *others = keys
        also = f" ({' or '.join(others)} would also do)" if others else ""
        alike = nearest(first, [key for key in self._values if key not in self._used])
        guess = f"; is {self.path(alike)!r} a misspelling?" if alike is not None else ""
        self.fail(first, f"is missing; expected {wanted}{also}{guess}")
