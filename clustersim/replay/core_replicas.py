"""What drives the core: its state, requests, prices and log, and when it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array, too_late
from clustersim.compiled import Arrays, Objects, Storage, compiled, field_of, logged, set_field
from clustersim.copies import several
from clustersim.core import state as st
from clustersim.core.clock import advance
from clustersim.core.events import KIND_BITS, VERSION_BITS
from clustersim.core.kv_moves import Move
from clustersim.core.prefix_cache import Extent, PrefixCache, PrefixRouting, PrefixRun
from clustersim.core.prices import OF_DECODE, OF_MIXED, OF_PREFILL
from clustersim.core.ranks import BY_RANKS
from clustersim.core.state import Clock, Flight, Replica, State
from clustersim.core.steps import TOGETHER
from clustersim.core.tables.groups import GroupKind, GroupTables
from clustersim.core.tables.prices import EventTables, PriceTables
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.core_custom import AskedRouter, AskedScheduler
from clustersim.replay.core_events import EventSteps, copies_run_by_events
from clustersim.replay.core_groups import LONGEST_RUN, GroupLog, GroupSteps, any_grouped, is_grouped
from clustersim.replay.core_links import LinkTables, links_meet
from clustersim.replay.core_pools import KvRoutes, add_moves, longer, no_pools
from clustersim.replay.core_slowdowns import SlowSteps
from clustersim.replay.host_copies import record_copies
from clustersim.replay.links.sends import sends_differ
from clustersim.replay.outages import ALL_FAILED, NO_DECODERS
from clustersim.replay.outcome import Outcome
from clustersim.replay.patience import WHY_GIVEN_UP, why_waited
from clustersim.replay.prepared import Prepared
from clustersim.replay.replica_log import ReplicaLog, StepLog, log_of
from clustersim.serving.capacity import ReplicaCapacity
from clustersim.serving.order import UNLIMITED
from clustersim.serving.prefix_keys import PrefixKeys
from clustersim.serving.router import CustomRouter, DrawnPairs
from clustersim.serving.stall import user_stall_error
from clustersim.serving.user_class import UserClass
from clustersim.timeline.columns import shelved
from clustersim.timeline.stretch import Irregular
from clustersim.workload.requests import Requests

MAX_RUN: Final = 4096
"""Most steps of one run, so that progress shows and arrays stay small."""
ROOM: Final = 1 << 15
"""Runs of steps between two times that what was logged is handed on."""
PAIRS: Final = 1 << 12
"""Pairs of replicas drawn at once where replicas fail: what is left is drawn again when others live."""
FEW: Final = 1 << 8
"""Sequences, events and places in queues at first."""
LOGGED: Final = {
    "chunks": st.CHUNK,
    "decodes": st.EPISODE,
    "facts": st.FACT,
    "reasons": st.REASON,
    "copies": st.COPY,
    "moved": st.MOVE,
}
"""Logs that tell of requests, and their columns."""
FAILED: Final = {st.ALL_FAILED: ALL_FAILED, st.NO_DECODERS: NO_DECODERS}
"""Why a request ended as it came, since replicas have failed."""
TABLES: Final = np.array([OF_PREFILL, OF_DECODE, OF_MIXED])
"""Kind of step as it is logged → its table of prices."""


class CoreReplicas:
    """Replicas and the requests that come to them, until the last token or the horizon.

    Parameters
    ----------
    prepared : Prepared
    outcome : Outcome
        What becomes of requests.
    replicas : sequence of int
        With nothing in them.
    mine : slice
        The requests that come to them.
    interpreted : bool
        Whether the core runs as it stands; the result does not depend on it.
    """

    def __init__(
        self, prepared: Prepared, outcome: Outcome, replicas: Sequence[int], mine: slice, *, interpreted: bool,
        by_events: bool = False,
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self.outcome = outcome
        self.inputs = prepared.input
        self.recorder = prepared.recorder
        self.facts: list[Int64Array] = []
        """Of replicas of two pools that may fail, in the order in which they happened; arrivals come before them."""
        self.replicas = np.array(replicas)
        self.prefill = prepared.pools[0]
        self.by_events = by_events
        self.events: EventSteps | None = None
        if by_events or copies_run_by_events(prepared):
            self.events = EventSteps(prepared, replicas, lambda: self.s, self._make_room)
        if by_events:
            self.logs: list[ReplicaLog] = [
                StepLog(replica, prepared.pool_of(replica).capacity.total, prepared.recorder) for replica in replicas
            ]
        else:
            self.logs = [log_of(prepared, replica) for replica in replicas]
        self.groups = self._groups()
        self.requests = np.arange(len(self.inputs.requests))[mine]
        self.storage: Storage = Objects() if interpreted else Arrays()
        self.interpreted = interpreted
        self.prefixes: PrefixKeys | None = prepared.prefix_keys
        self.advance = advance if interpreted else compiled(advance)
        pools = len(prepared.pools) > 1
        self.capacity = prepared.pools[0].capacity
        self.bounds = [0, len(replicas)]
        """Where each pool begins."""
        if pools:
            self.bounds = [prepared.pools[0].first_replica, prepared.pools[1].first_replica, len(replicas)]
        self.of_pools = [pool.capacity for pool in prepared.pools]
        """What each replica holds."""
        self.routes = KvRoutes(prepared, self.storage) if pools else None
        self.most_stages = max(one.stages for one in self.of_pools)
        self.split = self.inputs.entry.plan.sp.degree > 1
        self.most_together = max(pool.together for pool in prepared.pools)
        self.windows = self.inputs.entry.pricer.windows
        self.copies = prepared.copies_of_stages
        self.copying = any(pool.host is not None for pool in self.inputs.pools)
        self.schedulers: list[AskedScheduler] = []
        for r, replica in enumerate(replicas):
            pool = prepared.pool_of(replica)
            if isinstance(pool.input.serving.scheduler, UserClass):
                self.schedulers.append(AskedScheduler(pool.capacity, r, self.inputs.requests))
        self.routers = [
            AskedRouter(CustomRouter(router), self.inputs.requests, replicas, range(*pair))
            for router, pair in zip([one.config.router for one in self.of_pools], pairwise(self.bounds), strict=True)
            if isinstance(router, UserClass)
        ]
        """A user's, which is that of all pools."""
        self.tables: PriceTables = EventTables()
        if self.groups and not by_events:
            self.tables = self._group_tables()
        elif not by_events:
            apart = self.split or sends_differ(prepared)
            self.tables = self._tables([prepared.pool_of(replica).prices_of(replica) for replica in replicas], apart)
        shares = not by_events and links_meet(prepared)
        self.network = LinkTables(prepared, replicas, self.tables, self.storage, ROOM + FEW if shares else 0)
        self.margin = self.network.margin
        """Events that one event may bring."""
        self.outages = prepared.outages
        self.slow_steps = SlowSteps(prepared, replicas) if prepared.slowing and not by_events else None
        self.irregular: list[dict[int, Irregular]] = [{} for _ in replicas]
        """By replica and step not handed on yet when operators ran that devices or links were too slow for."""
        self.event_room = FEW + 4 * len(replicas) + 2 * len(self.outages)
        streams = ("router", "router of the decode pool")
        self.pairs = [DrawnPairs(self.inputs.seed, stream) for stream, _ in zip(streams, self.of_pools, strict=False)]
        self.drawn = [np.zeros(0, np.int64) for _ in self.of_pools]
        self.stretched: list[dict[int, list[tuple[int, int, int]]]] = [{} for _ in replicas]
        """By replica and step not handed on yet what took longer: stage, instance, ns."""
        self.thread: ThreadPoolExecutor | None = None
        self.dealt: Future[None] | None = None

    def _group_tables(self) -> GroupTables:
        """Return the prices of groups, those of an earlier run that came to its end where they do."""
        each = [most_counts(one, self.inputs.requests) for one in self.of_pools]
        kinds, of_replicas = dict[Any, GroupKind](), list[int]()
        for group in self.groups.values():
            number, plan = self.prepared.pools.index(group.pool), group.pool.input.plan
            key = number, group.programs["decode"].key
            kinds.setdefault(key, GroupKind(group.pricer, plan, group.programs, each[number]))
            of_replicas += [[*kinds].index(key)] * len(group.replicas)
        told = tuple((id(pool.pricer), pool.plan) for pool in self.inputs.pools)
        self.group_key = "groups", self.interpreted, told, tuple(of_replicas), tuple(each)
        made = self.inputs.entry.pricer.made
        found: GroupTables = made.pop(self.group_key, None) or GroupTables([*kinds.values()], of_replicas, self.storage)
        found.settle()
        if not found.obstacle:
            for group in self.groups.values():
                group.tables = found
        return found

    def _groups(self) -> dict[int, GroupSteps]:
        """Return the steps of groups by the place of their first replica, which gets a log for their passes."""
        found: dict[int, GroupSteps] = {}
        grouped = any_grouped(self.prepared)
        for r, replica in enumerate(self.replicas.tolist()):
            pool = self.prepared.pool_of(replica)
            calm = self.events is not None and self.events.is_calm(r)
            if replica in pool.meshes and (calm if self.by_events else grouped):
                found[r] = GroupSteps(self.prepared, pool, replica, r)
                self.logs[r] = GroupLog(found[r], replica, pool.capacity.total, self.prepared.recorder)
        if self.by_events and self.events is not None:
            self.events.runs = found
        return found

    def _tables(self, stages: Sequence[Sequence[StepPrices]], apart: bool) -> PriceTables:
        """Return the prices of all replicas, those of an earlier run that came to its end where they do."""
        each = [most_counts(one, self.inputs.requests) for one in self.of_pools]
        most = tuple(max(counts) for counts in zip(*each, strict=True))
        by_layer = self.routes is not None and self.routes.by_layer
        key = "core", self.interpreted, apart, tuple(tuple(map(id, one)) for one in stages), most, by_layer
        made = stages[0][0].pricer.made
        found: PriceTables = made.pop(key, None) or PriceTables(
            stages, most, self.storage, apart=apart, by_layer=by_layer
        )
        found.settle()
        return found

    def _keep_tables(self) -> None:
        """Let later runs have these prices."""
        stages = [[self.tables.kinds[kind] for kind in one] for one in self.tables.of_stage]
        tables = self.tables
        each = tuple(tuple(map(id, one)) for one in stages)
        key = "core", self.interpreted, tables.apart, each, tables.most, tables.by_layer
        stages[0][0].pricer.made[key] = self.tables

    def run(self) -> None:
        """Simulate to the end, and log it."""
        self._make()
        with ExitStack() as stack:
            if not self.interpreted and len(self.logs) > 1 and several():
                thread = stack.enter_context(ThreadPoolExecutor(1))
                with suppress(RuntimeError):  # no room for another thread
                    thread.submit(int).result()
                    self.thread = thread
            self._run()

    def _make(self) -> None:
        """Make the state."""
        storage, requests = self.storage, self.inputs.requests
        config, count, stages = self.capacity.config, len(self.logs), self.most_stages
        width = max(1, *(min(one.config.max_batch_requests, one.total) for one in self.of_pools))
        whole = self.tables.whole
        classes, ranks = whole["classes"], whole["ranks"]
        copied = width if self.copying else 0  # as many may be copied as run
        layers = self.most_together if self.groups and self.routes is not None else 0
        self.margin = self.network.margin + copied * self.most_together + layers
        varying = max(
            [one.room for one in self.groups.values()]
            or [
                MAX_RUN * classes + TOGETHER if one.stages == 1 else one.stages * one.stages * classes
                for one in self.of_pools
            ]
        )
        if self.tables.ranks is not None:
            each = [self.tables.ranks.found_of(kinds, of) for kinds in self.tables.of_stage for of in range(3)]
            varying += MAX_RUN + stages * max(each)
        self.widths = {
            "rows": len(st.ROW), "chunks": len(st.CHUNK), "decodes": len(st.EPISODE), "facts": len(st.FACT),
            "reasons": len(st.REASON), "copies": len(st.COPY), "varying": 1, "all_passes": 2 * stages * (stages > 1),
            "all_sends": 2 * ranks * (stages - 1), "moved": len(st.MOVE),
        }  # fmt: skip
        kept = sum(one.total for one in self.of_pools) if self.outages else 0  # sequences that are on their way
        spare = {
            "rows": 2, "varying": varying, "chunks": width, "decodes": 4 * width, "facts": 8 * width + 4 * kept,
            "reasons": width + 2 + kept, "copies": width * stages if self.copying else 0,
            "moved": 0 if self.routes is None else 1,
        }  # fmt: skip
        spare = {name: more * self.most_together if name != "varying" else more for name, more in spare.items()}
        much = {"varying": 4 * ROOM * classes, "facts": 2 * ROOM, "copies": ROOM if self.copying else 0}
        much["moved"] = 0 if self.routes is None else ROOM
        self.rooms = {name: much.get(name, ROOM) for name in spare}
        self.h = no_pools(storage)
        if self.routes is not None:
            self.network.n, self.h = self.routes.lists(
                self.network.n, self._longest, self._layers(), by_events=self.by_events
            )
            if self.events is not None:
                self.events.move(self.routes, lambda: (self.network.n, self.h))
        logs = {name: storage.log((self.rooms[name] + more) * self.widths[name]) for name, more in spare.items()}
        steps = ROOM + 2 if stages > 1 else 0
        logs["all_passes"] = storage.log(steps * self.widths["all_passes"])
        logs["all_sends"] = storage.log(steps * self.widths["all_sends"])
        self.h = self.h._replace(moved=logs.pop("moved"))
        self._room = {name: self.rooms[name] * self.widths[name] for name in spare}
        mine, total = self.requests, len(self.requests)
        patient = config.queue_timeout_ns is None and requests.cancel_after_ns is None and not self.outages
        nothing = np.zeros(0, np.int64)
        owners = max(one.owners for one in self.of_pools)
        ranks_of, thens = (np.concatenate(one) for one in zip(*self._orders(), strict=True))
        cancels = nothing if requests.cancel_after_ns is None else requests.cancel_after_ns[mine]
        self.s = State(
            clock=storage.records(Clock, 1),
            pools=storage.records(st.Pool, len(self.of_pools)),
            replicas=storage.records(Replica, count),
            owners=storage.records(st.Owner, count * owners),
            sequences=storage.records(st.Sequence, FEW),
            spare=storage.numbers(FEW),
            queues=storage.table(count, FEW + width),
            order=storage.table(count, width + 1),
            swapped=storage.table(count, copied and width),
            copies_end=storage.table(count, copied and 2 * stages * owners),
            copies_ns=storage.column(np.concatenate([one.ravel() for one in self._copies_ns()])),
            ready=storage.numbers(width + 1),
            flights=storage.grid(Flight, count, stages),
            members=storage.table(count, stages * width),
            pending=storage.table(count, varying),
            passes=storage.table(count, 2 * stages * stages),
            sends=storage.table(count, stages * 2 * ranks * (stages - 1)),
            free_at=storage.table(count, stages),
            sent_at=storage.table(count, ranks * (stages - 1)),
            slots=storage.table(count, stages, -1),
            phases=storage.numbers(max(one.block_tokens for one in self.of_pools)),
            times=storage.numbers(self.event_room + self.margin),
            whats=storage.numbers(self.event_room + self.margin),
            choice=storage.numbers(2 * width if self.schedulers else 0),
            touched=storage.numbers(count),
            load_tree=storage.numbers(0),
            pairs=storage.column(nothing),
            living=storage.numbers(count),
            outages=storage.records(st.Outage, len(self.outages)),
            retried=storage.numbers(total if self.outages else 0, -1),
            arrived=storage.column(requests.arrived_at_ns[mine]),
            prompts=storage.column(requests.prompt_tokens[mine]),
            outputs=storage.column(requests.output_tokens[mine]),
            ranks=storage.column(ranks_of),
            thens=storage.column(thens),
            cancel_after=storage.column(cancels),
            refused=storage.numbers(total),
            came=storage.numbers(total, -1),
            routed=storage.numbers(total, -1),
            sequence_of=storage.numbers(0 if patient and not self.copying else total, -1),
            order_of_arrival=storage.numbers(total),
            follows=storage.column(nothing if requests.follows is None else requests.follows[mine]),
            turns=storage.numbers(0 if requests.follows is None else total, -1),
            due_turns=storage.numbers(0 if requests.follows is None else total),
            **self._prefix_lists(count * owners),
            **logs,
        )
        for place in range(FEW):
            self.s.spare[place] = FEW - 1 - place
        self.tables.forget()
        self._fill_pools()
        for number in range(len(self.of_pools)):
            self._fill(number)
        self._fill_clock(width, ranks)
        self._fill_outages()
        self._fill_caches(owners)

    def _prefix_lists(self, owners: int) -> dict[str, Any]:
        """Return what is kept of prompts, as lists of the state; empty where nothing is."""
        storage, keys = self.storage, self.prefixes
        first = end = run = blocks = np.zeros(0, np.int64)
        runs = extents = 0
        if keys is not None:
            first, end, blocks = keys.bounds[:-1][self.requests], keys.bounds[1:][self.requests], keys.blocks
            found, run = np.unique(keys.keys, return_inverse=True)
            runs, extents = len(found) + 1, self.capacity.blocks + 2
        return {
            "caches": storage.records(PrefixCache, owners),
            "prefix_runs": storage.sparse_grid(PrefixRun, owners, runs),
            "extents": storage.sparse_grid(Extent, owners, extents),
            "prefix_first": storage.column(first),
            "prefix_end": storage.column(end),
            "prefix_of": storage.column(run.astype(np.int64) + 1),
            "prefix_blocks": storage.column(blocks),
            "prefix_routing": storage.records(PrefixRouting, 1),
        }

    def _fill_caches(self, owners: int) -> None:
        """Let all blocks be free, and without content; say how the router goes by prefixes."""
        if self.prefixes is None:
            return
        blocks = self.capacity.blocks
        for cache in range(self.bounds[1] * owners):  # not where requests only decode
            set_field(self.s.caches, cache, "free", blocks)
            set_field(self.s.caches, cache, "made", 2)
            for name, at, value in (("behind", 0, 1), ("before", 0, 1), ("blocks", 1, blocks)):
                set_field(self.s.extents[cache], at, name, value)
        for name in PrefixRouting.__slots__:
            set_field(self.s.prefix_routing, 0, name, float(getattr(self.capacity.config.prefix_routing, name)))

    def _fill(self, number: int) -> None:
        """Say what the replicas of a pool may do."""
        pool, of_pool = self.of_pools[number], self.prepared.pools[number]
        config = pool.config
        chunked = config.scheduler == "chunked_prefill"
        host = self.inputs.pools[number].host
        hosts = 0 if host is None else host.blocks
        grouped = is_grouped(of_pool.input.plan) if self.by_events else any_grouped(self.prepared)
        values = {
            "block_tokens": pool.block_tokens, "blocks": pool.total, "max_tokens": config.max_batch_tokens,
            "max_requests": config.max_batch_requests,
            "longest": (config.long_prompt_tokens if chunked else None) or config.max_batch_tokens,
            "chunked": int(chunked), "static": int(config.scheduler == "static"),
            "ranked": int(config.order.by != "arrival"),
            "keeps_room": int(config.preemption == "never"), "first_chunk": int(config.admits_first_chunks),
            "gives_up": int(config.preemption == "recompute"), "stages": pool.stages,
            "overlap": int(pool.decode_overlap), "window": sum(self.windows),
            "custom": int(bool(self.schedulers)), "pool": number,
            "owners": pool.owners, "split": self._split,
            "by_layer": int(number == 0 and self.routes is not None and self.routes.by_layer),
            "queue_limit": -1 if config.queue_limit is None else config.queue_limit, "free": pool.total,
            "caching": int(self.prefixes is not None and number == 0), "first_kept": -1,
            "change": st.NEVER if self.slow_steps is None else 0,
            "by_events": int(self.by_events), "copies_by_events": int(self.events is not None),
            "meets": int(self.network.shares),
            "host_blocks": hosts, "outage": -1,
            "group_size": of_pool.together, "by_group": int(grouped),
        }  # fmt: skip
        most = len(self.s.owners) // len(self.logs)
        for r in range(*self.bounds[number : number + 2]):
            for owner in range(pool.owners):
                set_field(self.s.owners, r * most + owner, "free", pool.blocks)
                set_field(self.s.owners, r * most + owner, "host", hosts)
            set_field(self.s.replicas, r, "first_owner", r * most)
            set_field(self.s.replicas, r, "group_first", r - (r - self.bounds[number]) % values["group_size"])
            for name, value in values.items():
                set_field(self.s.replicas, r, name, value)
            first = r - (r - self.bounds[number]) % values["group_size"]
            set_field(self.s.replicas, r, "calm", int(self.by_events and first in self.groups))
            if self.routes is not None and not self.by_events:
                set_field(self.s.replicas, r, "meets", int(self.network.disturbs(int(self.replicas[r]))))

    @property
    def _split(self) -> int:
        """Whether prompts are split over SP ranks, and decodes too."""
        if not self.split or self.by_events:
            return 0
        return BY_RANKS if self.tables.ranks is not None and self.tables.ranks.decodes else 1

    def _router(self, number: int) -> int:
        """Return how requests go to the replicas of a pool."""
        router = self.of_pools[number].config.router
        if isinstance(router, UserClass):
            return st.CUSTOM
        found = st.ROUTERS.index(router) if self.bounds[number + 1] - self.bounds[number] > 1 else st.ROUND_ROBIN
        caching = self.prefixes is not None and number == 0
        return st.LEAST_OUTSTANDING if found == st.PREFIX_AWARE and not caching else found

    def _fill_clock(self, width: int, ranks: int) -> None:
        """Say where the clock begins."""
        requests, config = self.inputs.requests, self.capacity.config
        for request in np.flatnonzero(self.outcome.refused[self.requests]).tolist():
            self.s.refused[request] = 1 + bool(self.outcome.refused_there[self.requests[request]])
        cancels = requests.cancel_after_ns is not None and bool((requests.cancel_after_ns >= 0).any())
        clock = {
            "phase": st.ENDS, "total": len(self.requests),
            "freed": requests.concurrency or 0, "closed": int(requests.concurrency is not None),
            "horizon": st.NEVER - 1 if self.inputs.horizon_ns is None else self.inputs.horizon_ns,
            "replicas": len(self.logs), "asked": -1, "chosen": -1,
            "spares": FEW, "queue_room": FEW + width, "event_room": len(self.s.times),
            "most_stages": self.most_stages, "pools": len(self.of_pools),
            "displaced_at": st.NEVER, "displaced_from": st.NEVER, "displaced_to": -1,
            "timeout": -1 if config.queue_timeout_ns is None else config.queue_timeout_ns, "cancels": int(cancels),
            "max_run": min(MAX_RUN, LONGEST_RUN if self.groups else st.NEVER), "senders": ranks,
            "margin": self.margin,
            "stretches_room": ROOM * len(st.STRETCH),
            **{f"{name}_room": room for name, room in self._room.items()},
        }  # fmt: skip
        for name, value in clock.items():
            set_field(self.s.clock, 0, name, value)

    @property
    def _longest(self) -> int:
        """The most tokens of a request."""
        requests = self.inputs.requests
        return int((requests.prompt_tokens + requests.output_tokens).max(initial=0))

    def _orders(self) -> list[tuple[Int64Array, Int64Array]]:
        """Return what orders requests in the queues of each pool; nothing where they only go by arrival."""
        found = [_order(one, self.inputs.requests) for one in self.of_pools]
        kept = slice(None) if any(one.config.order.by != "arrival" for one in self.of_pools) else slice(0)
        return [(ranks[self.requests][kept], thens[self.requests][kept]) for ranks, thens in found]

    def _layers(self) -> list[int]:
        """Return layers in the order in which a step of the first pool passes them, where somebody waits for them."""
        if self.routes is None or not self.routes.by_layer:
            return []
        stages = range(self.capacity.stages)
        templates = [self.prefill.programs[self.prefill.first_replica, stage]["prefill"].template for stage in stages]
        return [layer for template in templates for _, layer in template.passes_layers]

    def _copies_ns(self) -> list[Int64Array]:
        """Return what copies of so many blocks take, as many as a sequence can have: stage by stage in, then out."""
        found = []
        for one, pool in zip(self.copies, self.of_pools, strict=True):
            most = min(pool.total, pool.needed(self._longest))
            found.append(np.concatenate([stage[:, : most + 1] for stage in one or ()] or [np.zeros((1, 0), np.int64)]))
        return found

    def _fill_outages(self) -> None:
        """Say which replicas live, which fail, and when."""
        for r in range(len(self.logs)):
            self.s.living[r] = r
        due = []
        for number, outage in enumerate(self.outages):
            until = -1 if outage.until_ns is None else outage.until_ns
            for name, value in (
                ("replica", outage.replica),
                ("at", outage.at_ns),
                ("until", until),
                ("loses", int(outage.loses)),
            ):
                set_field(self.s.outages, number, name, value)
            due += [
                (time, st.FAULT << KIND_BITS | number << VERSION_BITS) for time in (outage.at_ns, until) if time >= 0
            ]
        for at, (time, what) in enumerate(sorted(due)):  # which is a heap
            self.s.times[at], self.s.whats[at] = time, what
        set_field(self.s.clock, 0, "events", len(due))

    def _fill_pools(self) -> None:
        """Say how requests go to replicas, none of which has a load."""
        trees: list[int] = []
        copies_at = 0
        for number, ((first, end), copies) in enumerate(zip(pairwise(self.bounds), self._copies_ns(), strict=True)):
            size = 1 << max(end - first - 1, 0).bit_length()
            tree = [-1] * size + [*range(first, end)] + [-1] * (size - end + first)
            for at in range(size - 1, 0, -1):
                tree[at] = tree[2 * at]
            router = self._router(number)
            values = {
                "first": first, "size": end - first, "living": end - first, "router": router, "leaves": size,
                "tree_at": len(trees), "drawn": 0 if router == st.POWER_OF_TWO else st.NEVER,
                "copies_at": copies_at, "copies_size": copies.shape[1],
            }  # fmt: skip
            copies_at += copies.size
            for name, value in values.items():
                set_field(self.s.pools, number, name, value)
            trees += tree
        self.s = self.s._replace(load_tree=self.storage.numbers(len(trees)))
        for at, one in enumerate(trees):
            self.s.load_tree[at] = one

    def _run(self) -> None:
        status, now, ended = st.FULL, 0, 0
        if self.events is not None:
            self.events.begin()
        while status != st.DONE:
            status = self.advance(self.s, self.tables.p, self.network.n, self.h)
            if status == st.OUTAGES:
                self._renew_schedulers()
                if self.slow_steps is not None:
                    self.slow_steps.break_off(self.s)
                if self.events is not None:
                    self.events.break_off()
            elif self.events is not None and self.by_events and status in (st.ASK_PASS, st.ASK_STEP):
                self.events.launch(self._of_clock("asking"))
                now = max(now, self._of_clock("now"))
                ended = self._tell(ended, now)
            elif self.events is not None and status == st.ASK_EVENTS:
                self.events.go_on()
            elif status == st.ASK_BATCH:
                self.schedulers[self._of_clock("asking")].decide(self.s)
            elif status == st.ASK_LAYERS:
                self.groups[self._of_clock("asking")].foresee_layers(self.s, self.h)
            elif status == st.ASK_SLOWDOWN:
                assert self.slow_steps is not None
                self.slow_steps.answer(self.s, self._of_clock("asking"))
            elif status == st.LACKS_BLOCKS:
                self.schedulers[self._of_clock("asking")].lacks_blocks(self.s, self._of_clock("chosen"))
            elif status in (st.FULL, st.DONE):
                now = self._hand_on(now)
                ended = self._tell(ended, now)
            elif status == st.GROW:
                self._grow()
            elif status == st.ASK_PAIRS:
                self._draw()
            elif status == st.WIDEN:
                self.tables.widen()
            elif status == st.TOO_LATE:
                raise too_late()
            elif status == st.ASK_ROUTE:
                self._ask_router()
            else:
                self._answer(status)
        self._wait()
        self._check_stall()
        self._finish()

    def _of_clock(self, name: str) -> int:
        return int(field_of(self.s.clock, 0, name))

    def _tell(self, before: int, now: int) -> int:
        """Report progress; return how many requests have ended."""
        ended = self._of_clock("ended")
        if ended > before:
            self.outcome.end(ended - before, now)
        return ended

    def _finish(self) -> None:
        """Tell when and where requests came, and hand on what replicas recorded."""
        outcome, s = self.outcome, self.s
        at = np.asarray(s.order_of_arrival, np.int64)[: self._of_clock("turn")]
        mine = self.requests[at]
        outcome.arrived[mine] = np.asarray(s.came, np.int64)[at]
        routed = np.asarray(s.routed, np.int64)[at]
        last = np.asarray(s.retried, np.int64)[at] if self.outages else routed
        outcome.replica_of[mine] = self.replicas[np.where(last < 0, routed, last)]
        for request in mine[outcome.refused[mine]].tolist():
            if request not in outcome.reasons:
                outcome.explain(request)
        outcome.refused[mine] |= np.asarray(s.refused, np.int64)[at] != 0
        order, cuts = by_replica(routed, len(self.logs))
        for r, log in enumerate(self.logs):
            outcome.record(log, mine[order[cuts[r] : cuts[r + 1]]])
        for facts in self.facts:
            self.recorder.facts.extend_columns(**dict(zip(st.FACT, facts.T, strict=True)))
        if isinstance(self.tables, GroupTables):
            self.inputs.entry.pricer.made[self.group_key] = self.tables
        elif not self.by_events:
            self._keep_tables()

    def unfinished(self) -> Iterator[str]:
        """Yield what is left, for people to read."""
        for r, replica in enumerate(self.replicas.tolist()):
            waiting, away, running, free, blocks = (
                int(field_of(self.s.replicas, r, name)) for name in ("waiting", "away", "running", "free", "blocks")
            )
            if waiting or away or running:
                many = f"{waiting + away} waiting, {running} running"
                yield f"replica {replica}: {many}, {free} of {blocks} K/V blocks free"
            if waiting:
                head = self.s.queues[r][0]
                request = int(self.requests[field_of(self.s.sequences, head, "request")])
                tokens = int(field_of(self.s.sequences, head, "prompt") + field_of(self.s.sequences, head, "generated"))
                needed = self.capacity.needed(tokens)
                yield f"request {request} waits for {needed} K/V blocks and a place in the batch"
        for pipeline in [] if self.events is None else self.events.pipelines.values():
            yield from pipeline.story()

    # ---- what the core asks for -------------------------------------------------------------------------------------
    def _make_room(self) -> None:
        """Make room for another event."""
        while self._of_clock("events") + 3 > self._of_clock("event_room"):
            self._grow()

    def _grow(self) -> None:
        """Make room for more sequences, events, or places in queues."""
        s = self.s
        spares = self._of_clock("spares")
        if spares < 2:
            before = len(s.sequences)
            self.s = s = s._replace(
                sequences=longer(s.sequences, self.storage.records(st.Sequence, before)),
                spare=longer(s.spare, self.storage.numbers(before)),
            )
            for place in range(before):
                s.spare[spares + place] = 2 * before - 1 - place
            set_field(s.clock, 0, "spares", spares + before)
        elif self.routes is not None and int(field_of(self.h.streams, 0, "spares")) < self.routes.most:
            before = len(self.h.moves)
            self.h = self.h._replace(moves=longer(self.h.moves, self.storage.records(Move, before)))
            add_moves(self.h.streams, self.h.moves, before)
        elif self._of_clock("events") + 3 + self._expected() > self._of_clock("event_room"):
            more = len(s.times)
            self.s = s._replace(
                times=longer(s.times, self.storage.numbers(more)), whats=longer(s.whats, self.storage.numbers(more))
            )
            set_field(s.clock, 0, "event_room", more + self._of_clock("event_room"))
        else:
            width = len(s.queues[0])
            more_places = self.storage.table(len(self.logs), width)
            if isinstance(s.queues, np.ndarray):
                self.s = s._replace(queues=np.concatenate([s.queues, more_places], axis=1))
            else:
                for row, more_row in zip(s.queues, more_places, strict=True):
                    row.extend(more_row)
            set_field(s.clock, 0, "queue_room", 2 * width)

    def _expected(self) -> int:
        """Return how many events transfers may bring at once."""
        return int(field_of(self.network.n.traffic, 0, "present")) + self.margin

    def _draw(self) -> None:
        """Draw pairs of replicas of a pool: as many as there are requests where the same ones live to the end."""
        number = self._of_clock("asking")
        first, drawn, living = (
            int(field_of(self.s.pools, number, name)) for name in ("choices", "first_pair", "living")
        )
        more = min(len(self.requests), PAIRS) if self.outages else len(self.requests)
        self.drawn[number] = self.pairs[number].next(first - drawn, living, more)
        self.s = self.s._replace(pairs=self.storage.column(np.concatenate(self.drawn)))
        set_field(self.s.pools, number, "first_pair", first)
        set_field(self.s.pools, number, "drawn", first + more)
        for pool, before in enumerate(np.cumsum([0, *map(len, self.drawn[:-1])]).tolist()):
            set_field(self.s.pools, pool, "pairs_at", before)

    def _ask_router(self) -> None:
        """Let a user's router choose."""
        router = self.routers[self._of_clock("phase") == st.HAND_OVERS]
        request = int(self.requests[self._of_clock("asking")])
        set_field(self.s.clock, 0, "chosen", router.choose(self.s, self._of_clock("now"), request))

    def _renew_schedulers(self) -> None:
        """Let a user's schedulers of replicas that have failed just now begin anew."""
        for r, one in enumerate(self.schedulers):
            outage = int(field_of(self.s.replicas, r, "outage"))
            if one.outage != outage:
                self.schedulers[r] = AskedScheduler(one.capacity, r, self.inputs.requests, outage)

    def _check_stall(self) -> None:
        """End a run with requests that have not ended, since a user's scheduler chooses nothing."""
        left = len(self.requests) - self._of_clock("ended")
        if left and self.inputs.horizon_ns is None:
            for replica, one in zip(self.replicas.tolist(), self.schedulers, strict=False):
                found = one.stall(self.s, self._of_clock("now"))
                if found is not None:
                    raise user_stall_error(left, replica, one.capacity.blocks, found)

    def _answer(self, status: int) -> None:
        """Find the price that the core asks for."""
        r = self._of_clock("asking")
        rep = {name: int(field_of(self.s.replicas, r, name)) for name in Replica.__slots__}
        chunks, new, context, decodes = rep["chunks"], rep["new"], rep["context"], rep["decodes"]
        counts = (new + decodes, chunks + decodes, new, decodes, context, context + new, rep["keys"])
        mixed = int(decodes > 0)
        if r in self.groups and isinstance(self.tables, GroupTables):
            if self.tables.obstacle:
                self.groups[r].answer(self.s)
                return
            self.tables.answer(r, status)
            if status == st.ASK_STEP:
                set_field(self.s.clock, 0, "answered", 1)
            return
        if rep["split"] and (rep["chunks"] or rep["stages"] > 1 or rep["split"] == BY_RANKS):
            self._answer_ranks(r, rep, status)
            return
        if status == st.ASK_USES:
            k = (rep["oldest"] + rep["flying"]) % rep["stages"]
            self.network.learn(r, k, OF_DECODE if chunks == 0 else mixed, counts)
        elif status == st.ASK_DECODE:
            self.tables.learn_decode(r, decodes)
        elif status == st.ASK_PART:
            self.tables.learn_parts(r, mixed, counts)
        elif status == st.ASK_ROW:
            self.tables.learn_rows(r, mixed, counts)
        else:
            self._answer_step(r, rep, counts)

    def _answer_step(self, r: int, rep: Mapping[str, int], counts: tuple[int, ...]) -> None:
        """Price attention of a step by arrays, where the core can't."""
        tables, decodes = self.tables, rep["decodes"]
        tables.settle()
        for kind in tables.kinds_of(r):
            one = tables.kinds[kind]
            if rep["chunks"]:
                near = rep["near_pairs"], rep["near_keys"], rep["near_attended"] if decodes else 0
                varying: Sequence[int] = one.prompts(
                    rep["chunks"], counts[2], counts[4], rep["pairs"], counts[6], decodes, rep["attended"],
                    dict.fromkeys(self.windows, near),
                )[2]  # fmt: skip
            else:
                price = one.decode(decodes)
                flying = int(field_of(self.s.flights[r], 0, "steps")) if rep["stages"] == 1 else 0
                keys, seen = rep["attended"] + flying * decodes, rep["near_attended"] + flying * rep["near_growth"]
                pairs = zip(price.ns, price.windows, strict=True)
                varying = [ns(keys if window is None else seen) for ns, window in pairs]
            base = kind * tables.whole["classes"]
            if rep["stages"] == 1 and not rep["chunks"] and not rep["meets"]:
                base = 0
            for core, ns in enumerate(varying):
                tables.p.answer[base + core] = ns
        tables.settle()
        set_field(self.s.clock, 0, "answered", 1)

    def _answer_ranks(self, r: int, rep: Mapping[str, int], status: int) -> None:
        """Find a price of SP ranks."""
        k = (rep["oldest"] + rep["flying"]) % rep["stages"]
        first = k * (len(self.s.members[r]) // rep["stages"]) + rep["decodes"]
        chunks = []
        for one in self.s.members[r][first : first + rep["chunks"]]:
            computed, taken, owner = (
                int(field_of(self.s.sequences, one, name)) for name in ("computed", "taken", "owner")
            )
            chunks.append((computed, taken, owner))
        self.tables.answer_ranks(r, status, chunks)
        if status == st.ASK_STEP:
            set_field(self.s.clock, 0, "answered", 1)

    # ---- what it logged ---------------------------------------------------------------------------------------------
    def _hand_on(self, now: int) -> int:
        """Hand on what was logged since the last time; return when the last step of it ends."""
        if self.events is not None:
            self.events.begin_copies()
        s = self.s
        taken: dict[str, Any] = {}
        for name in self._room:
            log = self.h.moved if name == "moved" else getattr(s, name)
            taken[name] = logged(log, self._of_clock(f"{name}_at"), self.widths[name])
            set_field(s.clock, 0, f"{name}_at", 0)
        rows = len(taken["rows"])
        for name in ("all_passes", "all_sends"):
            taken[name] = logged(getattr(s, name), rows * self.widths[name], max(self.widths[name], 1))
        taken["stretches"] = logged(self.network.n.stretches, self._of_clock("stretches_at"), len(st.STRETCH))
        set_field(s.clock, 0, "stretches_at", 0)
        taken["slowed"] = [] if self.slow_steps is None else self.slow_steps.taken()
        self.tables.settle()
        self._tell_owners(taken)
        for name, columns in LOGGED.items():
            at = columns.index("request")
            taken[name][:, at] = self.requests[taken[name][:, at]]
        for request, why, value in taken["reasons"].tolist():
            self.outcome.reasons[request] = self._reason(request, why, value)
        if rows:
            now = max(now, int(taken["rows"][:, st.ROW.index("end_ns")].max()))
        self._wait()
        if self.thread is None:
            self._deal(taken)
        else:
            self.dealt = self.thread.submit(self._deal, taken)
        return now

    def _tell_owners(self, taken: dict[str, Any]) -> None:
        """Tell replicas which of their owners keep who was admitted, which is logged as a fact."""
        facts = taken["facts"]
        kept = facts[:, st.FACT.index("kind")] == st.KEPT
        if kept.any():
            for r, now, _, request, owner, _ in facts[kept].tolist():
                self.logs[r].kept(now, int(self.requests[request]), owner)
            taken["facts"] = facts[~kept]

    def _reason(self, request: int, why: int, value: int) -> str:
        if why == st.QUEUE_FULL:
            limit = self.capacity.config.queue_limit
            return f"the queue of replica {self.replicas[value]} is full: serving.queue_limit is {limit}"
        if why in FAILED:
            return FAILED[why]
        if why == st.TOO_LONG:
            found = self.capacity.refusal(int(self.inputs.requests.prompt_tokens[request]), value)
            return f"to be computed anew, it {found}"
        if why == st.LOST_COMPUTED:
            last = max(self.outages, key=lambda one: (one.replica >= self.bounds[1], one.at_ns))
            return f"{last.words}, and no decode replica was left"
        if why in (st.LOST_IN_FAILURE, st.LOST_WAITING):
            return self.outages[value].why_lost(at_once=why == st.LOST_IN_FAILURE)
        return why_waited(value) if why == st.WAITED else WHY_GIVEN_UP[why - st.LEFT_QUEUE]

    def _wait(self) -> None:
        """Wait for the thread that hands on what was logged."""
        if self.dealt is not None:
            self.dealt.result()
            self.dealt = None

    def _deal(self, taken: Mapping[str, Any]) -> None:
        """Give each replica what it logged."""
        rows, count = taken["rows"], len(self.logs)
        self._deal_copies(taken["copies"])
        for replica, step, stage, instance, ns in taken["stretches"].tolist():
            mine = self.stretched[replica]
            if stage < 0:  # from that step on they never ended
                self.stretched[replica] = {one: lost for one, lost in mine.items() if one < step}
            else:
                mine.setdefault(step, []).append((stage, instance, ns))
        for r, step, found in taken["slowed"]:
            if found is None:
                self.irregular[r] = {one: kept for one, kept in self.irregular[r].items() if one < step}
            else:
                self.irregular[r][step] = found
        order, cuts = by_replica(rows[:, -1], count)
        rows = rows[order]
        logged_rows = dict(zip(st.ROW[:-1], rows.T, strict=False))
        sizes = self._sizes(taken["rows"])
        varying, ends = spread(taken["varying"].ravel(), sizes, order, cuts)
        if self.routes is not None and self.outages:  # in the order in which a request was at several replicas
            self.facts.append(taken["facts"])
            taken = {**taken, "facts": taken["facts"][:0]}
        into = self.logs[0].tables()
        many = []
        for name, one in zip(("chunks", "decodes", "facts"), into, strict=True):
            table = taken[name]
            mine, places = by_replica(table[:, 0], count)
            many.append((shelved(one.typed([column[mine] for column in table[:, 1:].T])), places))
        of_stages: tuple[Any, ...] = ()
        ranks = self.tables.whole["ranks"]
        if self.most_stages > 1 and not self.by_events:
            passes = taken["all_passes"][order].reshape(-1, self.most_stages, 2)
            of_stages = passes, taken["all_sends"][order].reshape(-1, self.most_stages - 1, 2, ranks)
        if self.routes is not None and len(taken["moved"]):
            self.routes.record(taken["moved"])
        for r, log in enumerate(self.logs):
            mine_rows = {name: column[cuts[r] : cuts[r + 1]].copy() for name, column in logged_rows.items()}
            parts = [{name: column[at[r] : at[r + 1]] for name, column in columns.items()} for columns, at in many]
            besides = []
            if of_stages and log.stages > 1:
                passes, sends = (table[cuts[r] : cuts[r + 1]] for table in of_stages)
                sends = sends[:, : log.stages - 1, :, : log.ranks]
                if sends.shape[3] != log.ranks:
                    sends = np.repeat(sends, log.ranks, axis=3)
                besides = [passes[:, : log.stages].copy(), sends]
            self._tell_stretches(r, log, cuts[r + 1] - cuts[r])
            self._tell_slowed(r, log, mine_rows["count"])
            values = varying[ends[r] : ends[r + 1]]
            if self.tables.ranks is not None:
                values, *more = self._untangle(r, log, mine_rows, values, sizes[order][cuts[r] : cuts[r + 1]], *besides)
                besides += more
            log.extend(mine_rows, values, parts, *besides)

    def _untangle(
        self, r: int, log: ReplicaLog, rows: dict[str, Int64Array], values: Int64Array, sizes: Int64Array,
        *of_stages: Int64Array,
    ) -> list[Int64Array]:  # fmt: skip
        """Take where values were found, and how long steps took, out of what varies; return the rest and bytes sent."""
        tables, ranks, kept = self.tables, self.tables.ranks, np.ones(len(values), np.bool_)
        assert ranks is not None
        ends = np.cumsum(sizes)
        numbers, sent = ranks.untangle(tables.of_stage[r], TABLES[rows["kind"]], ends, values, kept)
        if of_stages:
            of_stages[0][:, :, 1] = numbers
            return [values[kept], sent]
        rows["number"] = np.where(numbers[:, 0] < 0, rows["number"], numbers[:, 0])
        if tables.is_timed(r):
            places, starts = lengths_of(rows, values, len(tables.classes_of(r, OF_DECODE)), ends - sizes)
            kept[places] = False
            log.tell_starts(starts)
        return [values[kept]]

    def _sizes(self, rows: Int64Array) -> Int64Array:
        """Return how many values vary in these rows of steps."""
        if not self.groups:
            return self.tables.values_of(rows[:, -1], TABLES[rows[:, 1]], rows[:, 10])
        found = np.zeros(len(rows), np.int64)
        for r, group in self.groups.items():
            mine = rows[:, -1] == r
            found[mine] = group.sizes(rows[mine, -2], rows[mine, 10])
        return found

    def _tell_stretches(self, r: int, log: ReplicaLog, rows: int) -> None:
        """Say what took longer in the next steps of a replica, each of which is a row."""
        mine = self.stretched[r]
        for step in sorted(step for step in mine if step < log.flushed + rows):
            by_stage: dict[int, list[int]] = {}
            for stage, instance, ns in mine.pop(step):
                by_stage.setdefault(stage, []).extend((instance, ns))
            for stage, pairs in by_stage.items():
                log.stretch(stage, pairs, step - log.flushed)

    def _tell_slowed(self, r: int, log: ReplicaLog, counts: Int64Array) -> None:
        """Say when operators ran in the next steps of a replica that were slow, each of which is a row."""
        ends, mine = log.flushed + np.cumsum(counts), self.irregular[r]
        for step in sorted(step for step in mine if len(ends) and step < ends[-1]):
            log.irregular(0, mine.pop(step), int(np.searchsorted(ends, step, side="right")))

    def _deal_copies(self, copies: Int64Array) -> None:
        """Give each replica its copies that have ended by the horizon, and before it failed.

        Raises
        ------
        InputError
            When one that begins by then ends later than int64 can tell.
        """
        horizon = st.NEVER - 1 if self.inputs.horizon_ns is None else self.inputs.horizon_ns
        for outage in self.outages:
            decided, ends = copies[:, st.COPY.index("decided_ns")], copies[:, st.COPY.index("end_ns")]
            copies = copies[(copies[:, 0] != outage.replica) | (decided >= outage.at_ns) | (ends <= outage.at_ns)]
        starts, ends = copies[:, st.COPY.index("start_ns")], copies[:, st.COPY.index("end_ns")]
        if ((ends == st.NEVER) & (starts <= horizon)).any():
            raise too_late()
        copies = copies[ends <= horizon]
        pool, recorder = self.inputs.entry, self.prepared.recorder
        for r, replica in enumerate(self.replicas.tolist() if len(copies) else ()):
            mine = copies[copies[:, 0] == r]
            for stage in range(pool.plan.pp):
                record_copies(recorder, pool, replica, stage, mine[mine[:, 1] == stage][:, [*range(2, 8), -1]])


def _order(capacity: ReplicaCapacity, requests: Requests) -> tuple[Int64Array, Int64Array]:
    """Return what orders requests in the queue before their numbers do (``serving.order``): rank, then delay."""
    order = capacity.config.order
    nothing = np.zeros(len(requests), np.int64)
    numbers = requests.prompt_tokens if order.by == "shortest_prompt" else nothing
    if order.by == "priority" and requests.priorities is not None:
        numbers = requests.priorities
    return (numbers, nothing) if order.patience_ns == UNLIMITED else (nothing, order.patience_ns * numbers)


def most_counts(capacity: ReplicaCapacity, requests: Requests) -> tuple[int, ...]:
    """Return the most that each count of a step can be, in the order of ``graph.prices.counts.ALIASES``.

    Limits are rounded up to powers of two, so that runs with others nearby have prices in common.
    """
    config = capacity.config
    tokens, each = ((1 << limit.bit_length()) - 1 for limit in (config.max_batch_tokens, config.max_batch_requests))
    longest = int((requests.prompt_tokens + requests.output_tokens).max(initial=0))
    context = each << longest.bit_length()
    return tokens, each, tokens, each, context, context + tokens, context + tokens


def by_replica(column: Any, replicas: int) -> tuple[Int64Array, Int64Array]:
    """Return the order of rows by their replica, and where each replica begins."""
    order = np.argsort(column, kind="stable")
    return order, np.searchsorted(column[order], np.arange(replicas + 1))


def lengths_of(
    rows: Mapping[str, Int64Array], values: Int64Array, classes: int, begins: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return where it is told how long each decode step takes, and when steps of several in a row start.

    Parameters
    ----------
    rows : mapping
    values : int64 array
        What varies in them, one after the other.
    classes : int
        How many classes vary in a decode step.
    begins : int64 array
        Where the values of each row begin.
    """
    decodes = rows["kind"] == st.DECODE
    count, first = rows["count"][decodes], begins[decodes]
    step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    places = np.repeat(first, count) + (classes + 1) * step + classes
    lengths = values[places]
    before = np.cumsum(lengths) - lengths
    starts = before - np.repeat(before[np.cumsum(count) - count], count) + np.repeat(rows["start_ns"][decodes], count)
    return places, starts[np.repeat(count > 1, count)]


def spread(
    varying: Int64Array, sizes: Int64Array, order: Int64Array, cuts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return what varies in rows of so many values in another order of rows, and where each replica begins."""
    begin, mine = np.cumsum(sizes) - sizes, sizes[order]
    places = np.repeat(begin[order] - (np.cumsum(mine) - mine), mine)
    return varying[places + np.arange(len(places))], np.concatenate([[0], np.cumsum(mine)])[cuts]
