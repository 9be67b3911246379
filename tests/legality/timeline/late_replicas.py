"""An adversary over the source of outages, admission and routing: mistakes that anybody could make, and scenarios.

``test_late_replicas`` holds each pair to this: where the mistake changes what is recorded, the audit finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import pytest

from clustersim.replay.instant import at
from clustersim.replay.outages import Outage
from tests.legality.timeline.test_failing_pools_mutations import (
    POOLS,
    computes_anew_late,
    computes_anew_on_the_first,
    forgets_who_is_back,
    sends_again_late,
)
from tests.legality.timeline.test_outage_mutations import each, later, outages
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.events.replica import Replica
from tests.oracle.events.run import EventReplay
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.replay.admission import Admission
from tests.oracle.replay.deadlines import Patience
from tests.oracle.replay.instant import DEPARTURE, HAND_OVER
from tests.oracle.serving import routers
from tests.oracle.serving.sequence import Sequence as Request

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]
US, MS = 1_000, 1_000_000
NUMBER: Final = attrgetter("index")


def routed_by(route: Callable[[Any, Any], Any]) -> Mistake:
    """Let routers choose another replica; of two pools in both."""

    def mutate(patch: Patch) -> None:
        for made in (routers.Least, routers.PowerOfTwo, routers.PrefixAware):
            patch.setattr(made, "route", lambda self, now, request, loads: route(self, loads).index)

    return mutate


def fullest(self: Any, loads: Any) -> Any:
    return max(loads, key=lambda load: (load.outstanding, load.index))


def in_turn(self: Any, loads: Any) -> Any:
    self.turn = getattr(self, "turn", -1) + 1
    return loads[self.turn % len(loads)]


def fewest_tokens(self: Any, loads: Any) -> Any:
    return min(loads, key=lambda load: (load.outstanding, load.index))


def fewest_running(self: Any, loads: Any) -> Any:
    return min(loads, key=lambda load: (load.running, load.index))


def another_draw(patch: Patch) -> None:
    """The router draws from another stream."""
    make = routers.PowerOfTwo.__init__
    patch.setattr(routers.PowerOfTwo, "__init__", lambda self, seed, stream="router": make(self, seed + 1, stream))


def never_revives(patch: Patch) -> None:
    """A replica that is back is not alive."""
    real = Admission.change

    def change(self: Admission, now: int) -> None:
        alive = [replica.alive for replica in self.replicas]
        real(self, now)
        for replica, before in zip(self.replicas, alive, strict=True):
            replica.alive = replica.alive and before

    patch.setattr(Admission, "change", change)


def revives_late(delay: int) -> Mistake:
    """A replica is alive some time after it is back, when nobody waits for it."""

    def mistake(patch: Patch) -> None:
        real = Admission.change

        def change(self: Admission, now: int) -> None:
            back = [self.replicas[one.replica] for one in self.outages if one.until_ns == now]
            real(self, now)
            for replica in back if len(self.living) > 1 else ():
                replica.alive = False
                at(replica.env, delay, DEPARTURE, lambda _, one=replica: setattr(one, "alive", True))

        patch.setattr(Admission, "change", change)

    return mistake


def moved(order: Callable[[Any], Any]) -> Mistake:
    """What a failure moves goes in another order."""

    def mistake(patch: Patch) -> None:
        real = Admission.change

        def change(self: Admission, now: int) -> None:
            held: list[Request] = []
            retry, self.retry = self.retry, held.append
            real(self, now)
            self.retry = retry
            for sequence in sorted(held, key=order):
                retry(sequence)

        patch.setattr(Admission, "change", change)

    return mistake


def sent(choose: Callable[[Sequence[Any]], Any]) -> Mistake:
    """What a failure moves goes where its router would not send it."""

    def mistake(patch: Patch) -> None:
        def retry(self: EventReplay, sequence: Request) -> None:
            index = choose(self.admission.living).index
            self.replica_of[sequence.request] = index
            self.replicas[index].add_again(sequence)

        patch.setattr(EventReplay, "_retry", retry)

    return mistake


def living(which: Callable[[Any, Any], bool]) -> Mistake:
    """The router sees some of the replicas that live, where there is one."""

    def mistake(patch: Patch) -> None:
        def some(self: Admission) -> list[Any]:
            every = [one for one in self.entry if one.alive]
            return [one for one in every if which(self, one)] or every

        patch.setattr(Admission, "living", property(some))

    return mistake


def has_failed(self: Any, replica: Any) -> bool:
    return any(one.replica == replica.index and one.at_ns <= replica.env.now for one in self.outages)


def waits_for_its_own(patch: Patch) -> None:
    """What a replica had waits until that is back."""
    real = Admission.change

    def change(self: Admission, now: int) -> None:
        held: list[Request] = []
        retry, self.retry = self.retry, held.append
        real(self, now)
        self.retry = retry
        for sequence in held:
            back = [one.until_ns for one in self.outages if one.at_ns == now and one.until_ns is not None]
            if back:
                at(self.replicas[0].env, max(back) - now, DEPARTURE, lambda _, one=sequence: retry(one))
            else:
                retry(sequence)

    patch.setattr(Admission, "change", change)


def keeps_its_load(patch: Patch) -> None:
    """A replica that fails counts on with what it had."""
    real = Replica.fail

    def fail(self: Replica, successor: Any) -> Any:
        had = self.outstanding
        found = real(self, successor)
        self.outstanding = had
        return found

    patch.setattr(Replica, "fail", fail)


def forgets_loads(patch: Patch) -> None:
    """When one fails, all begin to count anew."""
    real = Admission.change

    def change(self: Admission, now: int) -> None:
        if any(one.at_ns == now for one in self.outages):
            for replica in self.replicas:
                replica.outstanding = 0
        real(self, now)

    patch.setattr(Admission, "change", change)


def adds(again: Callable[[Replica, Request], int]) -> Mistake:
    """What was moved counts for something else."""

    def mistake(patch: Patch) -> None:
        real = Replica.add_again

        def add_again(self: Replica, sequence: Request) -> None:
            real(self, sequence)
            self.outstanding += again(self, sequence)

        patch.setattr(Replica, "add_again", add_again)

    return mistake


def draws_among_all(patch: Patch) -> None:
    """The router draws once more while some are down."""
    real = routers.PowerOfTwo.route

    def route(self: Any, now: int, request: Any, loads: Any) -> int:
        if len(loads) == 2:
            self.draw.integers(3)
        return real(self, now, request, loads)

    patch.setattr(routers.PowerOfTwo, "route", route)


def the_first_of_two(patch: Patch) -> None:
    """Of the two that are drawn the first is taken."""

    def route(self: Any, now: int, request: Any, loads: Any) -> int:
        del now, request
        first = int(self.draw.integers(len(loads)))
        self.draw.integers(max(1, len(loads) - 1))
        number: int = loads[first].index
        return number

    patch.setattr(routers.PowerOfTwo, "route", route)


def holds_arrivals(patch: Patch) -> None:
    """A request that comes while a replica is down waits until all are back."""
    real = EventReplay._arrive

    def arrive(self: EventReplay, request: int) -> None:
        now = int(self.env.now)
        back = [one.until_ns for one in self.admission.outages if one.until_ns and one.at_ns <= now < one.until_ns]
        if back:
            at(self.env, max(back) - now, DEPARTURE, lambda _: real(self, request))
        else:
            real(self, request)

    patch.setattr(EventReplay, "_arrive", arrive)


def nobody_gives_up_in_front(patch: Patch) -> None:
    """No deadline passes for those for whom no replica lives."""
    real = Patience.expire

    def expire(self: Patience, now: int, what: int, request: int) -> None:
        if request not in self.admission.waiting:
            real(self, now, what, request)

    patch.setattr(Patience, "expire", expire)


def leaves_stranded(patch: Patch) -> None:
    """What found no decode replica leaves a little after one is back."""
    real = HandOvers.rouse
    patch.setattr(HandOvers, "rouse", lambda self: at(self.env, 300 * US, HAND_OVER, lambda _: real(self)) and None)


def decodes_first(patch: Patch) -> None:
    """Prompts leave for the decode replica with the lowest number."""
    settle = HandOvers._settle

    def first(self: HandOvers, nothing: None) -> None:
        self.router = routers.Least(NUMBER)
        settle(self, nothing)

    patch.setattr(HandOvers, "_settle", first)


def loses_who_waits(patch: Patch) -> None:
    """Who waits for a replica to come back is lost."""
    patch.setattr(Admission, "comes_back", lambda self, now, replicas=None: bool(self.living))


def other(one: Outage) -> Outage:
    return replace(one, replica=one.replica ^ 1)


MISTAKES: Final[dict[str, tuple[Mistake, str]]] = {
    "none fails": (outages(lambda found: ()), "least_outstanding"),
    "only the first fails": (outages(lambda found: found[:1]), "again and again"),
    "another one fails": (outages(each(other)), "cut"),
    "it never comes back": (outages(each(lambda one: replace(one, until_ns=None))), "decode pool"),
    "it is back a little late": (outages(each(later(until_ns=200 * US))), "decode pool, fewest waiting"),
    "it is back late": (outages(each(later(until_ns=MS))), "in turn"),
    "it is back a nanosecond late": (outages(each(later(until_ns=1))), "all down"),
    "it is back early": (outages(each(later(until_ns=-300 * US))), "least_outstanding"),
    "it fails late": (outages(each(later(at_ns=300 * US))), "fewest_waiting"),
    "it fails early": (outages(each(later(at_ns=-300 * US))), "power_of_two"),
    "it loses all": (outages(each(lambda one: replace(one, loses=not one.loses))), "decode pool, fewest waiting"),
    "it is never alive again": (never_revives, "losing"),
    "it is alive late": (revives_late(500 * US), "patience"),
    "it is alive much later": (revives_late(2 * MS), "losing"),
    "the last goes first": (moved(lambda one: -one.request), "cut"),
    "who waits goes first": (moved(lambda one: (one.admitted, one.request)), "again and again"),
    "the shortest goes first": (moved(lambda one: (one.prompt_tokens, one.request)), "least_outstanding"),
    "all go to the first": (computes_anew_on_the_first, "clients"),
    "all go to the last": (sent(lambda found: found[-1]), "queue limit"),
    "all go to the fullest": (
        sent(lambda found: max(found, key=lambda one: (one.outstanding, one.index))),
        "a closed loop",
    ),
    "all go where fewest wait": (
        sent(lambda found: min(found, key=lambda one: (one.waiting, one.index))),
        "priorities",
    ),
    "all go later": (computes_anew_late, "again, two drawn"),
    "all wait for their own": (waits_for_its_own, "priorities"),
    "nothing goes to who has failed": (living(lambda self, one: not has_failed(self, one)), "in turn"),
    "who has failed gets nothing while idle": (
        living(lambda self, one: not has_failed(self, one) or one.running > 0),
        "fewest_waiting",
    ),
    "who has failed gets all": (living(has_failed), "power_of_two"),
    "what failed keeps its load": (keeps_its_load, "layer by layer"),
    "all begin to count anew": (forgets_loads, "both pools"),
    "what is moved counts for nothing": (adds(lambda self, one: -one.prompt_tokens - one.output_tokens), "clients"),
    "what is moved counts twice": (adds(lambda self, one: one.prompt_tokens + one.output_tokens), "queue limit"),
    "what is moved counts without its prompt": (adds(lambda self, one: -one.prompt_tokens), "a closed loop"),
    "requests go where fewest wait": (
        routed_by(lambda _, found: min(found, key=lambda one: (one.waiting, one.index))),
        "decode pool, two drawn",
    ),
    "the last of equals is taken": (
        routed_by(lambda _, f: min(f, key=lambda one: (one.outstanding, -one.index))),
        "prefill pool",
    ),
    "requests go to the fullest": (routed_by(fullest), "both pools"),
    "requests go in turn": (routed_by(in_turn), "no decode replica"),
    "requests go where fewest run": (routed_by(fewest_running), "while prompts are on their way"),
    "requests go where fewest tokens are": (routed_by(fewest_tokens), "fewest_waiting"),
    "two others are drawn": (another_draw, "power_of_two"),
    "one more is drawn": (draws_among_all, "again, two drawn"),
    "the first of two is taken": (the_first_of_two, "decode pool, two drawn"),
    "arrivals are held": (holds_arrivals, "layer by layer"),
    "nobody gives up in front": (nobody_gives_up_in_front, "patience"),
    "stranded prompts leave late": (leaves_stranded, "no decode replica"),
    "prompts leave for the first": (decodes_first, "prefill pool"),
    "a decode replica that failed is forgotten": (forgets_who_is_back, "decode pool"),
    "prompts are sent again late": (sends_again_late, "while prompts are on their way"),
    "who waits is lost": (loses_who_waits, "all down"),
}
"""What is done wrong, and a scenario of those below in which it shows."""


def down(replica: int, since: str, until: str | None, **more: Any) -> dict[str, Any]:
    return {"device": replica, "at": since} | ({} if until is None else {"until": until}) | more


ONE: Final = (down(0, "3 ms", "6 ms"),)
ALL: Final = (down(0, "3 ms", "6 ms"), down(1, "4 ms", "7 ms"), down(2, "3.5 ms", "6.5 ms"))
AGAIN: Final = (down(0, "3 ms", "4 ms"), down(1, "4.5 ms", "6 ms"), down(0, "7 ms", "8 ms"))


def fleet(name: str, faults: Sequence[dict[str, Any]] = ONE, run: Any = None, **more: Any) -> dict[str, Any]:
    """Three replicas, of which some fail while requests come."""
    work = {
        "requests": 36, "output_tokens": {"uniform": {"low": 4, "high": 24}},
        "arrivals": {"process": "constant", "rate": "3000/s"},
    }  # fmt: skip
    given = {"router": name, "max_batch_requests": 2, **more.pop("serving", {})}
    return document(
        plan={"dp": 3}, serving=given, workload=work | more.pop("workload", {}), faults=list(faults),
        run=run or {"horizon": None}, **more,
    )  # fmt: skip


def two_pools(prefill: str, decode: str, *faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two replicas in each of two pools, of which some fail while requests come."""
    serving = {key: value for key, value in POOLS["serving"].items() if key != "router"}
    return POOLS | {
        "serving": serving | {"prefill": {"router": prefill}, "decode": {"router": decode}} | more,
        "workload": POOLS["workload"] | {"requests": 16}, "faults": list(faults),
    }  # fmt: skip


DECODE = (down(2, "8 ms", "9 ms"), down(3, "12 ms", "13 ms"))
PREFILL = (down(0, "8 ms", "9 ms"),)
SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "least_outstanding": fleet("least_outstanding"),
    "fewest_waiting": fleet("fewest_waiting"),
    "power_of_two": fleet("power_of_two"),
    "all down": fleet("least_outstanding", ALL),
    "again and again": fleet("least_outstanding", AGAIN),
    "again, two drawn": fleet("power_of_two", AGAIN),
    "priorities": fleet(
        "least_outstanding", AGAIN, serving={"order": {"by": "priority", "patience": "1 ms"}},
        workload={"priority": {"values": [0, 1], "weights": [1, 2]}},
    ),
    "patience": fleet("fewest_waiting", ALL, serving={"queue_timeout": "1 ms"}),
    "clients": fleet("least_outstanding", AGAIN, workload={"cancel_after": {"share": 0.3, "fixed": "2.5 ms"}}),
    "queue limit": fleet("least_outstanding", AGAIN, serving={"queue_limit": 4}),
    "a closed loop": fleet("least_outstanding", workload={"arrivals": {"process": "closed_loop", "concurrency": 9}}),
    "cut": fleet("least_outstanding", run={"horizon": "5.5 ms"}),
    "losing": fleet("fewest_waiting", (down(0, "3 ms", "6 ms", lose="lose"),)),
    "in turn": fleet("round_robin", AGAIN),
    "decode pool": two_pools("least_outstanding", "least_outstanding", *DECODE),
    "decode pool, fewest waiting": two_pools("round_robin", "fewest_waiting", *DECODE),
    "decode pool, two drawn": two_pools("fewest_waiting", "power_of_two", *DECODE),
    "prefill pool": two_pools("least_outstanding", "least_outstanding", *PREFILL),
    "both pools": two_pools("fewest_waiting", "least_outstanding", *PREFILL, *DECODE),
    "no decode replica": two_pools(
        "round_robin", "least_outstanding", down(2, "6090 us", "9.5 ms"), down(3, "7 ms", "9.7 ms")
    ),
    "while prompts are on their way": two_pools("round_robin", "least_outstanding", down(2, "6090 us", "6400 us")),
    "layer by layer": two_pools("least_outstanding", "least_outstanding", *DECODE, transfer="layerwise"),
}  # fmt: skip
