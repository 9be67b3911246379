"""The keys of a scenario's ``workload``: a recorded trace, or arrivals and lengths to draw."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from clustersim.scenario.fields import (
    MOST,
    Count,
    Duration,
    DurationOrZero,
    Index,
    Part,
    Positive,
    Rate,
    Weight,
    refuse,
    short_for,
)
from clustersim.workload.limits import MAX_SCALE, MAX_TOKENS, MIN_SCALE


def _repeated(value: object) -> object:
    """Return how a trace is repeated: all of it or its first so many requests; a number is at least 1."""
    if isinstance(value, bool) or (isinstance(value, int | float) and 1 <= value <= MOST and value % 1 == 0):
        return value
    raise refuse("true, or how many of the first requests are repeated, such as 500", value)


class ColumnsPart(Part):
    """What the columns of a trace, or the keys of its JSON lines, are called, where they have no usual names."""

    arrival: str | None = Field(default=None, examples=["created"])
    prompt_tokens: str | None = Field(default=None, examples=["tokens_in"])
    output_tokens: str | None = Field(default=None, examples=["tokens_out"])
    priority: str | None = Field(default=None, examples=["urgency"])
    cancel_after: str | None = Field(default=None, examples=["timeout"])
    hash_ids: str | None = Field(default=None, examples=["blocks"])
    error: str | None = Field(default=None, examples=["exception"])
    success: str | None = Field(default=None, examples=["ok"])
    unit: Literal["s", "ms", "us", "ns", "iso"] | None = None


class TracePart(Part):
    """A recorded trace, a part of it, how much faster to play it, and whether again until there are enough."""

    path: str = Field(examples=["traces/azure-conv-sample.csv"])
    format: str | None = Field(default=None, examples=["csv"])
    columns: ColumnsPart | None = Field(default=None, examples=["{arrival: created, unit: s}"])
    block_tokens: Count | None = None
    benchmark: Count | None = None
    requests: Count | None = None
    window: Annotated[list[DurationOrZero], Field(min_length=2, max_length=2)] | None = Field(
        default=None, examples=["[0 s, 60 s]"]
    )
    rate_scale: Annotated[float, Field(ge=MIN_SCALE, le=MAX_SCALE)] = 1.0
    repeat: Annotated[bool | Count, BeforeValidator(_repeated)] = False
    turns: Literal["as_recorded", "wait"] = "as_recorded"


class ArrivalsPart(Part):
    """When drawn requests arrive."""

    process: Literal["poisson", "gamma", "constant", "all_at_once", "closed_loop"] = Field(examples=["poisson"])
    rate: Rate | None = None
    cv: Positive | None = None
    rescale: bool = False
    concurrency: Count | None = None


class UniformPart(Part):
    """Whole numbers from low to high, both included, all equally likely."""

    low: Count = Field(examples=[128])
    high: Count = Field(examples=[1024])


class LognormalPart(Part):
    """A log-normal length by mean and cv, or by median and σ of the logarithm; clipped to min … max."""

    mean: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = Field(default=None, examples=[1024])
    cv: Positive | None = None
    median: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = Field(default=None, examples=[700])
    sigma: Annotated[float, Field(ge=1e-6, le=20)] | None = None
    min: Count = 1
    max: Count = MAX_TOKENS


class EmpiricalPart(Part):
    """One of the values, in proportion to the weights; or the lengths of a recorded trace."""

    values: Annotated[list[Count], Field(min_length=1)] | None = Field(default=None, examples=["[128, 1024]"])
    weights: list[Weight] | None = None
    trace: str | None = Field(default=None, examples=["traces/azure-conv-sample.csv"])
    format: str | None = Field(default=None, examples=["csv"])


class LengthsPart(Part):
    """How lengths in tokens are drawn: exactly one of these."""

    fixed: Count | None = None
    uniform: UniformPart | None = Field(default=None, examples=["{low: 128, high: 1024}"])
    lognormal: LognormalPart | None = Field(default=None, examples=["{mean: 1024, cv: 1.2}"])
    empirical: EmpiricalPart | None = Field(default=None, examples=["{values: [128, 1024]}"])


class SharedPrefixesPart(Part):
    """Starts of drawn prompts that groups of requests have in common, such as system prompts."""

    groups: Count = Field(examples=[10])
    tokens: Count = Field(examples=[1024])
    zipf: Annotated[float, Field(ge=0, le=100)] = 0.0


class PriorityPart(Part):
    """How urgent drawn requests are: one of the values, in proportion to the weights; lower numbers go first."""

    values: Annotated[list[Annotated[Index, Field(le=999_999_999)]], Field(min_length=1)] = Field(examples=[[0, 1]])
    weights: list[Weight] | None = None


class DurationsPart(Part):
    """Times from low to high, all equally likely."""

    low: DurationOrZero = Field(examples=["1 s"])
    high: Duration = Field(examples=["10 s"])


class CancelPart(Part):
    """Which share of the clients gives up, and how long after the arrival: exactly one of the times."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    fixed: DurationOrZero | None = Field(default=None, examples=["10 s"])
    uniform: DurationsPart | None = Field(default=None, examples=["{low: 1 s, high: 10 s}"])
    exponential: Duration | None = Field(default=None, examples=["10 s"])


class WorkloadPart(Part):
    """The requests: recorded (``trace``), or drawn (all the other keys)."""

    trace: Annotated[TracePart, short_for("path", str | TracePart)] | None = Field(
        default=None, examples=["traces/azure-conv-sample.csv"]
    )
    arrivals: Annotated[ArrivalsPart, short_for("process", str | ArrivalsPart)] | None = Field(
        default=None, examples=["{process: poisson, rate: 4/s}"]
    )
    prompt_tokens: Annotated[LengthsPart, short_for("fixed", int | LengthsPart)] | None = Field(
        default=None, examples=["{fixed: 1024}"]
    )
    output_tokens: Annotated[LengthsPart, short_for("fixed", int | LengthsPart)] | None = Field(
        default=None, examples=["{fixed: 128}"]
    )
    requests: Count | None = None
    shared_prefixes: SharedPrefixesPart | None = Field(default=None, examples=["{groups: 10, tokens: 1024}"])
    priority: PriorityPart | None = Field(default=None, examples=["{values: [0, 1]}"])
    cancel_after: Annotated[CancelPart, short_for("fixed", str | CancelPart)] | None = Field(
        default=None, examples=["10 s"]
    )
