"""The schema's findings in a user's words: what was found, what would do, and where it is written."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.scenario.checks import cross_findings
from clustersim.scenario.document import Document, KeyPath, dotted
from clustersim.scenario.schema import POOLS, SHORTHANDS, ScenarioPart
from clustersim.scenario.text.scalars import kind_of
from clustersim.units import plural, whole_number

_QUOTED: Final = re.compile(r"'([^']*)'")

_EXPECTED: Final[Mapping[str, str]] = {
    "int_type": "a whole number such as 8",
    "int_from_float": "a whole number such as 8",
    "float_type": "a number such as 0.9",
    "finite_number": "a finite number such as 0.9",
    "string_type": "text such as a name",
    "bool_type": "true or false",
    "list_type": "a list such as [1, 2]",
    "dict_type": "a mapping such as {key: value}",
    "model_type": "a mapping such as {key: value}",
}
"""Kind of finding → what would do; the finding says what was found."""

_RANGES: Final[Mapping[str, str]] = {
    "greater_than": "more than {gt:,.12g}",
    "greater_than_equal": "at least {ge:,.12g}",
    "less_than": "less than {lt:,.12g}",
    "less_than_equal": "at most {le:,.12g}",
}


def _example(field: FieldInfo | None, error: ErrorDetails) -> str | None:
    """Return what would do at the place of an error: of an item of a list, or a value of a mapping, the first one."""
    example = str(field.examples[0]) if field is not None and field.examples else None
    if example is None or field is None:
        return None
    if error["loc"] and isinstance(error["loc"][-1], int):
        first = example.strip("[]")
        return first if first.startswith("{") else first.split(", ")[0]
    kinds = (field.annotation, *typing.get_args(field.annotation))
    of_value = any(typing.get_origin(kind) is dict for kind in kinds) and error["type"] == "string_type"
    return example.strip("{}").partition(": ")[2] if of_value else example


def _wrong_type(error: ErrorDetails, field: FieldInfo | None) -> str:
    expected = _EXPECTED[error["type"]]
    if (example := _example(field, error)) is not None and " such as " in expected:
        kind = expected.split(" such as ")[0]
        named = kind == "a mapping" and not example.startswith("{")
        expected = f"a name such as {example}, or a mapping" if named else f"{kind} such as {example}"
    elif (short := SHORTHANDS.get(error["loc"])) is not None and error["type"] in ("model_type", "dict_type"):
        expected = f"a {short} such as 2, or a mapping such as {{{short}: 2}}" if short == "degree" else expected
    meant = whole_number(error["input"]) if error["type"].startswith("int_") else None
    return f"expected {expected}, but found {kind_of(error['input'])}" + (f"; did you mean {meant}?" if meant else "")


def _out_of_range(error: ErrorDetails, field: FieldInfo | None) -> str:
    del field
    bound = _RANGES[error["type"]].format(**error.get("ctx", {}))
    return f"must be {bound}, but is {error['input']}"


def _not_a_choice(error: ErrorDetails, field: FieldInfo | None) -> str:
    del field
    choices = _QUOTED.findall(error.get("ctx", {}).get("expected", ""))
    hint = did_you_mean(error["input"], choices) if isinstance(error["input"], str) else ""
    hint = hint if "did you mean" in hint else ""
    return f"expected one of {', '.join(choices)}, but found {kind_of(error['input'])}{hint}"


def _missing(error: ErrorDetails, field: FieldInfo | None) -> str:
    example = _example(field, error)
    return f"is missing; add it, such as '{error['loc'][-1]}: {example}'" if example else "is missing"


def _bad_value(error: ErrorDetails, field: FieldInfo | None) -> str:
    words = str(error.get("ctx", {}).get("error", error["msg"]))
    example = _example(field, error)
    return re.sub("(?<=such as ')[^']*", example, words) if example else words


def _bad_name(error: ErrorDetails, field: FieldInfo | None) -> str:
    del field
    return f"expected letters, digits, '.', '_' and '-' (it names a folder), but found {kind_of(error['input'])}"


def _bad_length(error: ErrorDetails, field: FieldInfo | None) -> str:
    context = error.get("ctx", {})
    least, unit = "min_length" in context, "character" if error["type"].startswith("string") else "item"
    bound = f"at {'least' if least else 'most'} {plural(context['min_length' if least else 'max_length'], unit)}"
    example = f", such as {shown}" if unit == "item" and (shown := _example(field, error)) is not None else ""
    return f"expected {bound}{example}, but found {context.get('actual_length', len(error['input']))}"


_WORDS: Final[Mapping[str, Callable[[ErrorDetails, FieldInfo | None], str]]] = {
    **dict.fromkeys(_EXPECTED, _wrong_type),
    **dict.fromkeys(_RANGES, _out_of_range),
    **dict.fromkeys(("too_short", "too_long", "string_too_long", "string_too_short"), _bad_length),
    "literal_error": _not_a_choice,
    "missing": _missing,
    "value_error": _bad_value,
    "string_pattern_mismatch": _bad_name,
}


def _part_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation such as ``Annotated[TensorPart, …] | None`` speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = (_part_of(argument) for argument in typing.get_args(annotation))
    return next((part for part in parts if part is not None), None)


def _field_at(model: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the model that holds the last key of a path, and the field there if it has one."""
    holder: type[BaseModel] = model
    field: FieldInfo | None = None
    for position, part in enumerate(path):
        if isinstance(part, int):
            continue
        field = holder.model_fields.get(part)
        inner = None if field is None else _part_of(field.annotation)
        if inner is None or position == len(path) - 1:
            return holder, field
        holder = inner
    return holder, field


def _written(path: KeyPath, data: Any) -> KeyPath:
    """Cut a path where the document has a lone value in place of a mapping (``plan.tp: 8``)."""
    for position, part in enumerate(path):
        if not isinstance(data, dict | list):
            return path[:position]
        if isinstance(data, list):
            data = data[part] if isinstance(part, int) and part < len(data) else None
        else:
            data = data.get(part)
            if data is None:
                return path[: position + 1] if position < len(path) - 1 else path
    return path


def known_as(name: str, path: KeyPath = ()) -> str:
    """Lead from what an engine or a benchmark calls a key to ours; empty where none is known under the name.

    A key of a pool is led to in that pool. Where a lone value would do (``plan.tp: 8``), its key is left out.

    Examples
    --------
    >>> known_as("--tp-size"), known_as("tp_size", ("plan", "decode", "tp_size"))
    ('; here it is plan.tp', '; here it is plan.decode.tp')
    """
    from clustersim.scenario.keys.json_schema import key_texts

    key, equals, value = key_texts()["known_as"].get(_plain(name), "").partition("=")
    ours: KeyPath = tuple(key.split("."))
    if len(path) > 2 and path[0] == ours[0] and path[1] in POOLS:
        inside = (*path[:2], *ours[1:])
        ours = inside if _field_at(ScenarioPart, inside)[1] is not None else ours
    if SHORTHANDS.get(ours[:-1]) == ours[-1] and path[:-1] != ours[:-1]:
        ours = ours[:-1]
    return f"; here it is {dotted(ours)}{equals}{value}" if key else ""


def parts_with(name: str) -> list[str]:
    """Return the parts of a scenario that have a key.

    Examples
    --------
    >>> parts_with("tp"), parts_with("max_batch_tokens")
    (['plan'], ['serving'])
    """
    fields = {part: field.annotation for part, field in ScenarioPart.model_fields.items() if part != "faults"}  # a list
    parts = {part: _part_of(annotation) for part, annotation in fields.items()}
    return [part for part, model in parts.items() if model is not None and name in model.model_fields]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _unknown(path: KeyPath, known: Sequence[str]) -> str:
    """Lead from an unknown key to ours: an engine's name for it, or the nearest beside it.

    Inside a part of a part its own keys come first: ``rate`` of a trace is ``rate_scale``. A key of a part that stands
    outside of all (``tp``) is led to where it belongs.
    """
    name = str(path[-1])
    if len(path) == 1 and (inside := parts_with(name)):
        return f"; did you mean {inside[0]}.{name}?"
    there, beside = known_as(name, path), did_you_mean(name, known)
    own = there.partition("is ")[2].startswith(f"{dotted(path[:-1])}.")
    return there if there and (own or len(path) < 3 or "did you mean" not in beside) else beside


def _problem(error: ErrorDetails, document: Document) -> Problem:
    path = error["loc"]
    holder, field = _field_at(ScenarioPart, path)
    if error["type"] == "extra_forbidden":
        hint = _unknown(path, list(holder.model_fields))
        return document.problem(path, f"unknown key {str(path[-1])!r}{hint}", key=True)
    words = _WORDS.get(error["type"])
    message = error["msg"] if words is None else words(error, field)
    if path == ("name",) and path not in document.marks:
        message += f", that of the file; add a name, such as '{path[0]}: {_example(field, error)}'"
    return document.problem(_written(path, document.data), message)


OVERRIDE: Final = "override "
"""What names of overrides begin with that are not options."""


def in_order(problems: list[Problem]) -> list[Problem]:
    """Sort problems by position, those of ``--set`` last, and drop what aliases say twice."""
    unique = {(p.file, p.line, p.column, p.message): p for p in problems}

    def place(problem: Problem) -> tuple[bool, int, str, int, int]:
        file = problem.file or ""
        flag, _, number = file.partition("#") if file.startswith("--set #") else ("", "", "0")
        return bool(flag) or file.startswith(OVERRIDE), int(number), file, problem.line or 0, problem.column or 0

    return sorted(unique.values(), key=place)


def validate(document: Document) -> ScenarioPart:
    """Check a scenario document and return it with its defaults.

    Raises
    ------
    InputError
        With every problem of the document, sorted by position.
    """
    problems = [document.problem(path, message) for path, message in cross_findings(document.data)]
    try:
        part = ScenarioPart.model_validate(document.data)
    except ValidationError as error:
        problems += [_problem(details, document) for details in error.errors()]
        raise InputError(in_order(problems)) from None
    if problems:
        raise InputError(in_order(problems))
    return part
