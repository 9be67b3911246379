"""What an inference engine adds to the device's work: host time per step, gaps between kernels, and a front end.

An engine is data (``scenarios/engines/NAME.yaml``); durations carry their unit there. What is modelled is
host time that the device waits for. Host work that runs beside the device (asynchronous scheduling) is not.

::

    |schedule|-gap-kernel-gap-kernel- … -kernel|sample|                           one step
    |stage|schedule|- … -kernel|stage|send|- … -kernel|stage|send|- … |sample|    … of several stages

A request is with the front end (HTTP, tokenising) before it arrives at a scheduler, and its first token on the way
back; the timeline is that of the replicas, so this time is in latencies alone. Front ends that are overloaded are not
modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any, Final, Literal, get_args

from clustersim import units
from clustersim.cluster.device import Limits
from clustersim.cost.captured import MOST_TOKENS, Sizes, padded, sizes_from
from clustersim.cost.unsaid import Entry, Place, bytes_from, decided, entries_from, mapping_from, share_from
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.plan.exchange import ExpertExchange
from clustersim.plan.pool import PoolRule, ShareOf
from clustersim.values import dataclass

Quantisation = Literal["own_kernel", "fused"]
FirstToken = Literal["prefill", "transfer", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Named overheads of one engine and version.

    Parameters
    ----------
    name, source : str
        The engine, and where its constants come from.
    schedule_s, schedule_per_request_s : float
        Host time of a step before its device work, and its part per request in the batch.
    sample_s, sample_per_request_s : float
        Host time after the device work (sampling, detokenising, sending), and its part per request.
    launch_s : float
        Gap before each kernel when kernels are launched one by one.
    graph_launch_s : float
        Gap before each kernel inside a captured graph.
    graph_max_tokens : int
        A step that only decodes and has at most this many tokens runs as a captured graph; 0: never.
    graph_sizes : tuple of Sizes
        Batches for which there are graphs; a step computes what the next larger one does. Empty: one for each.
    collective_launch_s : float
        Gap before each collective.
    stage_s : float
        Where there are several stages: host time of each in each pass, that of the first before ``schedule``, that of
        the others before they are sent the activations (inputs are prepared, pickled, and called for).
    front_end_s : float
        Time of a request in front of and behind the replicas: it is part of TTFT and of the end-to-end latency.
    quantisation : str
        Who brings activations into the narrower format of a product: ``own_kernel`` before each of them, or ``fused``
        into the operator before, whose results are written in that format.
    all_reduce : tuple of (str, tuple of (int, float))
        Its own all-reduces → largest payloads in bytes up to so many ranks (``Device.custom_limits``); what it does not
        name is as the device's file has it.
    experts_within, experts_across : str
        How tokens get to experts inside one TP group, and to those that are spread over more ranks, where a plan does
        not say it (:mod:`clustersim.plan.exchange`).
    first_token : str
        Where a client's first token comes from when one pool prefills and another decodes: from the ``prefill`` pool as
        it is sampled, from the decode pool when the K/V ``transfer`` has ended, or with the first ``decode`` step there
        (:mod:`clustersim.simulation.first_tokens`). Of no account where there is one pool.
    pool : PoolRule
        What the K/V pool is a share of.
    kernel_time : float
        Time of each kernel over what its device's file, or a table of measured points, says.
    kernels : str
        The engine whose kernels it runs (``Device.running``) where that is not the one of its name: what an engine of
        one's own inherits from.
    defaults : tuple of Entry
        What it decides of ``serving`` where a scenario does not say it (:mod:`clustersim.cost.unsaid`).
    assumed : tuple of str
        Keys of its file whose values are neither measured nor read in its program.
    """

    name: str
    source: str
    schedule_s: float = 0.0
    schedule_per_request_s: float = 0.0
    sample_s: float = 0.0
    sample_per_request_s: float = 0.0
    launch_s: float = 0.0
    graph_launch_s: float = 0.0
    graph_max_tokens: int = 0
    graph_sizes: tuple[Sizes, ...] = ()
    collective_launch_s: float = 0.0
    stage_s: float = 0.0
    front_end_s: float = 0.0
    quantisation: Quantisation = "own_kernel"
    all_reduce: Limits = ()
    experts_within: ExpertExchange = "all_to_all"
    experts_across: ExpertExchange = "all_to_all"
    first_token: FirstToken = "prefill"
    pool: PoolRule = field(default_factory=PoolRule)
    kernel_time: float = 1.0
    kernels: str = ""
    defaults: tuple[Entry, ...] = field(default=(), hash=False)
    assumed: tuple[str, ...] = ()

    def of_stages(self, stages: int) -> Engine:
        """Return the overheads of plans of so many stages: the first one's host time is in ``schedule``."""
        return self if stages == 1 else replace(self, schedule_s=self.schedule_s + self.stage_s)

    def padded(self, tokens: int) -> int:
        """Return how many tokens a decoding step of some computes: where it runs as a graph, that one's."""
        return padded(self.graph_sizes, tokens, self.graph_max_tokens) if tokens <= self.graph_max_tokens else tokens

    def decides(self, said: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return what it decides of ``serving`` that is not said, for ranks in a place."""
        return decided(self.defaults, said, place, self.graph_max_tokens)

    @property
    def family(self) -> str:
        """Which program it is: the name of the engine whose kernels it runs, up to the first hyphen."""
        return (self.kernels or self.name).partition("-")[0]


_KEYS: Final = tuple(field.name for field in fields(Engine) if field.name != "name")
_TIMES: Final = tuple(key for key in _KEYS if key.endswith("_s"))
_YAML_KEYS: Final = {key: key.removesuffix("_s") for key in _KEYS}
_ABSENT_IS_NONE: Final = (
    "stage", "front_end", "quantisation", "all_reduce", "experts_within", "experts_across", "graph_sizes",
    "first_token", "pool", "kernel_time", "kernels", "defaults", "assumed",
)  # fmt: skip
"""What an engine need not say: it has no such costs then, quantises in kernels of their own, exchanges tokens by an
all-to-all, has a graph for each batch and a share of all memory, streams first tokens from the prefill pool, runs
kernels of its name as its device's file says, and its budgets are those of ``ServingConfig``."""
KERNEL_TIMES: Final = (0.2, 5.0)
"""Least and most of ``kernel_time`` (assumed: beyond it is another device)."""
LONGEST_S: Final = 10.0
"""Longest host time of a step, or gap before a kernel (assumed: an engine that takes longer has stopped)."""
_TEXTS: Final = {"source": "a sentence that names the source", "kernels": "the name of an engine, such as vllm-0.19"}
COSTS: Final = tuple(_YAML_KEYS.values())[1:]
"""Keys of an engine's file, but for where it is from."""


def _pool(value: object) -> PoolRule:
    """Read ``pool`` of an engine, such as ``{share_of: free, outside: 3.5 GB}``."""
    known = {"share_of": _share_of, "margin": share_from, "outside": bytes_from, "expert_tokens": _tokens}
    problems, found = mapping_from(value, known)
    if problems:
        raise InputError(problems)
    return PoolRule(**{"outside_bytes" if key == "outside" else key: told for key, told in found.items()})


def _tokens(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(
            f"expected a whole number of tokens, at least 0 and at most {MOST_TOKENS:,}, but found {value!r}"
        )
    return value


def _share_of(value: object) -> object:
    return _one_of(get_args(ShareOf), value)


def _one_of(known: tuple[str, ...], value: object) -> object:
    if value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"expected one of {', '.join(known)}, but found {value!r}{hint}")
    return value


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "quantisation": get_args(Quantisation),
    "experts_within": get_args(ExpertExchange),
    "experts_across": tuple(way for way in get_args(ExpertExchange) if way != "all_reduce"),
    "first_token": get_args(FirstToken),
}


def _kernel_time(value: object) -> float:
    least, most = KERNEL_TIMES
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"expected a number from {least:g} to {most:g}, such as 1.05, but found {value!r}")
    return float(value)


def _all_reduce(value: object) -> Limits:
    """Read ``all_reduce`` of an engine, such as ``{one_shot: {4: 1 MB, 8: 500 kB}, two_shot: {}}``."""
    problems, found = mapping_from(value, dict.fromkeys(OWN_ALL_REDUCES, _limits))
    if problems:
        raise InputError(problems)
    return tuple(found.items())


def _limits(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping such as {{4: 1 MB, 8: 500 kB}}, but found {value!r}")
    found = {}
    for ranks, most in value.items():
        if not str(ranks).isascii() or not str(ranks).isdecimal() or not 2 <= int(ranks) <= MOST_TOKENS:
            raise ValueError(f"expected a number of ranks, at least 2, but found {ranks!r}")
        found[int(ranks)] = bytes_from(most)
    return tuple(sorted(found.items()))


def _assumed(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of keys such as [schedule, launch], but found {value!r}")
    return tuple(str(_one_of(COSTS, key)) for key in value)


OWN_ALL_REDUCES: Final = ("one_shot", "two_shot")
_PARTS: Final = {
    "graph_sizes": sizes_from, "pool": _pool, "defaults": entries_from, "all_reduce": _all_reduce, "assumed": _assumed,
}  # fmt: skip


def engine_from_mapping(name: str, values: Mapping[str, object]) -> Engine:
    """Build an engine from what its YAML file says.

    Parameters
    ----------
    name : str
        Name of the engine (the file's stem).
    values : mapping
        ``source`` and durations with their unit (``schedule: 120 us``), ``graph_max_tokens`` as an integer.
        ``stage`` and ``front_end`` are nothing where they are not said; all other keys are required: an engine says
        of each cost what it is.

    Raises
    ------
    InputError
        Lists every missing, unknown or unreadable value; paths are the keys.
    """
    problems = [
        Problem(message=f"unknown key{did_you_mean(str(key), list(_YAML_KEYS.values()))}", path=str(key))
        for key in values
        if key not in _YAML_KEYS.values()
    ]
    found: dict[str, object] = {}
    for attribute, key in _YAML_KEYS.items():
        if key not in values:
            if key in _ABSENT_IS_NONE:
                continue
            problems.append(Problem(message="is missing", path=key))
            continue
        try:
            found[attribute] = _read(attribute, values[key])
        except InputError as error:
            problems += [Problem(message=inner.message, path=key + inner.path) for inner in error.problems]
        except ValueError as error:
            problems.append(Problem(message=str(error), path=key))
    if problems:
        raise InputError(problems)
    return Engine(name=name, **found)  # type: ignore[arg-type]


def _read(field: str, value: object) -> object:
    if field in _TIMES:
        seconds = units.parse(value, "time")
        if not 0 <= seconds <= LONGEST_S:
            raise ValueError(f"expected a duration of at least 0 s and at most {LONGEST_S:g} s, but found {value!r}")
        return seconds
    if field in _TEXTS:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected {_TEXTS[field]}, but found {value!r}")
        return value
    if field in _PARTS:
        return _PARTS[field](value)
    if field == "kernel_time":
        return _kernel_time(value)
    if field in _CHOICES:
        return _one_of(_CHOICES[field], value)
    return _tokens(value)
