"""The ``vllm bench serve`` that sends the workload of a scenario: the inverse of :mod:`clustersim.interop.bench`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from clustersim.interop.bench import TARGETS
from clustersim.interop.keys import word_for
from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import Options
from clustersim.scenario.scenario import Scenario
from clustersim.units import parse
from clustersim.workload.arrivals import AllAtOnce, ClosedLoop, Constant, Gamma
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.lengths import Fixed, Lengths, Uniform
from clustersim.workload.shared_prefixes import SharedPrefixes

Leaves = Callable[[str, str], None]


def benchmark_of(scenario: Scenario, model_name: str, account: Account) -> Options | None:
    """Return the options of the benchmark; None where it can send nothing of the kind.

    Parameters
    ----------
    scenario : Scenario
    model_name : str
    account : Account
        What the benchmark cannot say is listed here.
    """

    def leaves(key: str, why: str) -> None:
        account.leaves(None, key, why)

    if scenario.run.horizon_ns is not None:
        leaves("run.horizon", "the benchmark ends when all requests have ended")
    if scenario.faults:
        leaves("faults", "nothing makes devices fail")
    if scenario.collectives:
        leaves("collectives", "the communication library chooses algorithms")
    workload = scenario.workload
    if not isinstance(workload, DrawnWorkload):
        leaves("workload.trace", "vllm bench serve replays no recorded arrivals and lengths; no benchmark is written")
        return None
    options: Options = {"--model": model_name}
    lengths = _lengths(workload, leaves)
    if lengths is None:
        return None
    options |= lengths
    options |= {"--num-prompts": str(workload.requests), "--seed": str(scenario.seed), "--ignore-eos": None}
    options |= _arrivals(workload, leaves)
    if workload.priority is not None:
        leaves("workload.priority", "all requests of the benchmark are equally urgent")
    if workload.cancel_after is not None:
        leaves("workload.cancel_after", "no client of the benchmark gives up")
    goodput = {word_for(key, TARGETS): text for key, text in scenario.targets.items()}
    if None in goodput:
        leaves("targets.itl", "--goodput has no target of single gaps")
    kept = [f"{name}:{_number(parse(text, 'time') * 1e3)}" for name, text in goodput.items() if name is not None]
    if kept:
        options["--goodput"] = tuple(kept)
    return options


def _arrivals(workload: DrawnWorkload, leaves: Leaves) -> Options:
    arrivals = workload.arrivals
    if isinstance(arrivals, AllAtOnce):
        return {"--request-rate": "inf"}
    if isinstance(arrivals, ClosedLoop):
        return {"--request-rate": "inf", "--max-concurrency": str(arrivals.concurrency)}
    found: Options = {"--request-rate": _number(arrivals.rate_per_s)}
    if isinstance(arrivals, Constant):
        return found | {"--burstiness": "inf"}
    if isinstance(arrivals, Gamma) and arrivals.cv != 1:
        found["--burstiness"] = _number(1 / arrivals.cv**2)
    if not arrivals.rescale:
        leaves("workload.arrivals.rescale", "vllm bench serve stretches gaps so that the last request is at N / rate")
    return found


def _lengths(workload: DrawnWorkload, leaves: Leaves) -> Options | None:
    shared = workload.shared_prefixes
    ranges = [_range(workload.prompt_tokens), _range(workload.output_tokens)]
    if None in ranges:
        for key, found in zip(("prompt_tokens", "output_tokens"), ranges, strict=True):
            if found is None:
                leaves(f"workload.{key}", "vllm bench serve draws fixed or uniform lengths; no benchmark is written")
        return None
    (low, high), output = (one for one in ranges if one is not None)
    if shared is None:
        return _random((low, high), output, 0, leaves)
    return _shared((low, high), output, shared, leaves)


def _shared(prompt: tuple[int, int], output: tuple[int, int], shared: SharedPrefixes, leaves: Leaves) -> Options | None:
    if shared.zipf:
        leaves("workload.shared_prefixes.zipf", "prefixes of the benchmark are equally likely")
    if prompt[0] == prompt[1] and output[0] == output[1] and prompt[0] > shared.tokens:
        return {
            "--dataset-name": "prefix_repetition",
            "--prefix-repetition-prefix-len": str(shared.tokens),
            "--prefix-repetition-suffix-len": str(prompt[0] - shared.tokens),
            "--prefix-repetition-num-prefixes": str(shared.groups),
            "--prefix-repetition-output-len": str(output[0]),
        }
    if shared.groups > 1 or prompt[0] <= shared.tokens:
        leaves(
            "workload.shared_prefixes",
            "vllm bench serve has one prefix for all in front of random lengths, "
            "or several in front of equal ones; none are sent",
        )
        return _random(prompt, output, 0, leaves)
    return _random(prompt, output, shared.tokens, leaves)


def _random(prompt: tuple[int, int], output: tuple[int, int], prefix: int, leaves: Leaves) -> Options | None:
    own = (prompt[0] - prefix, prompt[1] - prefix)
    ratio = _ratio(own, output)
    if ratio is None:
        for key in ("prompt_tokens", "output_tokens"):
            leaves(
                f"workload.{key}",
                "vllm bench serve has one --random-range-ratio for both, around whole means; no benchmark is written",
            )
        return None
    found: Options = {"--dataset-name": "random"}
    found["--random-input-len"] = str(sum(own) // 2)
    found["--random-output-len"] = str(sum(output) // 2)
    return (
        found
        | ({"--random-range-ratio": ratio} if ratio != "0" else {})
        | ({"--random-prefix-len": str(prefix)} if prefix else {})
    )


def _range(lengths: Lengths) -> tuple[int, int] | None:
    if isinstance(lengths, Fixed):
        return lengths.tokens, lengths.tokens
    return (lengths.low, lengths.high) if isinstance(lengths, Uniform) else None


def _ratio(*ranges: tuple[int, int]) -> str | None:
    """Return the ratio r by which ⌊L (1 − r)⌋ … ⌈L (1 + r)⌉ are all of these ranges; None where there is none."""
    least, most = Fraction(0), Fraction(1)
    for low, high in ranges:
        if (low + high) % 2:
            return None
        mean, away = (low + high) // 2, (high - low) // 2
        least, most = max(least, Fraction(away - 1, mean)), min(most, Fraction(away, mean))
    if all(low == high for low, high in ranges):
        return "0"
    middle = float((least + most) / 2) if least < most else math.nan
    meant = [(math.floor(mean * (1 - middle)), math.ceil(mean * (1 + middle))) for mean in
             ((low + high) // 2 for low, high in ranges)] if middle < 1 else []  # fmt: skip
    return repr(middle) if meant == list(ranges) else None


def _number(value: float) -> str:
    text = f"{value:.17g}" if float(f"{value:.12g}") != value else f"{value:.12g}"
    return re.sub(r"\.0$", "", text)
