"""From a benchmark's command to a workload; without one, the defaults of ``vllm bench serve``.

Arrivals as in ``get_request`` of ``vllm/benchmarks/serve.py`` (0.19.0): gaps of a gamma distribution whose shape is
the burstiness, stretched so that the last request is at N / rate; lengths as in ``RandomDataset`` of
``vllm/benchmarks/datasets.py``. Of ``python -m sglang.bench_serving`` (``sglang/benchmark/serving.py`` of 0.5.23) gaps
are exponential and not stretched, and lengths uniform up to the one that is given (``datasets/common.py:56``). The
distributions are the same, the numbers drawn are not.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.interop import sglang_flags
from clustersim.interop.bench_flags import FLAGS, SGLANG_FLAGS
from clustersim.interop.command import Command, Grammar
from clustersim.interop.entries import Draft
from clustersim.interop.flags import VERSION
from clustersim.interop.options import Options, count, number_or_nan, share, whole
from clustersim.interop.words import Word
from clustersim.values import dataclass

GRAMMAR: Final = Grammar(
    engine="vLLM",
    version=VERSION,
    starts=(("vllm", "bench", "serve"), ("benchmark_serving.py",)),
    example="vllm bench serve --request-rate 4",
    flags=FLAGS,
)
SGLANG: Final = Grammar(
    engine="SGLang",
    version=sglang_flags.VERSION,
    starts=(("-m", "sglang.bench_serving"), ("-m", "sglang.benchmark.serving")),
    example="python -m sglang.bench_serving --dataset-name random --request-rate 4",
    flags=SGLANG_FLAGS,
    is_exact=True,
)
SILENT: Final = Command(grammar=GRAMMAR, start=Word(text="vllm bench serve"))
"""The command without options."""
SEEDS: Final = {"vLLM": 0, "SGLang": 42}
"""Engine → seed of its benchmark."""
DATASETS: Final = {
    "vLLM": ("random", "random", "prefix_repetition"),
    "SGLang": ("sharegpt", "random", "random-ids", "generated-shared-prefix"),
}
"""Engine → the dataset that it takes without a word, and those whose lengths options say."""
Values = dict[str, tuple[Any, str]]
"""Path → value and origin."""
TARGETS: Final = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}


@dataclass(frozen=True, slots=True)
class Sent:
    """What a benchmark sends: lengths, how many requests, the length of shared prefixes and their groups."""

    lengths: Values = field(default_factory=dict)
    requests: tuple[int, str] = (1, "")
    prefix: int = 0
    groups: tuple[int, str] = (1, "")


def positive(text: str) -> float:
    """Read a number above 0; ``inf`` is one."""
    number = number_or_nan(text)
    if not number > 0:
        raise ValueError("expected a number above 0, or inf")
    return number


def ratio(text: str) -> float:
    """Read a number in [0, 1)."""
    number = number_or_nan(text)
    if not 0 <= number < 1:
        raise ValueError("expected a number from 0 up to, and without, 1")
    return number


def write_workload(command: Command, draft: Draft, *, caching: tuple[bool, str]) -> None:
    """Write the workload, its seed and its targets into a draft.

    Parameters
    ----------
    command : Command
        ``vllm bench serve``, or ``python -m sglang.bench_serving``.
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
    engine = command.grammar.engine
    arrivals = _arrivals(options, draft)
    sent = LENGTHS[engine](options) if _has_lengths(options) else Sent()
    seed, seed_origin = options.value("--seed", whole, SEEDS[engine])
    targets = _targets(options)
    if options.problems:
        raise InputError(options.problems)
    draft.set("seed", seed, f"{seed_origin}; what is drawn from it is not what {engine} draws")
    for path, (value, of) in {**arrivals, **sent.lengths, "requests": sent.requests}.items():
        draft.set(f"workload.{path}", value, of)
    for path, value in targets.items():
        draft.set(f"targets.{path}", value, "--goodput")
    if sent.prefix and caching[0]:
        draft.set("serving.prefix_caching", *caching)
        draft.set("workload.shared_prefixes.groups", *sent.groups)
        draft.set("workload.shared_prefixes.tokens", sent.prefix, "the length of the prefixes")


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
    if options.command.grammar.engine == "SGLang":
        return {"arrivals.process": ("poisson", "gaps of an exponential distribution, as SGLang has them"), **found}
    found["arrivals.rescale"] = (True, "the last request at N / rate, as vLLM has it")
    if burstiness == 1:
        return {"arrivals.process": ("poisson", of_burstiness), **found}
    cv = float(f"{1 / math.sqrt(burstiness):.12g}")
    return {
        "arrivals.process": ("gamma", of_burstiness),
        **found,
        "arrivals.cv": (cv, f"1 / √{burstiness:g}, {of_burstiness}"),
    }


def _has_lengths(options: Options) -> bool:
    """Tell whether options say the lengths, and add a problem where they don't."""
    dataset, known = options.given("--dataset-name"), DATASETS[options.command.grammar.engine]
    text = dataset.text if dataset is not None else known[0]
    if text in known[1:]:
        return True
    place = dataset.place if dataset is not None else options.command.start
    options.problems.append(
        place.problem(
            f"--dataset-name: the lengths of {text!r} are in its files; expected {' or '.join(known[1:])}, or put the "
            "lengths into a CSV of arrival_s, prompt_tokens, output_tokens, for workload.trace"
        )
    )
    return False


def _vllm_lengths(options: Options) -> Sent:
    dataset = options.given("--dataset-name")
    requests = options.value("--num-prompts", count, 1000)
    if dataset is not None and dataset.text == "prefix_repetition":
        prefix, _ = options.value("--prefix-repetition-prefix-len", whole, 256)
        suffix, origin = options.value("--prefix-repetition-suffix-len", whole, 256)
        output = _either(options, "--output-len", "--prefix-repetition-output-len", 128)
        prompt = (prefix + suffix, f"prefix and suffix, {origin}")
        groups = options.value("--prefix-repetition-num-prefixes", count, 10)
        return Sent({"prompt_tokens": prompt, "output_tokens": output}, requests, prefix, groups)
    spread, of_spread = options.value("--random-range-ratio", ratio, 0.0)
    prefix, _ = options.value("--random-prefix-len", whole, 0)
    found: Values = {}
    for key, name, default, before in (("prompt_tokens", "input", 1024, prefix), ("output_tokens", "output", 128, 0)):
        length, origin = _either(options, f"--{name}-len", f"--random-{name}-len", default)
        origin += f", behind a prefix of {before}" if before else ""
        low, high = math.floor(length * (1 - spread)) + before, math.ceil(length * (1 + spread)) + before
        found |= _uniform(key, max(low, 1), max(high, 1), origin, f"{origin}, {of_spread}")
    return Sent(found, requests, prefix, (1, "--random-prefix-len: one prefix for all"))


def _sglang_lengths(options: Options) -> Sent:
    dataset = options.given("--dataset-name")
    if dataset is not None and dataset.text == "generated-shared-prefix":
        prefix, _ = options.value("--gsp-system-prompt-len", count, 2048)
        question, origin = options.value("--gsp-question-len", count, 128)
        prompt = (prefix + question, f"prefix and question, {origin}")
        output = options.value("--gsp-output-len", count, 256)
        groups = options.value("--gsp-num-groups", count, 64)
        each, origin = options.value("--gsp-prompts-per-group", count, 16)
        requests = (groups[0] * each, f"{groups[1]} × {origin}")
        return Sent({"prompt_tokens": prompt, "output_tokens": output}, requests, prefix, groups)
    least, of_least = options.value("--random-range-ratio", _least, 0.0)
    found: Values = {}
    for key, name in (("prompt_tokens", "--random-input-len"), ("output_tokens", "--random-output-len")):
        high, origin = options.value(name, count, 1024)
        found |= _uniform(key, max(int(high * least), 1), high, origin, f"{origin}, {of_least}")
    return Sent(found, options.value("--num-prompts", count, 1000))


LENGTHS: Final = {"vLLM": _vllm_lengths, "SGLang": _sglang_lengths}
"""Engine → what its benchmark sends, from the options."""


def _least(text: str) -> float:
    if text.strip() not in ("0", "0.0"):
        return share(text)
    return 0.0


def _uniform(key: str, low: int, high: int, origin: str, of_spread: str) -> Values:
    """Return the entries of a length: one, or the ends of a range."""
    if low == high:
        return {key: (low, origin)}
    return {f"{key}.uniform.low": (low, of_spread), f"{key}.uniform.high": (high, of_spread)}


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
    return 0 < number_or_nan(text) < math.inf
