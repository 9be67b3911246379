"""Results of ``vllm bench serve --save-detailed`` as traces: what was sent when, and what came back.

Source: vLLM, vllm/benchmarks/serve.py: one JSON object with ``start_times`` (seconds of a clock without origin),
``input_lens`` and ``output_lens``, an entry per request, and ``errors``: one that failed has a text there and an output
of 0 tokens. Results of older versions and of SGLang have no ``start_times``: they don't say when requests were sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError
from clustersim.workload.limits import MAX_NS, MAX_TOKENS
from clustersim.workload.traces.cells import exact_ns
from clustersim.workload.traces.failed import is_error
from clustersim.workload.traces.json_text import Fault, json_words, parsed, placed_error
from clustersim.workload.traces.text import TraceColumns, TraceText

KEYS: Final = ("start_times", "input_lens", "output_lens")
_ERRORS: Final = "errors"
_OTHERS: Final = ("completed", "request_throughput", "total_input_tokens")
"""Keys of any result, with lists or without."""
_UNTIMED: Final = " (older versions and SGLang don't say when requests were sent: draw it with workload.arrivals)"


def matched_share(head: str) -> float:
    """Return which share of its keys the head of a file names."""
    if not head.lstrip().startswith("{"):
        return 0.0
    return max(sum(f'"{key}"' in head for key in keys) / len(keys) for keys in (KEYS, _OTHERS))


def read(file: TraceText) -> TraceColumns:
    """Read a result.

    Raises
    ------
    InputError
        When it is no JSON object, or lacks a list, or an entry of one is no instant or length.
    """
    result = parsed(file, file.text, "one object, the result of a benchmark")
    if not isinstance(result, dict):
        raise InputError(file.problem("expected one JSON object, the result of a benchmark"))
    wrong = list(_lacking(result)) or list(_wrong(result))
    if wrong:
        raise placed_error(file, wrong)
    starts, prompts, outputs = (result[key] for key in KEYS)
    failed = np.array([is_error(one) for one in result.get(_ERRORS) or [None] * len(starts)])
    return TraceColumns(
        stamps_ns=np.array([exact_ns(Decimal(start), NS_PER_S) for start in starts], dtype=np.int64),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.where(failed, 0, np.array(outputs, dtype=np.int64)),
    )


def _lacking(result: dict[str, Any]) -> Iterator[Fault]:
    """Yield what is wrong with each list that is not there, or not as long as the others."""
    told = KEYS if result.get(_ERRORS) is None else (*KEYS, _ERRORS)
    absent = [key for key in told if not isinstance(result.get(key), list)]
    for key in absent:
        has = f"found {json_words(result[key])}" if key in result else "is missing"
        hint = _UNTIMED if key == KEYS[0] and len(absent) == 1 else ""
        yield [key], f"{has}; expected a list, as vllm bench serve --save-detailed writes it{hint}"
    counts = {key: len(result[key]) for key in told if key not in absent}
    if not absent and (len(set(counts.values())) > 1 or not all(counts.values())):
        words = ", ".join(f"{key} {count:,}" for key, count in counts.items())
        yield [KEYS[0]], f"found entries: {words}; expected one of each per request"


def _wrong(result: dict[str, Any]) -> Iterator[Fault]:
    """Yield what is wrong with each entry that is no instant or no length."""
    last = MAX_NS // NS_PER_S
    for key in KEYS:
        number = (int, Decimal) if key == KEYS[0] else (int,)
        most, what = (last, "seconds") if key == KEYS[0] else (MAX_TOKENS, "a whole number of tokens")
        for at, value in enumerate(result[key]):
            if type(value) not in number or not 0 <= value <= most:  # NaN is in no range
                yield [key, at], f"found {json_words(value)}; expected {what} from 0 to {most:.3g}"
