"""What a server logged: the requests that it was sent, and how long they took.

Read are

- JSON lines with a request each: ``input_toks``, ``output_toks``, ``arrival_time`` (s) and the stamps ``queued_ts``,
  ``first_token_ts``, ``last_token_ts`` (s, of one clock; ``scheduled_ts`` if there is one). TTFT counts from
  ``queued_ts``: what is in front of the engine is not in such a log.
- CSV with a request each: ``arrival_s``, ``prompt_tokens``, ``output_tokens``, ``ttft_ms``, ``tpot_ms``.
- the JSON result of ``vllm bench serve`` (``--save-result``), with or without the lists of ``--save-detailed``. Its
  clients are outside the server. Without lists the lengths are those of the scenario, or the mean ones of the log.

Prompts are not in logs: what a prefix cache saved is not told apart from a fast prefill.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clustersim import inputs
from clustersim.errors import InputError, Problem, unreadable
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.log.csv_rows import of_cells
from clustersim.simulation.calibration.log.json_lines import STAMPS, of_stamps
from clustersim.simulation.calibration.log.result import RESULT, of_result
from clustersim.simulation.calibration.log.server_log import ServerLog

_EXPECTED: Final = "JSON lines with a request each, CSV with a request each, or the JSON result of vllm bench serve"


def read_log(path: Path, scenario: Scenario) -> ServerLog:
    """Read a log; ``scenario`` says what a result without lists does not.

    Raises
    ------
    InputError
        When it is none of these, lacks columns, or has values that can't be used, by line.
    """
    text = inputs.read_text(path, most=inputs.TEXT_BYTES)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return replace(_read(path, text, scenario), digest=digest)


def _read(path: Path, text: str, scenario: Scenario) -> ServerLog:
    if path.suffix == ".csv":
        return of_cells(path, text, scenario)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(Problem(file=str(path), message=f"is empty; expected {_EXPECTED}"))
    first = _parsed(path, *lines[0]) if len(lines) > 1 and lines[0][1].rstrip().endswith("}") else None
    if isinstance(first, dict):
        return of_stamps(path, ((number, _parsed(path, number, line)) for number, line in lines), scenario)
    result = _parsed(path, 1, text)
    if not isinstance(result, dict) or not inputs.recognised(result, (*RESULT, *STAMPS)):
        raise InputError(
            Problem(file=str(path), message=f"is no log that is known; expected {_EXPECTED}", quotes=False)
        )
    return of_stamps(path, [(1, result)], scenario) if "input_toks" in result else of_result(path, result, scenario)


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(file=str(path), line=line, message=f"not JSON: {unreadable(error)}")) from None
