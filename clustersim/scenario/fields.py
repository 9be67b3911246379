"""The types of fields in a scenario: whole numbers, quantities with units, and short forms of mappings.

Nothing is guessed: text is no number, ``true`` is no number. A number that is written with an exponent
(``1e6``) is whole when its value is.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from clustersim import units
from clustersim.scenario.text.scalars import kind_of
from clustersim.workload.limits import MAX_TOKENS

LONGEST_S: Final = 2**63 / 1e9
"""292 years: what int64 nanoseconds hold."""
MOST: Final = 2**53
"""Largest whole number in a scenario (floats are exact up to here)."""


HIGHEST: Final = {"bytes": 1e15, "rate": 1e9}
BASE: Final = {"bytes": "B", "rate": "/s"}
"""Largest quantities (assumed: a petabyte per device; a request per tick of the clock), and their base unit."""

SHORTEST_S: Final = 0.5e-9
"""Half a tick of the clock: what is shorter is no time at all."""


class Part(BaseModel):
    """Base of every mapping in a scenario: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MOST else value


def short_for(key: str, written: Any) -> Any:
    """Return a validator by which a lone value stands for a mapping with this key.

    ``written`` is the type of what may be written, for editors.
    """

    def expand(value: object) -> object:
        return value if isinstance(value, dict | list) or value is None else {key: value}

    return BeforeValidator(expand, json_schema_input_type=written)


def quantity(dimension: str, example: str, *, zero: bool = False) -> Any:
    """Return the type of a quantity with its unit; the value is in base units (bytes, bytes/s, s, 1/s)."""

    def read(value: object) -> float:
        number = units.parse(value, dimension)
        if number < 0 or (number == 0 and not zero):
            raise ValueError(f"must be {'at least' if zero else 'more than'} 0, but is {value}")
        if number > HIGHEST.get(dimension, math.inf):
            raise ValueError(f"must be at most {HIGHEST[dimension]:g} {BASE[dimension]}, but is {value}")
        if dimension == "time" and number >= LONGEST_S:
            raise ValueError(f"must be less than 292 years, but is {value}")
        if dimension == "time" and 0 < number < SHORTEST_S:
            raise ValueError(f"must be at least 1 ns{', or 0' if zero else ''}, but is {value}")
        return number

    schema = {"type": "string", "examples": [example]}
    return Annotated[float, BeforeValidator(read), WithJsonSchema(schema)]


Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_whole)]
"""A whole number from 1."""
StepTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS), BeforeValidator(_whole)]
"""Tokens of a step, which a record tells in 32 bits."""
Index = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_whole)]
"""A whole number from 0."""
Duration = quantity("time", "60 s")
DurationOrZero = quantity("time", "0 s", zero=True)
Bytes = quantity("bytes", "64 GiB")
Rate = quantity("rate", "4/s")
Weight = Annotated[float, Field(ge=0, le=MOST)]
Positive = Annotated[float, Field(gt=0)]


def refuse(expected: str, value: object) -> ValueError:
    """Return the error for a value of the wrong kind."""
    return ValueError(f"expected {expected}, but found {kind_of(value)}")
