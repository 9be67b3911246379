"""Random deployments of round numbers, whose arrivals and horizon fall on the instants at which something ends.

Durations are multiples of 10 ns here, so much coincides by chance; the rest is made to. Requests are added one after
the other, each at an instant at which a step or a pass of the first stage ends in the run so far. What is added later
arrives later, so that all of these still coincide in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from clustersim import catalog
from clustersim.cluster.fault import Fault
from clustersim.cost.captured import Sizes
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.input import HostPool
from clustersim.replay.replay import ReplayInput, ReplayResult
from clustersim.serving.order import Order
from clustersim.serving.user_class import UserClass
from clustersim.timeline.timeline import Timeline
from tests.oracle.run import replay_by_oracle
from tests.round_numbers import (
    ATTENTION,
    DENSE,
    ENGINE,
    SPARSE,
    Arrival,
    deployment,
    hosted,
    pools,
    pools_apart,
    prefixed,
    stages_apart,
    step_ends,
    two_leaves,
    with_entry,
)

Case = dict[str, Any]
"""Keywords of ``deployment`` as plain data: ``plan`` has fields of ``ParallelPlan``, ``window`` is of all layers.

Replicas share experts where the plan is ``wide``, and steps run in two ``halves`` from so many tokens on, those that
only decode and others.

With ``apart`` each stage has links of its own (``stages_apart``), or K/V that moves has (``pools_apart``); with
``leaves`` devices are on two switches, between which there is one link (``two_leaves``), and ``placement`` says which
is where. With ``host`` sequences are swapped to hosts with so many blocks, one each but where ``port`` says whether all
devices share a link to one (``hosted``). With ``decode``, keywords of the decode pool, there are two pools: its
``plan``, its ``kv_blocks`` and fields of its ``ServingConfig``.
Besides, ``order`` is (by, patience in ns), ``priorities`` and ``cancel_after_ns`` are columns of requests, ``failures``
are (instant, end or None, device), and ``shares`` are the tokens of a hash, and of requests in turn a group and how
many hashes it has in common.
"""

OWN = UserClass(
    path=str(catalog.data_root() / "scenarios" / "user" / "pace_keeper.py"),
    name="PaceKeeper",
    method="decide",
    options={"prompt_tokens": 4},
    allowed=True,
)
"""A scheduler of a user's own."""

OFFSETS = (0, 0, 0, 0, 0, -1, 1)
"""Nanoseconds from an instant at which something ends."""

CAPTURED: Final = replace(
    ENGINE, launch_s=0.2e-6, graph_launch_s=0.1e-6, graph_max_tokens=4, graph_sizes=(Sizes(by=2, upto=None),)
)
"""An engine that runs decode steps of up to four tokens as captured graphs, of two and four."""


def case_input(case: Case) -> ReplayInput:
    """What a replay of a case is a function of."""
    options = dict(case)
    fields = options.pop("plan", {})
    if options.pop("captured", False):
        options["engine"] = CAPTURED
    if "ep" in fields or "ep" in options.get("decode", {}).get("plan", {}):
        options["layer"] = SPARSE
    if "window" in options:
        attention = replace(ATTENTION, sliding_window=options.pop("window"))
        options["layer"] = replace(options.get("layer", DENSE), attention=attention)
    plan = _plan(fields)
    columns = {name: np.array(options.pop(name)) for name in ("priorities", "cancel_after_ns") if name in options}
    failures, shares = options.pop("failures", ()), options.pop("shares", None)
    if "order" in options:
        by, patience_ns = options["order"]
        options["order"] = Order(by=by, patience_ns=patience_ns)
    if options.pop("apart", False):
        decode = options.get("decode")
        options["topology"] = stages_apart(plan) if decode is None else pools_apart(plan, _plan(decode["plan"]))
    if options.pop("leaves", False):
        options["topology"] = two_leaves(-(-plan.world // 2))
    host = options.pop("host", None)
    if host is not None:
        port = options.pop("port", None)
        topology = hosted(plan.world, shared=bool(port), apart=port is None)
        options |= {"topology": topology, "preemption": "swap", "host_kv_bytes": 1.0}
    given = _deployed(options.pop("arrivals"), plan, {"layers": plan.pp, **options})
    if host is not None:
        block_bytes = (1_000 * options["kv_block_tokens"] // plan.tp,) * plan.pp
        given = with_entry(given, host=HostPool(blocks=host, block_bytes=block_bytes))
    if shares is not None:
        given = prefixed(given, _hashes(given.requests.prompt_tokens.tolist(), *shares), shares[0])
    faults = tuple(Fault(at_ns=at, until_ns=until, devices=(device,)) for at, until, device in failures)
    return replace(given, requests=replace(given.requests, **columns), faults=faults)


def _plan(fields: Case) -> ParallelPlan:
    fields = dict(fields)
    if "ep" in fields:
        wide = fields.pop("wide", False)
        fields["ep"] = ExpertPlan(degree=fields["ep"], scope="global" if wide else "replica")
        if "halves" in fields:
            decode, prefill = fields.pop("halves")
            fields["ep"] = replace(
                fields["ep"], overlap="two_batch", overlap_decode_tokens=decode, overlap_prefill_tokens=prefill
            )
    if "sp" in fields:
        fields["sp"] = SequencePlan(**fields["sp"])
    return ParallelPlan(**fields)


def _deployed(arrivals: Sequence[Arrival], plan: ParallelPlan, options: dict[str, Any]) -> ReplayInput:
    if "decode" not in options:
        return deployment(arrivals, plan=plan, **options)
    serving = dict(options.pop("decode"))
    decode, blocks = _plan(serving.pop("plan")), serving.pop("kv_blocks")
    serving["kv_block_tokens"] = options["kv_block_tokens"]
    return pools(arrivals, prefill=plan, decode=decode, decode_blocks=blocks, decode_serving=serving, **options)


def _hashes(prompts: Sequence[int], tokens: int, shares: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the hashes of prompts: those of a group, then one's own."""
    rows = []
    for request, prompt in enumerate(prompts):
        group, common = shares[request % len(shares)]
        own = 1_000 * (request + 100)
        rows.append([(1_000 * group if at < common else own) + at for at in range(-(-prompt // tokens))])
    return rows


def by_events(given: ReplayInput) -> ReplayResult:
    """Replay folded, but by events, with schedulers that are objects."""
    return replay_by_oracle(replace(given, mode="folded"))


def ends_of(timeline: Timeline) -> set[int]:
    """Return the instants at which a step, a pass of a first stage or K/V on its way ends."""
    replicas = int(timeline.steps["replica"].max(initial=-1)) + 1
    ends = {end for replica in range(replicas) for end in step_ends(timeline, replica)}
    ends.update(timeline.moves["end_ns"].tolist())
    if any(pool.stages > 1 for pool in timeline.layout.pools):
        for run in np.flatnonzero(timeline.passes["stage"] == 0).tolist():
            shape = timeline.templates[int(timeline.passes["template"][run])]
            if shape.is_chain:
                ends.update((timeline.starts_of(run) + timeline.durations(run) @ shape.counts).tolist())
    return ends


def crowded(
    draw: st.DrawFn,
    make: Callable[[Sequence[Arrival]], ReplayInput],
    arrivals: Sequence[Arrival],
    lengths: st.SearchStrategy[tuple[int, int]],
) -> tuple[Arrival, ...]:
    """Draw requests to add, at instants at which something ends in the run so far."""
    found = sorted(arrivals, key=_instant)
    earliest = 0
    for _ in range(draw(st.integers(0, 4))):
        instants = sorted(end for end in ends_of(by_events(make(found)).timeline) if end > earliest)
        if not instants:
            break
        earliest = instants[draw(st.integers(0, len(instants) - 1))] + draw(st.sampled_from(OFFSETS))
        for _ in range(draw(st.sampled_from((1, 1, 1, 2)))):
            found.append((earliest, *draw(lengths)))
        found.sort(key=_instant)
    return tuple(found)


def horizons(draw: st.DrawFn, given: ReplayInput) -> int | None:
    """Draw a horizon before, at or after an instant at which something ends; mostly none."""
    if draw(st.integers(0, 2)):
        return None
    instants = sorted(ends_of(by_events(given).timeline))
    return instants[draw(st.integers(0, len(instants) - 1))] + draw(st.sampled_from(OFFSETS)) if instants else None


def _instant(arrival: Arrival) -> int:
    return arrival[0]


@st.composite
def lengths_of(draw: st.DrawFn, longest: int) -> tuple[int, int]:
    """Draw prompt and output tokens: none, one, few, and now and then many."""
    prompt = draw(st.sampled_from((0, 1, 4, 5)) | st.integers(1, 30) | st.integers(1, 30))
    output = draw(st.sampled_from((0, 1, 2)) | st.integers(1, 12) | st.integers(1, longest))
    return prompt, output


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case."""
    return _with_arrivals(draw, _one_pool(draw))


@st.composite
def splits(draw: st.DrawFn) -> Case:
    """Draw a case whose prompts are split over SP ranks."""
    case = _one_pool(draw)
    plan = case["plan"]
    plan["pp"] = draw(st.sampled_from((1, 1, 1, 2, 2, 3)))
    if plan["pp"] > 1 and draw(st.integers(0, 3)) and "host" not in case:
        case["apart"] = True
    plan["sp"] = _sp(draw, plan.get("tp", 1))
    plan.pop("wide", None)
    if "ep" in plan:
        plan["ep"] = plan["sp"]["degree"] * plan.get("tp", 1)
        if 4 % plan["ep"]:  # experts
            del plan["ep"]
    case["layers"] = plan["pp"] * draw(st.sampled_from((1, 2, 5, 9)))
    return _with_arrivals(draw, case)


def _sp(draw: st.DrawFn, tp: int) -> Case:
    degree = draw(st.sampled_from((2, 2, 3, 4)))
    schemes = ("ring", "ring", "all_gather", *(("all_to_all",) if 4 // tp % degree == 0 else ()))
    scheme = draw(st.sampled_from(schemes))
    return {
        "degree": degree,
        "scheme": scheme,
        "partition": draw(st.sampled_from(("contiguous", "zigzag", "striped"))),
        "decode": draw(st.sampled_from(("idle", "dp"))),
    }


@st.composite
def split_hand_overs(draw: st.DrawFn) -> Case:
    """Draw a case of two pools whose prompts are split over SP ranks in at least one."""
    case = _two_pools(draw)
    first = draw(st.integers(0, 2))
    for plan in (case["plan"], case["decode"]["plan"])[first // 2 : first + 1]:
        plan["sp"] = _sp(draw, plan["tp"])
    case = _with_arrivals(draw, case, least=draw(st.sampled_from((1, 4))))
    return _clocked(draw, case) if draw(st.integers(0, 2)) else case


@st.composite
def meeting(draw: st.DrawFn) -> Case:
    """Draw a case whose communications may meet on the link between two switches, or on those of a stage."""
    case = _one_pool(draw)
    dp, tp, pp = (draw(st.sampled_from(some)) for some in ((1, 1, 2, 3), (1, 2, 2, 4), (1, 2, 2, 3, 4)))
    case = {name: value for name, value in case.items() if name not in ("host", "port")}
    case |= {"plan": {"dp": dp, "tp": tp, "pp": pp}, "leaves": True, "layers": pp + draw(st.sampled_from((0, 0, 1, 4)))}
    if draw(st.booleans()):
        case["plan"]["placement"] = tuple(draw(st.permutations(range(dp * tp * pp))))
    case = _with_arrivals(draw, case)
    world = 2 * -(-dp * tp * pp // 2)
    if draw(st.integers(0, 3)) == 0:
        at, until = (draw(st.integers(0, 400_000)) for _ in range(2))
        case["failures"] = ((at, None if until % 3 == 0 else at + 1 + until, draw(st.integers(0, world - 1))),)
    return case


def _one_pool(draw: st.DrawFn) -> Case:
    """Draw a case without requests."""
    pp = draw(st.sampled_from((1, 1, 2, 3, 4)))
    plan: dict[str, Any] = {"pp": pp}
    dp, tp = draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2))))
    if dp > 1:
        plan["dp"] = dp
    if tp > 1:
        plan["tp"] = tp
        if draw(st.booleans()):
            plan["ep"] = 2
    if pp == 1 and dp > 1 and 4 % (dp * tp) == 0 and draw(st.booleans()):  # 4 experts
        plan |= {"ep": dp * tp, "wide": True}
    if pp > 1 and draw(st.integers(0, 3)) == 0:
        plan["decode_overlap"] = "none"
    block_tokens = draw(st.sampled_from((1, 4, 16)))
    pool_tokens = draw(st.sampled_from((32, 44, 64, 100, 10_000)))
    case: Case = {
        "plan": plan,
        "scheduler": draw(st.sampled_from(("continuous", "chunked_prefill"))),
        "max_batch_requests": draw(st.sampled_from((1, 2, 3, 4, 8))),
        "max_batch_tokens": draw(st.sampled_from((4, 8, 9, 16, 40, 256))),
        "kv_block_tokens": block_tokens,
        "kv_blocks": -(-pool_tokens // block_tokens),
        "layers": draw(st.sampled_from((pp, pp, pp + 1))),
    }
    if draw(st.booleans()):
        case["admission"] = "first_chunk"
    if draw(st.integers(0, 3)) == 0:
        case["preemption"] = "never"
    elif draw(st.integers(0, 3)) == 0:
        case |= {"host": draw(st.sampled_from((1, 4, 100))), "port": draw(st.sampled_from((None, None, True, False)))}
    if draw(st.integers(0, 5)) == 0:
        case["window"] = draw(st.sampled_from((1, 6, 20)))
    if draw(st.booleans()):
        case["router"] = "least_outstanding"
    return case


@st.composite
def hand_overs(draw: st.DrawFn) -> Case:
    """Draw a case of two pools."""
    return _with_arrivals(draw, _two_pools(draw))


@st.composite
def two_pools(draw: st.DrawFn) -> Case:
    """Draw a case of two pools that can be compiled, mostly with too few K/V blocks where requests decode."""
    case = _two_pools(draw)
    blocks, kept = case["decode"]["kv_blocks"], draw(st.sampled_from((12, 30, 100)))
    case["decode"] = case["decode"] | {"kv_blocks": min(blocks, kept)}
    for pool in (case, case["decode"]):
        pool["plan"] = pool["plan"] | {"pp": 1}
        pool["router"] = draw(st.sampled_from(("round_robin", "least_outstanding")))
    return _with_arrivals(draw, case, least=draw(st.sampled_from((1, 3)))) | {"horizon_ns": None}


@st.composite
def sharing(draw: st.DrawFn) -> Case:
    """Draw a case whose prompts share cached prefixes, mostly with more that decides."""
    case = _one_pool(draw) if draw(st.integers(0, 2)) else _two_pools(draw)
    size = draw(st.sampled_from((1, 4, 4, 5)))
    for unshared in ("host", "port"):
        case.pop(unshared, None)
    case |= {"prefix_caching": True, "preemption": "recompute", "kv_block_tokens": size}
    case["kv_blocks"] = -(-draw(st.sampled_from((44, 60, 80, 100, 160))) // size)
    shares = st.tuples(st.integers(0, 1), st.integers(0, 6))
    case["shares"] = draw(st.sampled_from((1, 4, 5))), tuple(draw(st.lists(shares, min_size=1, max_size=4)))
    case = _with_arrivals(draw, case, least=4)
    if draw(st.integers(0, 2)):
        case = _clocked(draw, case)
    return case | {"router": draw(st.sampled_from((case.get("router", "round_robin"), "prefix_aware")))}


def _two_pools(draw: st.DrawFn) -> Case:
    """Draw a case of two pools without requests."""
    block_tokens = draw(st.sampled_from((1, 4, 16)))
    layers = draw(st.sampled_from((1, 1, 2, 3, 6)))

    def pool(*pool_tokens: int) -> Case:
        dp, tp, pp = draw(
            st.sampled_from(((1, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2)))
        )
        return {
            "plan": {"dp": dp, "tp": tp, "pp": min(pp, layers)},
            "kv_blocks": -(-draw(st.sampled_from(pool_tokens)) // block_tokens),
            "scheduler": draw(st.sampled_from(("continuous", "chunked_prefill"))),
            "max_batch_requests": draw(st.sampled_from((1, 2, 3, 4, 8))),
            "max_batch_tokens": draw(st.sampled_from((8, 9, 16, 40, 256))),
            "router": draw(st.sampled_from(("round_robin", "least_outstanding", "fewest_waiting", "power_of_two"))),
        }

    case = pool(32, 64, 10_000, 10_000) | {"kv_block_tokens": block_tokens, "layers": layers}
    case["decode"] = pool(44, 64, 100, 10_000)
    if draw(st.integers(0, 2)) == 0:
        case["transfer"] = "layerwise"
    return case


def _with_arrivals(draw: st.DrawFn, case: Case, least: int = 1) -> Case:
    lengths = lengths_of(draw(st.sampled_from((12, 30, 80))))
    instants = st.just(0) | st.integers(0, 40_000).map(lambda i: i * 10)
    base = draw(st.lists(st.tuples(instants, lengths), min_size=least, max_size=8 * least))
    arrivals = sorted(((instant, *both) for instant, both in base), key=_instant)
    if draw(st.integers(0, 4)) == 0:
        case["concurrency"] = draw(st.integers(1, 4))
        case["arrivals"] = tuple((0, *rest) for _, *rest in arrivals)
    else:
        case["arrivals"] = crowded(draw, lambda found: case_input(case | {"arrivals": found}), arrivals, lengths)
    case["horizon_ns"] = horizons(draw, case_input(case))
    return case


@st.composite
def grouped(draw: st.DrawFn) -> Case:
    """Draw a case of replicas that take their steps together, or whose steps run in two halves; most with more."""
    case, plan = _one_pool(draw), _grouped_plan(draw)
    case |= {"plan": plan, "layers": draw(st.sampled_from((1, 1, 2, 5))), "captured": draw(st.booleans())}
    case = _with_arrivals(draw, case, least=draw(st.sampled_from((1, 4))))
    return _clocked(draw, case) if draw(st.integers(0, 2)) else case


def _grouped_plan(draw: st.DrawFn) -> Case:
    is_wide = draw(st.booleans())
    dp, tp = draw(st.sampled_from(((2, 1), (2, 1), (4, 1), (2, 2)) if is_wide else ((1, 2), (1, 4), (2, 2), (3, 2))))
    plan: Case = {name: degree for name, degree in (("dp", dp), ("tp", tp)) if degree > 1}
    plan |= {"ep": dp * tp, "wide": True} if is_wide else {"ep": tp}
    if not is_wide or draw(st.booleans()):
        plan["halves"] = draw(st.sampled_from(((1, 1), (1, 1), (2, 2), (1, 12), (4, 8))))
    return plan


@st.composite
def grouped_hand_overs(draw: st.DrawFn) -> Case:
    """Draw a case of two pools of which at least one is like that."""
    case = _two_pools(draw) | {"captured": draw(st.booleans())}
    first = draw(st.integers(0, 2))
    if first < 2:
        case["plan"] = _grouped_plan(draw)
    if first > 0:
        case["decode"]["plan"] = _grouped_plan(draw)
    case["apart"] = draw(st.booleans())
    case = _with_arrivals(draw, case, least=draw(st.sampled_from((1, 4))))
    return _clocked(draw, case) if draw(st.integers(0, 2)) else case


@st.composite
def clocked(draw: st.DrawFn) -> Case:
    """Draw a case in which more decides than arrivals and loads: ranks, limits, clients, other routers, failures."""
    return _clocked(draw, draw(cases()))


@st.composite
def clocked_splits(draw: st.DrawFn) -> Case:
    """Draw a case with SP in which all of that decides, too."""
    return _clocked(draw, draw(splits()))


@st.composite
def clocked_hand_overs(draw: st.DrawFn) -> Case:
    """Draw a case of two pools in which all of that decides, too."""
    return _clocked(draw, draw(hand_overs()))


def _clocked(draw: st.DrawFn, case: Case) -> Case:
    case = case | {"horizon_ns": None}
    case["router"] = draw(st.sampled_from(("round_robin", "least_outstanding", "power_of_two", "fewest_waiting")))
    count = len(case["arrivals"])
    ends = sorted(ends_of(by_events(case_input(case)).timeline)) or [0]
    instants = st.sampled_from(ends) | st.sampled_from(ends) | st.integers(0, ends[-1] + 1)
    if draw(st.booleans()):
        case["order"] = draw(st.sampled_from(("priority", "shortest_prompt"))), draw(st.sampled_from((-1, 0, 100_000)))
        case["priorities"] = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    if "decode" not in case and "host" not in case and draw(st.integers(0, 3)) == 0:
        static = case.get("preemption") == "never" or "decode_overlap" in case["plan"]  # which it does not heed
        static = static or case["max_batch_tokens"] < case["max_batch_requests"]
        case["scheduler"] = "static" if static else draw(st.sampled_from(("static", OWN)))
    if draw(st.integers(0, 2)) == 0:
        case |= draw(st.sampled_from(({"queue_limit": 1}, {"queue_timeout_ns": 0}, {"queue_timeout_ns": 6_610})))
    if draw(st.integers(0, 3)) == 0 and case["scheduler"] == "chunked_prefill":
        case["long_prompt_tokens"] = draw(st.sampled_from((2, 5)))
    if draw(st.booleans()):
        after = st.just(-1) | instants | st.integers(0, 200_000)
        case["cancel_after_ns"] = [
            one if one < 0 else max(0, one - arrived)
            for one, (arrived, *_) in zip(
                draw(st.lists(after, min_size=count, max_size=count)), case["arrivals"], strict=True
            )
        ]
    if draw(st.booleans()):
        lasts = st.none() | st.sampled_from((1, 10, 7_000, 100_000))
        plans = [one["plan"] for one in (case, case.get("decode")) if one is not None]
        devices = sum(
            math.prod(plan.get(degree, 1) for degree in ("dp", "pp", "tp")) * plan.get("sp", {}).get("degree", 1)
            for plan in plans
        )
        device = st.integers(0, devices - 1)
        found = draw(st.lists(st.tuples(instants, lasts, device), min_size=1, max_size=3))
        case["failures"] = tuple((at, None if last is None else at + last, device) for at, last, device in found)
    case["horizon_ns"] = horizons(draw, case_input(case))
    return case
