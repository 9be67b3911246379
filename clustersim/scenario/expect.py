"""What a scenario expects of its own summary: ``expect: {legal: true, "ttft_ms.p99": "< 2000"}``.

A value is a literal (equal), a comparison (``< 2000``, ``<=``, ``>``, ``>=``, ``==``) or a range
with its ends (``10 .. 20``). Units are those in the key's name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.scenario.document import Document, KeyPath
from clustersim.scenario.schema import ScenarioPart
from clustersim.scenario.text.scalars import Scalar, kind_of, plain_scalar
from clustersim.values import dataclass

_DISTRIBUTION: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_REQUESTS: Final = ("arrived", "finished", "rejected", "unfinished", "cancelled", "lost")
_THROUGHPUT: Final = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
_PREFIX_CACHE: Final = ("hit_rate", "block_hit_rate", "infinite_block_hit_rate", "cached_tokens")
_TIMES: Final = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_queueing_ms", "ttft_prefill_ms")
_CAUSES: Final = (
    "front_end", "batch_wait", "blocks_wait", "budget_wait", "choice_wait", "step_wait", "stage_wait", "replica_wait",
    "hand_over", "transfer", "preempted", "interference", "compute", "communication", "host", "bubble",
)  # fmt: skip
_MEASURES: Final[Mapping[str, tuple[str, ...]]] = {
    "user_tokens_per_s": ("mean", "p50", "p10", "p5", "p1", "min"),
    "goodput": ("requests_per_s", "share"),
    "kv_occupancy": ("mean", "max", "replica_max"),
    "batch": ("requests", "tokens", "running", "waiting"),
    "utilisation": (
        "mfu", "mbu", "compute", "communication", "exposed_communication", "host", "bubble",
        "generated_tokens_per_s", "generated_tokens_per_s_per_device",
    ),
    **{
        f"utilisation.pools.{pool}": (
            "devices", "mfu", "mbu", "compute", "communication", "exposed_communication", "host", "bubble",
        )
        for pool in ("prefill", "decode")
    },
    "energy": ("joules", "joules_per_output_token", "mean_device_w", "idle_device_w"),
    "preempted": ("recomputed", "swapped", "moved", "swapped_bytes"),
    "cost": ("usd", "usd_per_million_output_tokens"),
    "steady": ("from_s", "to_s", "arrived_per_s", "requests_per_s", "output_tokens_per_s"),
    **{f"causes.{latency}": ("mean_ms", "slowest_ms") for latency in ("ttft", "tpot", "e2e")},
    **{f"causes.{latency}.{of}": _CAUSES for latency in ("ttft", "tpot", "e2e") for of in ("mean", "slowest")},
}  # fmt: skip
"""What else a summary measures, and in which parts."""

TEXT_KEYS: Final = ("name", "digest", "timeline_digest", "version")
NUMBER_KEYS: Final = (
    "seed",
    *(f"requests.{part}" for part in _REQUESTS),
    *(f"{times}.{part}" for times in _TIMES for part in _DISTRIBUTION),
    "front_end_ms",
    *(f"throughput.{part}" for part in _THROUGHPUT),
    *(f"prefix_cache.{part}" for part in _PREFIX_CACHE),
    *(f"{name}.{part}" for name, parts in _MEASURES.items() for part in parts),
    "experts.redundant",
    *(f"experts.imbalance.{part}" for part in ("mean", "max")),
    "makespan_s",
    "steps",
    "spans",
    "preemptions",
    "kv_blocks",
    "wall_s.total",
    "wall_s.simulate",
)
SUMMARY_KEYS: Final = (*TEXT_KEYS, *NUMBER_KEYS, "legal")
"""Every dotted key that the summary of a run has."""

_BY_PRIORITY: Final = re.compile(
    rf"priorities\.(-?[0-9]+|others)\.(requests\.(arrived|finished)|(ttft|tpot|e2e)_ms\.({'|'.join(_DISTRIBUTION)}))"
)
"""Keys that a summary has where the workload has such a priority: ``priorities.0.ttft_ms.p99``."""

SHORT_KEYS: Final = {part: f"requests.{part}" for part in _REQUESTS}
"""Short forms: ``finished`` is ``requests.finished``."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON: Final = re.compile(r"\s*(<=|>=|==|<|>)\s*(\S+)\s*")
_RANGE: Final = re.compile(r"\s*(\S+)\s+\.\.\s+(\S+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One thing that must hold for a summary.

    Parameters
    ----------
    key : str
        A key of :data:`SUMMARY_KEYS`, or one of a class of priority.
    tests : tuple of (operator, value)
        All of them must hold; an operator is one of ``< <= > >= ==``.
    text : str
        The expectation as written, for messages.
    """

    key: str
    tests: tuple[tuple[str, Scalar], ...]
    text: str

    def check(self, summary: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the summary: nothing, or one sentence."""
        found: Any = summary
        for part in self.key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is None:
            return [f"{self.key} has no value; expected {self.text}"]
        if all(_OPERATORS[sign](found, value) for sign, value in self.tests):
            return []
        shown = str(found).lower() if isinstance(found, bool) else f"{found:.6g}" if isinstance(found, float) else found
        return [f"{self.key} is {shown}; expected {self.text}"]


def failed_expectations(expectations: Iterable[Expectation], summary: Mapping[str, Any]) -> list[str]:
    """Return one sentence for every expectation that does not hold."""
    return [failure for expectation in expectations for failure in expectation.check(summary)]


def expectation(key: str, value: object) -> Expectation:
    """Read one entry of ``expect``.

    Raises
    ------
    ValueError
        When the summary has no such key, or the value cannot be compared with what stands there.

    Examples
    --------
    >>> expectation("ttft_ms.p99", "10 .. 20").tests
    (('>=', 10), ('<=', 20))
    """
    key = SHORT_KEYS.get(key, key)
    if key not in SUMMARY_KEYS and not _BY_PRIORITY.fullmatch(key):
        raise ValueError(f"a summary has no {key!r}{did_you_mean(key, [*SUMMARY_KEYS, *SHORT_KEYS])}")
    if key == "legal":
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, but found {kind_of(value)}")
        return Expectation(key=key, tests=(("==", value),), text=str(value).lower())
    if key in TEXT_KEYS:
        if not isinstance(value, str):
            raise ValueError(f"expected text, but found {kind_of(value)}")
        return Expectation(key=key, tests=(("==", value),), text=value)
    return Expectation(key=key, tests=_number_tests(value), text=str(value))


def _number_tests(value: object) -> tuple[tuple[str, Scalar], ...]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (("==", value),)
    refusal = ValueError(
        f"expected a number, a comparison such as '< 2000' or a range such as '10 .. 20', but found {kind_of(value)}"
    )
    if not isinstance(value, str):
        raise refusal
    if found := _COMPARISON.fullmatch(value):
        tests: tuple[tuple[str, Scalar], ...] = ((found[1], plain_scalar(found[2])),)
    elif found := _RANGE.fullmatch(value):
        tests = ((">=", plain_scalar(found[1])), ("<=", plain_scalar(found[2])))
    else:
        raise refusal
    numbers = [bound for _, bound in tests if isinstance(bound, int | float) and not isinstance(bound, bool)]
    if len(numbers) < len(tests) or any(number != number for number in numbers):  # noqa: PLR0124  (nan)
        raise refusal
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise ValueError(f"the range {value!r} holds no number; write the smaller end first")
    return tests


def expectations(part: ScenarioPart, document: Document) -> tuple[Expectation, ...]:
    """Return what a scenario expects; raise InputError with every expectation that nothing can be held to."""
    problems: list[Problem] = []
    found: list[Expectation] = []

    def read(entries: dict[str, Any], path: KeyPath, prefix: str) -> None:
        for key, value in entries.items():
            if isinstance(value, dict):
                read(value, (*path, key), f"{prefix}{key}.")
                continue
            try:
                found.append(expectation(prefix + key, value))
            except ValueError as error:
                problems.append(document.problem((*path, key), str(error)))

    read(part.expect, ("expect",), "")
    if problems:
        raise InputError(problems)
    return tuple(found)
