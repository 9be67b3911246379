"""From a ``vllm bench serve`` command to a workload; without one, the defaults of that command.

Arrivals as in ``get_request`` of ``vllm/benchmarks/serve.py`` (0.19.0): gaps of a gamma distribution whose shape is
the burstiness, stretched so that the last request is at N / rate; lengths as in ``RandomDataset`` of
``vllm/benchmarks/datasets.py``. The distributions are the same, the numbers drawn are not.
"""

from __future__ import annotations

import math
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.interop.bench_flags import FLAGS
from clustersim.interop.command import Command, Grammar
from clustersim.interop.entries import Draft
from clustersim.interop.flags import VERSION
from clustersim.interop.options import Options, count, whole
from clustersim.interop.words import Word

GRAMMAR: Final = Grammar(
    engine="vLLM",
    version=VERSION,
    starts=(("vllm", "bench", "serve"), ("benchmark_serving.py",)),
    example="vllm bench serve --request-rate 4",
    flags=FLAGS,
)
SILENT: Final = Command(grammar=GRAMMAR, start=Word(text="vllm bench serve"))
"""The command without options."""
DATASETS: Final = ("random", "prefix_repetition")
TARGETS: Final = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}


def positive(text: str) -> float:
    """Read a number above 0; ``inf`` is one."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise ValueError("expected a number above 0, or inf")
    return number


def ratio(text: str) -> float:
    """Read a number in [0, 1)."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise ValueError("expected a number from 0 up to, and without, 1")
    return number


def write_workload(command: Command, draft: Draft, *, caching: tuple[bool, str]) -> None:
    """Write the workload, its seed and its targets into a draft.

    Parameters
    ----------
    command : Command
        ``vllm bench serve``.
    draft : Draft
    caching : (bool, str)
        Whether the server would reuse prefixes, and the origin of that.

    Raises
    ------
    InputError
        With every option that is wrong, or refused.
    """
    options = Options(command)
    options.fates(draft)
    for word in command.positional:
        options.problems.append(word.problem("belongs to no option"))
    arrivals = _arrivals(options, draft)
    lengths, prefix = _lengths(options)
    groups, of_groups = _groups(options)
    requests, origin = options.value("--num-prompts", count, 1000)
    seed, seed_origin = options.value("--seed", whole, 0)
    targets = _targets(options)
    if options.problems:
        raise InputError(options.problems)
    draft.set("seed", seed, f"{seed_origin}; what is drawn from it is not what vLLM draws")
    for path, (value, of) in {**arrivals, **lengths, "requests": (requests, origin)}.items():
        draft.set(f"workload.{path}", value, of)
    for path, value in targets.items():
        draft.set(f"targets.{path}", value, "--goodput")
    if prefix and caching[0]:
        draft.set("serving.prefix_caching", *caching)
        draft.set("workload.shared_prefixes.groups", groups, of_groups)
        draft.set("workload.shared_prefixes.tokens", prefix, "the length of the prefixes")


def _arrivals(options: Options, draft: Draft) -> dict[str, tuple[Any, str]]:
    rate, origin = options.value("--request-rate", positive, math.inf)
    burstiness, of_burstiness = options.value("--burstiness", positive, 1.0)
    limit = options.given("--max-concurrency")
    most, of_limit = options.value("--max-concurrency", count, 1)
    if math.isinf(rate):
        if limit is None:
            limitless = options.given("--request-rate") is None
            return {"arrivals.process": ("all_at_once", f"{origin}, inf" if limitless else origin)}
        return {"arrivals.process": ("closed_loop", of_limit), "arrivals.concurrency": (most, of_limit)}
    if limit is not None:
        draft.note(
            f"--max-concurrency {most} has no effect beside --request-rate: requests are sent when they arrive. While "
            "fewer are in flight that is the same; beyond, they wait in the server, and their latencies count it."
        )
    found: dict[str, tuple[Any, str]] = {"arrivals.rate": (f"{rate:g}/s", origin)}
    if math.isinf(burstiness):
        return {"arrivals.process": ("constant", of_burstiness), **found}
    found["arrivals.rescale"] = (True, "the last request at N / rate, as vLLM has it")
    if burstiness == 1:
        return {"arrivals.process": ("poisson", of_burstiness), **found}
    cv = float(f"{1 / math.sqrt(burstiness):.12g}")
    return {
        "arrivals.process": ("gamma", of_burstiness),
        **found,
        "arrivals.cv": (cv, f"1 / √{burstiness:g}, {of_burstiness}"),
    }


def _groups(options: Options) -> tuple[int, str]:
    """Return how many prefixes there are, and where that comes from."""
    dataset = options.given("--dataset-name")
    if dataset is not None and dataset.text == "prefix_repetition":
        return options.value("--prefix-repetition-num-prefixes", count, 10)
    return 1, "--random-prefix-len: one prefix for all"


def _lengths(options: Options) -> tuple[dict[str, tuple[Any, str]], int]:
    """Return the entries of the two lengths, and the length of shared prefixes."""
    dataset = options.given("--dataset-name")
    if dataset is not None and dataset.text not in DATASETS:
        message = (
            f"the lengths of {dataset.text!r} are in its files; expected random or prefix_repetition, or put the "
            "lengths into a CSV of arrival_s, prompt_tokens, output_tokens, for workload.trace"
        )
        options.wrong(dataset, message)
        return {}, 0
    if dataset is not None and dataset.text == "prefix_repetition":
        prefix, _ = options.value("--prefix-repetition-prefix-len", whole, 256)
        suffix, origin = options.value("--prefix-repetition-suffix-len", whole, 256)
        output = _either(options, "--output-len", "--prefix-repetition-output-len", 128)
        prompt = (prefix + suffix, f"prefix and suffix, {origin}")
        return {"prompt_tokens": prompt, "output_tokens": output}, prefix
    spread, of_spread = options.value("--random-range-ratio", ratio, 0.0)
    prefix, _ = options.value("--random-prefix-len", whole, 0)
    found: dict[str, tuple[Any, str]] = {}
    for key, name, default, before in (("prompt_tokens", "input", 1024, prefix), ("output_tokens", "output", 128, 0)):
        length, origin = _either(options, f"--{name}-len", f"--random-{name}-len", default)
        origin += f", behind a prefix of {before}" if before else ""
        low, high = math.floor(length * (1 - spread)) + before, math.ceil(length * (1 + spread)) + before
        if low == high:
            found[key] = (max(low, 1), origin)
        else:
            found[f"{key}.uniform.low"] = (max(low, 1), f"{origin}, {of_spread}")
            found[f"{key}.uniform.high"] = (max(high, 1), f"{origin}, {of_spread}")
    return found, prefix


def _either(options: Options, general: str, special: str, default: int) -> tuple[int, str]:
    """Return a length: the general option comes before that of the dataset."""
    return options.value(general if options.given(general) is not None else special, whole, default)


def _targets(options: Options) -> dict[str, str]:
    choice = options.given("--goodput")
    found = {}
    for value in choice.values if choice is not None else ():
        name, colon, text = value.text.partition(":")
        if name not in TARGETS or not colon or not _is_time(text):
            expected = "expected ttft:, tpot: or e2el: and milliseconds above 0, such as ttft:200"
            options.problems.append(value.problem(f"--goodput: {expected}"))
        else:
            found[TARGETS[name]] = f"{float(text):.12g} ms"
    return found


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
