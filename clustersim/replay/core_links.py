"""What shares links in a run of the core: paths of stages and senders, and what communications put on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clustersim.clock import to_ns
from clustersim.collective.algorithms import Kind
from clustersim.compiled import Storage, set_field
from clustersim.core.passes import ASKED, COLLECTIVE, SEND, Chain, Network, Sender, Stage
from clustersim.core.prices import OF_DECODE
from clustersim.core.state import STRETCH
from clustersim.core.tables.prices import MOST_VALUES, PriceTables
from clustersim.cost.attention import UNKNOWN
from clustersim.graph.prices.counts import COUNTS as PLACES
from clustersim.graph.prices.counts import count_features
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.step_table import ATTENDED
from clustersim.graph.program import CostClass, StageProgram
from clustersim.replay.events.pass_program import contraction_is_exact
from clustersim.replay.links.paths import Places, make_flows, places_of
from clustersim.replay.prepared import Prepared

PAYLOAD_COUNTS: Final = 4
"""Payloads depend on the first so many of the counts that describe a step: tokens, sequences, and which of both."""
KINDS = ("prefill", "mixed", "decode")
"""Kinds of step in the order of tables of prices."""


def links_meet(prepared: Prepared) -> bool:
    """Whether communications may meet on links."""
    return bool(prepared.contention.stages or prepared.contention.boundaries)


def sharing_obstacle(prepared: Prepared) -> str:
    """Return why the core can't simulate communications that may meet; empty if it can, or none may."""
    contention, pools = prepared.contention, prepared.pools
    if not (contention.stages or contention.boundaries):
        return ""
    programs = [program for pool in pools for kinds in pool.programs.values() for program in kinds.values()]
    if not all(contraction_is_exact(program) and _is_whole(program) for program in programs):
        return "communications can meet on a link, and not all ranks of a stage do the same"
    if any(_place(cls) == ASKED for program in programs for cls in program.classes if cls.comm is not None):
        return "communications can meet on a link, and what they carry depends on several counts, or on contexts"
    if any(pool.input.serving.max_batch_tokens >= MOST_VALUES // 2 for pool in pools):
        return "communications can meet on a link, and steps may have very many tokens"
    if contention.boundaries and len({pool.input.plan.tp for pool in pools}) > 1:
        return "communications can meet on a link, and stages of the pools have different ranks"
    return ""


def _is_whole(program: StageProgram) -> bool:
    """Whether all ranks of a stage join each of its collectives."""
    return all(len(members) == program.template.ranks for _, members in program.collectives)


def _place(cls: CostClass) -> int:
    """Return the count that a class depends on, −1 for none; ``ASKED`` where it is not one of tokens and sequences."""
    if cls.node.op in ATTENDED:
        return -1
    found = {PLACES.get(name, PAYLOAD_COUNTS) for name, _ in cls.node.amount}
    if len(found) > 1 or max(found, default=0) >= PAYLOAD_COUNTS:
        return ASKED
    return found.pop() if found else -1


class LinkTables:
    """The network of a run of the core.

    Parameters
    ----------
    prepared : Prepared
    replicas : sequence of int
    tables : PriceTables
    storage : Storage
    room : int
        Places of the log of what was stretched; 0 where nothing shares links, or events say how.

    Attributes
    ----------
    n : Network
    shares : bool
        Whether anything may meet on a link here.
    margin : int
        Events that one event may bring.
    """

    def __init__(
        self, prepared: Prepared, replicas: Sequence[int], tables: PriceTables, storage: Storage, room: int
    ) -> None:
        self.prepared, self.replicas, self.tables, self.storage = prepared, replicas, tables, storage
        self.comm = prepared.input.comm
        self.stages = max(pool.input.plan.pp for pool in prepared.pools)
        self.shares = room > 0
        self.senders = tables.whole["ranks"] if self.shares else 0
        self.margin = 0
        if not self.shares:
            self.n = self._network([], [], 0, 0, 0)
            return
        self.kinds: dict[int, tuple[int, int]] = {}
        """Kind of stage → a replica and stage that are of it."""
        for r, of_stage in enumerate(tables.of_stage):
            for stage, kind in enumerate(of_stage):
                self.kinds.setdefault(kind, (replicas[r], stage))
        self.ops = {kind: self._ops_of(*at) for kind, at in self.kinds.items()}
        self._lay(room)

    def _network(
        self, paths: list[Places], chains: list[dict[str, int]], slots: int, classes: int, collectives: int
    ) -> Network:
        storage, count, shares = self.storage, len(self.replicas), int(self.shares)
        links = len(self.prepared.input.topology.link_ends) if self.shares else 0
        width = max(1, *(1 + most for most in self.tables.most[:PAYLOAD_COUNTS])) if self.shares else 1
        self.width = width
        n = Network(
            **make_flows(storage, links, paths)._asdict(),
            stages=storage.grid(Stage, count, self.stages * shares),
            senders=storage.grid(Sender, count, self.senders * (self.stages - 1)),
            took=storage.table(count, self.stages * classes),
            asked=storage.table(
                count, self.stages * self.stages * classes if any(one["asks"] for one in chains) else 0
            ),
            chains=storage.records(Chain, len(chains)),
            collectives=storage.table(len(chains), collectives * (classes + 2)),
            layers=storage.table(len(chains), max([0, *(one["layers"] for one in chains)]) * (classes + 1)),
            uses=storage.table(slots, 1 + 2 * width, UNKNOWN),
            class_place=storage.table(len(chains), classes, -1),
            class_ns=storage.table(len(chains), classes * width, UNKNOWN),
            stretches=storage.log(0),
        )
        for number, fields in enumerate(chains):
            for name, value in fields.items():
                set_field(n.chains, number, name, value)
        return n

    def _ops_of(self, replica: int, stage: int) -> list[Kind]:
        """Return the kinds of collectives of a stage, each once."""
        programs = self.prepared.pool_of(replica).programs[replica, stage]
        return list(dict.fromkeys(op for kind in KINDS for op, _ in programs[kind].collectives))

    def _program(self, kind: int, of: int) -> StageProgram:
        return self.prepared.pool_of(self.kinds[kind][0]).programs[self.kinds[kind]][KINDS[of]]

    def _lay(self, room: int) -> None:
        """Make the network: paths, chains of operators, and slots for what they put on links."""
        tables, comm = self.tables, self.comm
        capacity = self.prepared.input.topology.link_capacity
        paths: list[Places] = []
        firsts: list[list[int]] = []
        of_senders: list[list[tuple[int, int]]] = []
        for replica, of_stage in zip(self.replicas, tables.of_stage, strict=True):
            firsts.append([])
            of_senders.append([])
            pool = self.prepared.pool_of(replica)
            for stage, kind in enumerate(of_stage):
                devices = pool.stage_devices(replica, stage)
                firsts[-1].append(len(paths))
                for op in self.ops[kind]:
                    paths += [places_of([plan], capacity) for plan in comm.plans(op, devices)]
            stages = [pool.stage_devices(replica, stage) for stage in range(len(of_stage))]
            for left, right in pairwise(stages):
                for pair in list(zip(left, right, strict=True))[: self.senders]:
                    plans = comm.plans("send", pair)
                    of_senders[-1].append((len(paths), len(plans)))
                    paths += [*(places_of([plan], capacity) for plan in plans), ((), ())]
        chains, slots = [], 0
        programs = [self._program(kind, of) for kind in range(len(self.kinds)) for of in range(3)]
        self.slots: list[list[int]] = []
        """By table the classes of its slots: of collectives, then of sends."""
        self.classes = classes = max(len(program.classes) for program in programs)
        for table, program in enumerate(programs):
            waits = self.tables.by_layer and table % 3 != OF_DECODE
            mine = [cls for cls, one in enumerate(program.classes) if one.comm is not None and not _sends(one)]
            self.slots.append([*mine, *program.template.send_classes[: self.senders]])
            chains.append(
                {
                    "classes": classes, "count": len(_instances(program)), "first_slot": slots,
                    "end_slot": slots + len(self.slots[-1]), "send_slot": slots + len(mine),
                    "layers": len(program.template.passes_layers) if waits else 0,
                    "asks": int(table % 3 != OF_DECODE and any(_place(one) == ASKED for one in program.classes)),
                }
            )  # fmt: skip
            slots += len(self.slots[-1])
        self.n = self._network(paths, chains, slots, classes, max(chain["count"] for chain in chains))
        self.chains = chains
        self.n = self.n._replace(stretches=self.storage.log(room * len(STRETCH)))
        for table, program in enumerate(programs):
            self._fill_chain(table, program, classes)
        for f in range(len(paths)):
            set_field(self.n.paths, f, "owner", COLLECTIVE)
        for r, replica in enumerate(self.replicas):
            self._fill_replica(r, replica, firsts[r], of_senders[r])
        self.margin = 8 + self.senders + 2 * max([0, *(len(of) for of, _ in paths)])

    def _fill_chain(self, table: int, program: StageProgram, classes: int) -> None:
        """Say what is known of passes of one kind before any is priced."""
        n, first = self.n, self.chains[table]["first_slot"]
        slot_of = {cls: first + at for at, cls in reversed(list(enumerate(self.slots[table])))}
        order = program.template.instance_class
        counts = np.zeros(classes, np.int64)
        number = layer = 0
        ends = [instance for instance, _ in program.template.passes_layers] if self.chains[table]["layers"] else []
        for instance, cls in enumerate(order.tolist()):
            counts[cls] += 1
            if layer < len(ends) and instance == ends[layer]:
                for at, value in enumerate((number, *counts.tolist())):
                    n.layers[table][layer * (classes + 1) + at] = value
                layer += 1
            if program.classes[cls].comm is not None:
                for at, value in enumerate((slot_of[cls], instance, *counts.tolist())):
                    n.collectives[table][number * (classes + 2) + at] = value
                number += 1
        attending = self.tables.classes[table]
        for cls, one in enumerate(program.classes):
            place = _place(one)
            n.class_place[table][cls] = OF_DECODE + 1 if table % 3 == OF_DECODE else place
        for cls in range(len(program.classes), self.classes):
            n.class_ns[table][cls * self.width] = 0  # other passes have so many
        for core, (one, _) in enumerate(attending):
            n.class_place[table][program.classes.index(one)] = -2 - core
        for at, cls in enumerate(self.slots[table]):
            place = _place(program.classes[cls])
            n.uses[first + at][0] = max(place, 0)

    def _fill_replica(self, r: int, replica: int, firsts: Sequence[int], senders: Sequence[tuple[int, int]]) -> None:
        """Say whose the paths of a replica are, and whom it concerns that others are on its links."""
        n, contention = self.n, self.prepared.contention
        for stage, first in enumerate(firsts):
            set_field(n.stages[r], stage, "first_path", first)
            set_field(n.stages[r], stage, "foreign", int((replica, stage) in contention.crowded))
            for link in contention.watched.get((replica, stage), ()):
                set_field(n.links, link, "watcher", r * self.stages + stage)
        for number, (first, plans) in enumerate(senders):
            set_field(n.senders[r], number, "first_path", first)
            set_field(n.senders[r], number, "idle", plans)
            set_field(n.senders[r], number, "alone", int(not self.tables.apart))
            for f in range(first, first + plans + 1):
                set_field(n.paths, f, "owner", SEND)
                set_field(n.paths, f, "number", r * self.senders * (self.stages - 1) + number)

    def disturbs(self, replica: int) -> bool:
        """Whether anything may disturb the passes or sends of a replica."""
        contention = self.prepared.contention
        return any((replica, i) in contention.stages | contention.boundaries for i in range(self.stages))

    def learn(self, r: int, k: int, of: int, counts: Sequence[int]) -> None:
        """Find out what the communications of a step put on links, and what its operators take; ``k``: its flight."""
        tables, n = self.tables, self.n
        set_field(n.stages[r], 0, "answered", 1)
        for kind in tables.kinds_of(r):
            table = 3 * kind + of
            program, first = self._program(kind, of), self.chains[table]["first_slot"]
            row = self._row(kind, of, counts)
            for cls in range(len(program.classes)):
                place = n.class_place[table][cls]
                if place == ASKED:
                    for stage in (i for i, one in enumerate(tables.of_stage[r]) if one == kind):
                        n.asked[r][(k * self.stages + stage) * self.classes + cls] = int(row[cls])
                elif place >= -1:
                    n.class_ns[table][cls * self.width + (counts[place] if place >= 0 else 0)] = int(row[cls])
            for at, cls in enumerate(self.slots[table]):
                uses = n.uses[first + at]
                ns, path = self._use(kind, program, cls, counts, int(row[cls]))
                uses[1 + 2 * counts[uses[0]]], uses[2 + 2 * counts[uses[0]]] = ns, path

    def _row(self, kind: int, of: int, counts: Sequence[int]) -> Any:
        """Return the nanoseconds of each class of a step."""
        one = self.tables.kinds[kind]
        if of == OF_DECODE:
            return one.decode(counts[3]).row
        return (one.prefill, one.mixed)[of].fill(tuple(counts))

    def _use(self, kind: int, program: StageProgram, cls: int, counts: Sequence[int], ns: int) -> tuple[int, int]:
        """Return for how long a class of communication is on which links of its stage or sender; 0 where on none."""
        node = program.classes[cls].node
        pricer = self.tables.kinds[kind].pricer
        features = count_features((*counts[:PAYLOAD_COUNTS], 0, 0, 0), range(PAYLOAD_COUNTS))
        if counts[2] == 0:
            features = pricer.padded(features, (counts[3],))
        payload = payload_bytes(program, features, cls)
        replica, stage = self.kinds[kind]
        pool = self.prepared.pool_of(replica)
        devices = pool.stage_devices(replica, stage)
        if node.communication == "send":
            rank = program.template.send_classes.index(cls)
            devices = devices[rank], pool.stage_devices(replica, stage + 1)[rank]
        plans = self.comm.plans(node.communication, devices)
        plan = self.comm.chosen(node.communication, devices, payload)
        if plan is None:
            return 0, 0
        path = next(at for at, one in enumerate(plans) if one is plan)
        if node.communication != "send":
            ops = self.ops[kind]
            before = ops[: ops.index(node.communication)]
            path += sum(len(self.comm.plans(op, devices)) for op in before)
        return min(ns, to_ns(payload * plan.seconds_per_byte)), path


def _sends(cls: CostClass) -> bool:
    return cls.node.communication == "send"


def _instances(program: StageProgram) -> list[int]:
    """Return the instances of a pass that communicate."""
    order = program.template.instance_class.tolist()
    return [at for at, cls in enumerate(order) if program.classes[cls].comm is not None]
