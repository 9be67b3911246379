"""Results of ``vllm bench serve --save-detailed`` as traces: what was sent when, and what came back.

Source: vLLM, vllm/benchmarks/serve.py: one JSON object with ``start_times`` (seconds of a clock without origin),
``input_lens`` and ``output_lens``, an entry per request. One that failed has an output of 0 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError, Problem, unreadable
from clustersim.workload.limits import MAX_NS, MAX_TOKENS
from clustersim.workload.traces.cells import exact_ns
from clustersim.workload.traces.text import TraceColumns, TraceText, shorten

KEYS: Final = ("start_times", "input_lens", "output_lens")
_OTHERS: Final = ("completed", "request_throughput", "total_input_tokens")
"""Keys of any result, with lists or without."""


def matched_share(first_line: str) -> float:
    """Return which share of its keys the first line names."""
    if not first_line.lstrip().startswith("{"):
        return 0.0
    if first_line.strip() == "{":  # an object over many lines is no format of lines
        return 1 / len(KEYS)
    return max(sum(f'"{key}"' in first_line for key in keys) / len(keys) for keys in (KEYS, _OTHERS))


def read(file: TraceText) -> TraceColumns:
    """Read a result.

    Raises
    ------
    InputError
        When it is no JSON object, or lacks a list, or an entry of one is no instant or length.
    """
    try:
        result = json.loads(file.text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        why = unreadable(error) if isinstance(error, ValueError | RecursionError) else "a number is out of range"
        raise InputError(file.problem(f"cannot be read as JSON: {why}; expected one object")) from None
    if not isinstance(result, dict):
        raise InputError(file.problem("expected one JSON object, the result of a benchmark"))
    problems = list(_lacking(file, result)) or list(_wrong(file, result))
    if problems:
        raise file.error(problems, len(problems))
    starts, prompts, outputs = (result[key] for key in KEYS)
    return TraceColumns(
        stamps_ns=np.array([exact_ns(Decimal(start), NS_PER_S) for start in starts], dtype=np.int64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
    )


def _lacking(file: TraceText, result: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each list that is not there, or not as long as the others."""
    absent = [key for key in KEYS if not isinstance(result.get(key), list)]
    for key in absent:
        has = f"found {shorten(json.dumps(result[key], default=str))}" if key in result else "is missing"
        message = f"{has}; expected a list, as vllm bench serve --save-detailed writes it"
        yield Problem(file=file.name, path=key, message=message)
    counts = {key: len(result[key]) for key in KEYS if key not in absent}
    if not absent and (len(set(counts.values())) > 1 or not all(counts.values())):
        told = ", ".join(f"{key} {count:,}" for key, count in counts.items())
        yield Problem(file=file.name, message=f"found entries: {told}; expected one of each per request")


def _wrong(file: TraceText, result: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each entry that is no instant or no length."""
    last = MAX_NS // NS_PER_S
    for key in KEYS:
        number = (int, Decimal) if key == KEYS[0] else (int,)
        most, what = (last, "seconds") if key == KEYS[0] else (MAX_TOKENS, "a whole number of tokens")
        for at, value in enumerate(result[key]):
            if type(value) not in number or not 0 <= value <= most:  # NaN is in no range
                message = f"found {shorten(json.dumps(value, default=str))}; expected {what} from 0 to {most:.3g}"
                yield Problem(file=file.name, path=f"{key}[{at}]", message=message)
