"""RUN-5: each request goes to the replica that the declared router chooses, by the loads that follow from the facts.

``round_robin`` is judged in ``routing``. Where some replicas fail, and in a decode pool, loads are counted by
``whereabouts``, which knows what a failure moves, and who is on the way from pool to pool.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, judged, lacking, merged
from clustersim.legality.history import SWAPPED_OUT, Declared
from clustersim.legality.timeline_rules.policy.declared import NEVER, Policies
from clustersim.legality.timeline_rules.policy.loads import Loads, loads_of, outstanding_of
from clustersim.legality.timeline_rules.views.contents import Contents
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.passes import blocks, within
from clustersim.workload.streams import named_stream

FIX: Final = "send a request to the replica that the declared router chooses"


def as_routed(reading: Reading, policies: Policies) -> Finding:
    """Judge where requests go, pool by pool."""
    return merged(*(_of_pool(reading, declared) for declared in policies.pools if declared.dp > 1))


def _of_pool(reading: Reading, declared: Declared) -> Finding:
    name, pool = declared.router, "" if declared.role == "all" else f" of the {declared.role} pool"
    if name is None:
        return lacking(f"which replica{pool} a request goes to (by a router of its own)")
    if name == "round_robin":
        return NOTHING
    fails = min((at for _, at, _ in declared.down), default=NEVER)
    moved = _counted(reading, declared, name, pool) if declared.down or declared.role == "decode" else NOTHING
    if declared.role == "decode":
        return moved
    judging, told, lacks = FindingOfParts(FIX), True, list[Finding]()
    for loads in outstanding_of(reading, declared) if name == "least_outstanding" else (loads_of(reading, declared),):
        if loads is None:
            return lacking(f"which replica{pool} a request goes to by {name} (no steps were recorded)")
        lacks.append(_look(judging, reading, declared, name, loads, fails))
        told &= bool(loads.told.all())
    more = f"where some requests{pool} go by {name} (when some others left does not follow)"
    return merged(judging.finding, *lacks, moved, NOTHING if told else lacking(more))


def _look(
    judging: FindingOfParts, reading: Reading, declared: Declared, name: str, loads: Loads, fails: int
) -> Finding:
    """Look at where some requests go; return what can't be told of that."""
    chosen, told, lacks = _chosen(reading, declared, name, loads)
    looked = told & loads.told & (loads.target >= 0) & (loads.time < fails)
    first = declared.first_replica

    def message(i: int) -> str:
        mine, best = int(loads.target[i]), int(chosen[i])
        least = loads.seen_by(i, _score(loads) if name == "fewest_waiting" else loads.outstanding)
        return (
            f"goes to replica {first + mine} at {loads.time[i]:,} ns, and {name} chooses {first + best}, with loads "
            f"of {least[best]:,} and {least[mine]:,}"
        )

    judging.look(
        int(looked.sum()), looked & (chosen != loads.target) & (chosen >= 0), "request {load.request}", message,
        load=Rows(loads),
    )  # fmt: skip
    return lacks


def _counted(reading: Reading, declared: Declared, name: str, pool: str) -> Finding:
    """Judge where requests go by what each replica that lives has to do, counted from fact to fact."""
    whereabouts, facts = reading.whereabouts, reading.history.facts
    if whereabouts is None or facts is None:
        return lacking(f"which replica{pool} a request goes to by {name} (no facts were recorded)")
    if name == "fewest_waiting" and reading.facts_of(SWAPPED_OUT).size:  # who is on the way to its host waits as well
        return lacking(f"where requests{pool} go by {name} (some are swapped)")
    rows, due = np.array(whereabouts.misled, np.int64).reshape(-1, 2).T
    mine = (due >= declared.first_replica) & (due < declared.first_replica + declared.dp)
    rows, due = rows[mine], due[mine]
    request, replica, time = (facts[column][rows] for column in ("request", "replica", "time_ns"))
    found = judged(
        len(facts["kind"]), np.ones(len(rows), bool), "request {request}",
        "is on replica {replica} at {time:,} ns, and {name} chooses {due} of those that live, by what each has to do",
        FIX, request=request, replica=replica, time=time, name=name, due=due,
    )  # fmt: skip
    if whereabouts.judged_by_load(0 if declared.role != "decode" else 1):
        return found
    why = "what failures move is not told" if declared.down else "when some others left does not follow"
    return merged(found, lacking(f"where some requests{pool} go by {name} ({why})"))


def _score(loads: Loads) -> Int64Array:
    return 4 * loads.waiting + loads.running


def _chosen(reading: Reading, declared: Declared, name: str, loads: Loads) -> tuple[Int64Array, BoolArray, Finding]:
    """Return who is to be chosen, −1 for what was; where that is judged; and what is not."""
    every = np.ones(len(loads.request), bool)
    policy = declared.policy
    assert policy is not None
    if name == "fewest_waiting":
        if reading.facts_of(SWAPPED_OUT).size:
            return loads.target, ~every, lacking("where requests go by fewest_waiting (some are swapped)")
        return loads.least(_score(loads)), every, NOTHING
    if name == "power_of_two":
        draw = named_stream(np.random.SeedSequence(policy.seed), policy.stream)
        found = np.empty(len(every), np.int64)
        for part, (outstanding,) in loads.of_each(loads.outstanding):
            for at, seen in enumerate(outstanding, part.start):
                one, other = int(draw.integers(declared.dp)), int(draw.integers(declared.dp - 1))
                pair = sorted((one, other + (other >= one)))
                found[at] = min(pair, key=seen.__getitem__)
        return found, every, NOTHING
    least = loads.least(loads.outstanding)
    if name == "prefix_aware":
        return _by_prefix(reading, declared, loads, least)
    return least, every, NOTHING


def _by_prefix(
    reading: Reading, declared: Declared, loads: Loads, least: Int64Array
) -> tuple[Int64Array, BoolArray, Finding]:
    """Return who is to be chosen where loads are unbalanced, or one has surely more of a prompt cached.

    Which blocks are cached at an instant is not recorded: what was ever computed is the most that can be, and all of it
    is there where fewer blocks were taken than the pool has, since those that hold nothing are taken first.
    """
    policy, size, contents = declared.policy, declared.block_tokens, reading.prefixes.contents
    pieces, requests = reading.pieces, reading.history.requests
    assert policy is not None
    lacks = lacking(
        "which replica has most of a prompt cached when prefix_aware asks (what was evicted is not recorded)"
    )
    if contents is None or pieces is None or size is None or requests is None or reading.several_pools:
        return loads.target, np.zeros(len(least), bool), lacks
    most, fewest = np.empty((2, len(least)), np.int64)
    for part, (counts,) in loads.of_each(loads.waiting + loads.running):
        most[part], fewest[part] = counts.max(axis=1), counts.min(axis=1)
    unbalanced = (most - fewest > policy.balance_abs_threshold) & (most > policy.balance_rel_threshold * fewest)
    if reading.facts_of(SWAPPED_OUT).size:
        unbalanced[:] = False
    prompts = requests["prompt_tokens"].astype(np.int64)
    chosen = loads.target.copy()
    asked = np.flatnonzero((loads.target >= 0) & ~unbalanced)
    request, target = loads.request[asked], loads.target[asked]
    many = np.minimum(contents.blocks[request], np.maximum(prompts[request] - 1, 0) // size)
    replicas = range(declared.first_replica, declared.first_replica + declared.dp)
    cached = size * np.stack([
        _leading(contents, _computed_since(reading, contents, size, replica), request, many, loads.time[asked])
        for replica in replicas
    ], axis=1)  # fmt: skip
    enough = np.maximum(1.0, policy.cache_threshold * prompts[request])
    sure = np.where(loads.time[asked][:, None] <= np.array(_forgets(reading, declared)), cached, 0)
    mine, most_sure = np.take_along_axis(cached, target[:, None], axis=1)[:, 0], sure.max(axis=1)
    elsewhere = np.where((mine < enough) & (target != least[asked]), least[asked], target)
    chosen[asked] = np.where((most_sure > mine) & (most_sure >= enough), sure.argmax(axis=1), elsewhere)
    chosen[unbalanced] = least[unbalanced]
    return chosen, np.ones(len(least), bool), lacks


def _computed_since(reading: Reading, contents: Contents, size: int, replica: int) -> Int64Array:
    """Return since when blocks have been computed on a replica, by their number; ``NEVER`` where they were not."""
    pieces = reading.pieces
    assert pieces is not None
    at = reading.rows_at(pieces.replica, replica)
    at = at[pieces.is_chunk[at]]
    first, ends = pieces.computed[at] // size, (pieces.computed[at] + pieces.count[at]) // size
    many = np.maximum(np.minimum(ends, contents.blocks[pieces.request[at]]) - first, 0)
    found = np.full(contents.numbers, NEVER)
    for some in blocks(many):
        each = many[some]
        block = np.repeat(first[some], each) + within(each)
        numbers = contents.of(np.repeat(pieces.request[at[some]], each), block)
        np.minimum.at(found, numbers, np.repeat(pieces.end[at[some]], each))
    return found


def _leading(
    contents: Contents, since: Int64Array, request: Int64Array, many: Int64Array, now: Int64Array
) -> Int64Array:
    """Return how many of the first blocks of prompts, of so many, have been there since an instant or before."""
    found = many.copy()
    for some in blocks(many):
        each = many[some]
        place = within(each)
        lacks = since[contents.of(np.repeat(request[some], each), place)] > np.repeat(now[some], each)
        of = np.repeat(np.arange(some.start, some.stop), each)[lacks]
        np.minimum.at(found, of, place[lacks])
    return found


def _forgets(reading: Reading, declared: Declared) -> list[int]:
    """Return until when each replica of a pool has taken no more blocks than it has, and so forgotten none."""
    pieces, size = reading.pieces, declared.block_tokens
    assert pieces is not None
    assert size is not None
    cut = declared.horizon_ns is not None or bool(declared.down)  # steps that are under way then are not recorded
    if cut or declared.pool_blocks is None or declared.role == "decode" or reading.facts_of(SWAPPED_OUT).size:
        return [-1] * declared.dp
    takes = -(-(pieces.computed + pieces.count) // size) + (-pieces.computed // size)
    found = []
    for replica in range(declared.first_replica, declared.first_replica + declared.dp):
        here = reading.rows_at(pieces.replica, replica)
        here = here[np.argsort(pieces.begin[here], kind="stable")]
        over = int(np.searchsorted(np.cumsum(takes[here]), declared.pool_blocks, side="right"))
        found.append(int(pieces.begin[here[over]]) - 1 if over < len(here) else NEVER)
    return found
