"""Results of GuideLLM (``benchmarks.json``) as traces: what was sent when, and what came back.

Source: github.com/vllm-project/guidellm: one JSON object with ``benchmarks``, each with ``requests`` that were
``successful``, ``incomplete`` (cut off as the benchmark ended) or ``errored``. Instants are seconds of Unix time.
Only those that were successful are served; the others count as failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.units import plural
from clustersim.workload.traces.json_records import RecordKeys, RecordReader
from clustersim.workload.traces.json_text import (
    ABSENT,
    Fault,
    Step,
    json_words,
    parsed,
    placed,
    placed_error,
    steps_to,
    value_at,
)
from clustersim.workload.traces.text import TraceColumns, TraceText

OUTCOMES: Final = ("successful", "incomplete", "errored")
KEYS: Final = RecordKeys(
    arrival=("request_start_time", "start_time", "info.timings.request_start"),
    unit="s",
    prompt=("prompt_tokens", "input_tokens"),
    output=("output_tokens",),
)
_STRATEGIES: Final = ("config.strategy", "args.strategy", "scheduler.strategy")


def matched_share(head: str) -> float:
    """Return which share of its keys the head of a file names."""
    keys = ("benchmarks", "requests", "successful", "errored")
    return sum(f'"{key}"' in head for key in keys) / len(keys) if head.lstrip().startswith("{") else 0.0


def read(file: TraceText, *, benchmark: int | None = None) -> TraceColumns:
    """Read a result.

    Parameters
    ----------
    file : TraceText
    benchmark : int, optional
        Which of its benchmarks, from 1; it must be said where there are several.

    Raises
    ------
    InputError
        When it is no such object, or has several benchmarks or another number of them, or a request is none.
    """
    result = parsed(file, file.text, "one object")
    all_of_them = result.get("benchmarks") if isinstance(result, dict) else None
    if not isinstance(all_of_them, list) or not all(isinstance(one, dict) for one in all_of_them) or not all_of_them:
        raise InputError(placed(file, ["benchmarks"], "expected a list of benchmarks with their requests"))
    number = 1 if benchmark is None else benchmark
    if (benchmark is None and len(all_of_them) > 1) or not 0 < number <= len(all_of_them):
        listed = "; ".join(f"{at}: {_words(one)}" for at, one in enumerate(all_of_them, start=1))
        found = f"the file has {len(all_of_them)} benchmarks" if benchmark is None else f"found {benchmark}"
        raise InputError(Problem(path="benchmark", message=f"{found}; expected the number of one: {listed}"))
    return _requests(file, all_of_them[number - 1], ["benchmarks", number - 1, "requests"])


def _requests(file: TraceText, chosen: Mapping[str, Any], place: list[Step]) -> TraceColumns:
    reader, count = RecordReader(KEYS), 0
    wrong: list[Fault] = []
    for outcome in OUTCOMES:
        listed = value_at(chosen, f"requests.{outcome}")
        if listed in (ABSENT, None):
            continue
        if not isinstance(listed, list):
            wrong.append(([*place, outcome], f"found {json_words(listed)}; expected a list"))
            continue
        for at, record in enumerate(listed):
            count += 1
            here = [*place, outcome, at]
            if not isinstance(record, dict):
                wrong.append((here, f"found {json_words(record)}; expected a JSON object"))
                continue
            for key, message in reader.read(record, failed=outcome != "successful"):
                wrong.append(([*here, *(steps_to(record, key) if key else ())], message))
    if not count and not wrong:
        wrong.append((place, f"has no requests; expected lists of those {', '.join(OUTCOMES)}"))
    if wrong:
        raise placed_error(file, wrong)
    return reader.columns()


def _words(one: Mapping[str, Any]) -> str:
    """Return how a benchmark sent its requests, and how many."""
    strategy = next((found for key in _STRATEGIES if isinstance(found := value_at(one, key), dict)), {})
    told = [str(strategy[key]) for key in ("type_", "rate", "streams") if strategy.get(key) is not None]
    lists = [value_at(one, f"requests.{outcome}") for outcome in OUTCOMES]
    count = sum(len(found) for found in lists if isinstance(found, list))
    return " ".join((*told, f"({plural(count, 'request')})"))
