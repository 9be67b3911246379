"""Which lanes are compiled, and when that pays.

A lane is compiled where its steps need nothing but numbers: one stage, or several, also where their sends may meet
collectives; requests in order of arrival, routed by turns, by loads or by prefixes that are kept of them; and prices of
the roofline. The compiler (numba, the extra ``fast``) takes seconds once; what it made is kept on disk, and read again
in a fraction of one. So a run waits for it only where Python lanes would take longer by far.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clustersim.errors import InputError, Problem
from clustersim.replay.compiled.link_prices import LinkPrices
from clustersim.replay.compiled.prices import KernelPrices
from clustersim.replay.compiled.stage_prices import StagePrices
from clustersim.replay.input import CompiledMode
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.pipelines.pipelined import PipeLane
from clustersim.replay.lanes.pipelines.shared_lane import SharedLane
from clustersim.replay.lanes.swapping_lane import SwappingLane
from clustersim.serving.config import PrefixRouting, TransferName
from clustersim.serving.grouped.asked_scheduler import AskedScheduler
from clustersim.serving.prefix_keys import PrefixKeys
from clustersim.workload.requests import Requests

if TYPE_CHECKING:
    from clustersim.replay.compiled.lanes import CompiledLanes

REQUEST_S: Final = 30e-6
TOKEN_S: Final = 0.1e-6
"""Roughly what a request and an output token cost a Python lane, where many tokens share a step."""
READ_S: Final = 1.0
COMPILE_S: Final = 20.0
"""Expected work from which on it pays to read what was compiled, and to compile: about twice what they take."""
STAGED: Final = 7.0
"""How many times that of one stage a lane with stages costs: each of its steps is decided (6.7 to 7.6 as measured)."""
POOLED: Final[dict[TransferName, float]] = {"whole": 6.0, "layerwise": 14.0}
"""How many times what lanes of one pool take two pools cost in Python (4 to 11, and 7 to 24 as measured)."""
CACHED: Final = 3.0
"""How many times that of others a lane costs that keeps what is computed of prompts (3 to 5 as measured)."""
MOST_RUNS: Final = 1 << 22
PLACES: Final = 8
"""Most runs of prompts, times replicas, of which rows of numbers are kept; so many blocks count as one, as few of them
are ever apart."""
_SINGLE: Final = "kernel", "advance"
_CACHED: Final = "caching", "*advance_caching"
_STAGED: Final = "stages", "*advance_stages"
POOLS: Final = "pools.kernel", "*advance_pools"
"""Modules of what is compiled, and the functions that the compiler keeps."""
_PRICES: Final[dict[type[Lane], type[KernelPrices | StagePrices]]] = {
    DecodeJumpLane: KernelPrices, SwappingLane: KernelPrices, PipeLane: StagePrices, SharedLane: LinkPrices,
}  # fmt: skip


class Compiled:
    """The compiled lanes among the replicas of a run, or of a part of it.

    Parameters
    ----------
    intake : Intake
    mode : str
        ``auto``: where it pays; ``always``: wherever it can be; ``never``.
    behind_s : float
        Seconds of work, as expected, that lanes did before in this process: where they come to what the compiler is
        worth, more is to come. So a process that simulates many runs never waits much longer than it would have to.

    Attributes
    ----------
    refused : str
        Why some lanes were not compiled; empty where all were.

    Raises
    ------
    InputError
        When all are to be compiled and there is no compiler.
    """

    def __init__(self, intake: Intake, mode: CompiledMode, behind_s: float = 0.0) -> None:
        self.intake = intake
        self.mode = mode
        self.behind_s = behind_s
        self.refused = ""
        self.missing = compiler_obstacle(mode)

    def run(
        self,
        lanes: Sequence[Lane],
        first: int,
        stride: int,
        keys: PrefixKeys | None = None,
        routing: PrefixRouting | None = None,
    ) -> int | None:
        """Run lanes on one clock, and return how many requests came; None where that can't be or doesn't pay.

        Parameters
        ----------
        lanes : sequence of Lane
        first, stride : int
            The requests that come to them.
        keys : PrefixKeys, optional
            Where what is computed of prompts is kept.
        routing : PrefixRouting, optional
            Where the router goes by that.
        """
        refused = self.missing or self._obstacle(lanes, keys)
        if not refused:
            prices = self._prices_of(lanes[0])
            refused = prices.obstacle
            if self.mode == "auto" and not prices.plain:
                refused = "prices of attention are asked for step by step"
        if refused:
            self.refused = self.refused or refused
            return None
        runner: CompiledLanes  # imported here, since the compiler takes a while
        if isinstance(prices, LinkPrices):
            from clustersim.replay.compiled.link_lanes import LinkLanes

            sharing = [lane for lane in lanes if isinstance(lane, SharedLane)]  # all of them
            runner = LinkLanes(self.intake, sharing, prices, first, stride)
        elif isinstance(prices, StagePrices):
            from clustersim.replay.compiled.staged_lanes import StagedLanes

            runner = StagedLanes(self.intake, lanes, prices, first, stride)
        elif keys is not None:
            from clustersim.replay.compiled.caching_lanes import CachingLanes

            runner = CachingLanes(self.intake, lanes, prices, keys, routing)
        else:
            from clustersim.replay.compiled.single_lanes import SingleLanes

            runner = SingleLanes(self.intake, lanes, prices, first, stride)
        count = runner.run()
        lanes[0].prices.stages[0].pricer.made[self._key_of(lanes[0])] = prices
        return count

    def _key_of(self, lane: Lane) -> tuple[type, tuple[int, ...], tuple[int, ...]]:
        """Return what tells prices for the kernel: the stages, and the most that each count of a step can be."""
        most = most_counts(lane, self.intake.requests)
        return _PRICES[type(lane)], tuple(map(id, lane.prices.stages)), most

    def _prices_of(self, lane: Lane) -> KernelPrices | StagePrices:
        """Return the prices of a lane, those of an earlier one that came to its end where they do."""
        stages = lane.prices.stages
        key = self._key_of(lane)
        found: KernelPrices | StagePrices | None = stages[0].pricer.made.pop(key, None)
        if found is None:
            if isinstance(lane, SharedLane):
                return LinkPrices(stages, key[-1], lane.pipe.shared)
            return KernelPrices(stages[0], key[-1]) if len(stages) == 1 else StagePrices(stages, key[-1])
        found.settle()
        return found

    def _obstacle(self, lanes: Sequence[Lane], keys: PrefixKeys | None) -> str:
        """Return why lanes are not compiled, before their prices are looked at."""
        stages = lanes[0].prices.stages
        if isinstance(lanes[0].scheduler, AskedScheduler) and not _swaps_alone(lanes[0]):
            return "schedulers that decide each step are not"
        if lanes[0].prices.split:
            return "prompts that are split over SP ranks are not"
        if any(one is not first for lane in lanes for one, first in zip(lane.prices.stages, stages, strict=True)):
            return "replicas that are placed differently and share a clock are not"
        if keys is not None:
            if len(stages) > 1:
                return "stages whose prompts share cached prefixes are not"
            if (len(keys.keys) + lanes[0].scheduler.total // PLACES) * len(lanes) > MOST_RUNS:
                return "more prompts share prefixes than there is room for are not"
        staged = len(stages) > 1
        work = self.behind_s + python_s(self.intake.requests, staged=staged, pools=None, cached=keys is not None)
        return unpaid(self.mode, work, *(_STAGED if staged else _SINGLE if keys is None else _CACHED))


def compiler_obstacle(mode: CompiledMode) -> str:
    """Return why nothing is compiled at all; empty where it may be.

    Raises
    ------
    InputError
        When all is to be compiled and there is no compiler.
    """
    missing = find_spec("numba") is None
    if mode == "always" and missing:
        raise InputError(Problem(message="--compiled always: there is no compiler: pip install 'clustersim[fast]'"))
    if mode == "never":
        return "--compiled never rules it out"
    if mode == "auto" and missing:
        return "there is no compiler: pip install 'clustersim[fast]'"
    if mode == "auto" and os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return "NUMBA_DISABLE_JIT is set"
    return ""


def unpaid(mode: CompiledMode, work: float, module: str, function: str) -> str:
    """Return why so many seconds of work are not worth the compiler, where it is asked whether they are."""
    needed = compiler_s(module, function)
    if mode == "always" or work >= needed:
        return ""
    takes = "the compiler takes" if needed == COMPILE_S else "it takes to read what was compiled"
    return f"it would save less than {takes} ({work:.2g} s of work, worth it from {needed:g} s)"


def most_counts(lane: Lane, requests: Requests) -> tuple[int, ...]:
    """Return the most that each count of a step can be, in the order of ``graph.prices.parts.ALIASES``.

    Limits are rounded up to powers of two, so that runs with others nearby have prices in common.
    """
    config = lane.scheduler.scheduler.config
    tokens, each = ((1 << limit.bit_length()) - 1 for limit in (config.max_batch_tokens, config.max_batch_requests))
    longest = int((requests.prompt_tokens + requests.output_tokens).max(initial=0))
    context = each << longest.bit_length()
    return tokens, each, tokens, each, context, context + tokens, context + tokens


def _swaps_alone(lane: Lane) -> bool:
    """Whether nothing but that it swaps has each step of a lane decided singly."""
    config = lane.scheduler.scheduler.config
    return isinstance(lane, SwappingLane) and not replace(config, preemption="recompute").decided_singly


def expected_s(requests: Requests) -> float:
    """Return roughly how many seconds Python lanes of one pool and one stage take for some requests."""
    return REQUEST_S * len(requests) + TOKEN_S * int(requests.output_tokens.sum())


def python_s(requests: Requests, *, staged: bool, pools: TransferName | None, cached: bool) -> float:
    """Return roughly how many seconds Python lanes take, with stages, of two pools, or of prompts that share prefixes.

    ``pools``: how K/V goes from one pool to the other, where there are two; ``cached``: whether prompts share prefixes.
    """
    times = POOLED[pools] if pools else STAGED if staged else CACHED if cached else 1.0
    return expected_s(requests) * times


def waits_for_compiler(
    requests: Requests, mode: CompiledMode, *, staged: bool, pools: TransferName | None, cached: bool
) -> bool:
    """Whether lanes, if they can be compiled, wait for a compiler that has kept nothing yet; see :func:`python_s`."""
    kept = POOLS if pools else _STAGED if staged else _CACHED if cached else _SINGLE
    if mode == "never" or find_spec("numba") is None or compiler_s(*kept) < COMPILE_S:
        return False
    return mode == "always" or python_s(requests, staged=staged, pools=pools, cached=cached) >= COMPILE_S


def compiler_s(module: str, function: str) -> float:
    """Return from how many seconds of expected work on lanes are compiled: none where they are already."""
    if f"clustersim.replay.compiled.{module}" in sys.modules:
        return 0.0
    return READ_S if _is_kept(module, function) else COMPILE_S


def _is_kept(module: str, function: str) -> bool:
    """Whether the compiler has kept what it made of a module and of the kernel as they stand."""
    here = Path(__file__).parent
    file = here.joinpath(*module.split(".")).with_suffix(".py")
    beside = [] if file.parent == here else file.parent.glob("*.py")
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    elsewhere = Path(os.environ.get("NUMBA_CACHE_DIR") or "~/.cache/numba").expanduser()
    try:
        places = [file.parent / "__pycache__", *elsewhere.glob("*")]
        shared = [here / f"{name}.py" for name in ("kernel", "links", "prefixes")]
        made = max(one.stat().st_mtime for one in (file, *shared, *beside))
        found = [one for place in places for one in place.glob(f"{file.stem}.{function}-*.{tag}.nbi")]
        return any(one.stat().st_mtime >= made for one in found)
    except OSError:
        return False
