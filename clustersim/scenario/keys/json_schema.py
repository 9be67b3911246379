"""The JSON schema of scenarios, and what each key means."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from clustersim.scenario.schema import POOLS, ScenarioPart

_FILE: Final = Path(__file__).with_name("meanings.yaml")


@cache
def key_texts() -> dict[str, dict[str, str]]:
    """Return ``meanings`` and ``defaults`` (dotted key → Markdown), and ``known_as`` (a name elsewhere → dotted key).

    Both kinds of length have the meanings of prompts.
    """
    found: dict[str, dict[str, str]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


def keys(part: type[BaseModel] = ScenarioPart, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted keys of a part that have no keys of their own, in order; those of one pool are left out."""
    for name, field in part.model_fields.items():
        inner = inner_part(field.annotation)
        if inner is None or name in POOLS:  # a pool has the keys of the whole
            yield prefix + name, field
        else:
            yield from keys(inner, f"{prefix}{name}.")


def inner_part(annotation: Any) -> type[BaseModel] | None:
    """Return the part that stands behind an annotation; None for a list of them, too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) not in (typing.Annotated, typing.Union, types.UnionType):
        return None
    return next((part for part in map(inner_part, typing.get_args(annotation)) if part is not None), None)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of scenarios, for editors (``# yaml-language-server: $schema=…``)."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "clustersim scenario"}
    schema = ScenarioPart.model_json_schema(mode="validation")
    _describe(schema, ScenarioPart, "")
    return head | {key: value for key, value in schema.items() if key not in head}


def _describe(schema: dict[str, Any], part: type[BaseModel], prefix: str) -> None:
    """Write into the schema what the keys of a part mean."""
    definition = schema if part is ScenarioPart else schema["$defs"][part.__name__]
    meanings = key_texts()["meanings"]
    for name, field in part.model_fields.items():
        inner = inner_part(field.annotation) or _of_list(field.annotation)
        meaning = meanings.get(prefix + name)
        if meaning is not None:
            definition["properties"][name].setdefault("description", meaning)
        if inner is not None:
            _describe(schema, inner, prefix if name in POOLS else f"{prefix}{name}.")


def _of_list(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) is not list:
        return None
    return inner_part(typing.get_args(annotation)[0])
