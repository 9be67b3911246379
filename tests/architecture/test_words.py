"""Names of modules, classes and YAML keys are made of words that are listed: those of the field, or ordinary ones.

A word of the field has its meaning in CONTRIBUTING, in the table of words; an ordinary one stands in
``ordinary_words.txt``. Who needs a third kind invents a word: the field has one.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from clustersim.scenario import schema, workload_schema
from tests.architecture.documents import rows
from tests.architecture.test_imports import modules

ORDINARY: Final = Path(__file__).with_name("ordinary_words.txt")
CLASS: Final = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)
CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|[a-z]+")


def words_of(name: str) -> list[str]:
    """Return the words of a name, of ``snake_case`` or ``CamelCase``, without digits."""
    return [word.lower() for word in CAMEL.findall(name)]


@cache
def names() -> dict[str, str]:
    """Return every name of a module, a class or a YAML key, and where it stands."""
    found: dict[str, str] = {}
    for module, path in modules():
        for part in module.split("."):
            found.setdefault(part, module)
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            found.setdefault(name, module)
    for part in (schema, workload_schema):
        for model in vars(part).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                for key in model.model_fields:
                    found.setdefault(key, f"the keys of {part.__name__}.{model.__name__}")
    return found


@cache
def terms() -> frozenset[str]:
    """Return the words of the field: all in the first column of CONTRIBUTING's table."""
    return frozenset(word for cells in rows("CONTRIBUTING.md", "word") for word in words_of(cells[0]))


@cache
def ordinary() -> tuple[str, ...]:
    return tuple(ORDINARY.read_text(encoding="utf-8").split())


def invented(name: str) -> list[str]:
    """Return the words of a name that are neither listed nor the plural of one that is."""
    known = terms().union(ordinary())
    return [word for word in words_of(name) if not {word, word.removesuffix("s"), word.removesuffix("es")} & known]


def test_names_are_made_of_listed_words() -> None:
    odd = {word: f"{name} ({where})" for name, where in names().items() for word in invented(name)}
    assert not odd, (
        f"not listed: {', '.join(f'{word} in {where}' for word, where in sorted(odd.items()))}. Take the field's word; "
        "list it with its meaning in CONTRIBUTING's table of words, or in tests/architecture/ordinary_words.txt if "
        "everybody knows it"
    )


@pytest.mark.parametrize("name", ["passage", "JourneyTable", "kv_strain"])
def test_an_invented_word_is_seen(name: str) -> None:
    assert invented(name)


def test_ordinary_words_are_sorted_used_and_no_terms() -> None:
    listed = list(ordinary())
    assert listed == sorted(set(listed))
    used = {word for name in names() for word in words_of(name)}
    used |= {word.removesuffix("s") for word in used} | {word.removesuffix("es") for word in used}
    assert [word for word in listed if word not in used] == []
    assert [word for word in listed if word in terms()] == []
