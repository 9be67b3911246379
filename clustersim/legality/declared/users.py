"""Who may be on which link, and on which links two may be at a time: from plans, placements and routes alone.

What waits for each other is one after the other: the collectives of a stage that have a rank in common, the sends of
a rank, its copies to the host or from there, and hand-overs that leave one rank or reach one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import combinations

from clustersim.legality.declared.setting import Pool, Setting, ranks
from clustersim.legality.prices.links import Links
from clustersim.timeline.tables import HOST

COLLECTIVES, SEND, HAND_OVER, SWAP = range(4)
"""What may be on a link: the collectives of a stage, or from rank to rank its output, or K/V, also of a host."""
NOTHING_ELSE, MOVES, ANYTHING = range(3)
Pair = tuple[int, int]
"""Global ranks that something goes from and to; ``HOST`` for the host of the other one."""
User = tuple[int, int, int]
"""What kind of communication it is, and between which ranks; of collectives, of which replica and stage."""
Place = tuple[int, int]
"""Replica and stage; of replicas that take passes together, the first one."""


class Users:
    """Who may be on which link.

    Parameters
    ----------
    setting : Setting
    route : callable
        Two ranks → the links from one to the other.
    """

    def __init__(self, setting: Setting, route: Callable[[int, int], tuple[int, ...]]) -> None:
        self.setting, self.route = setting, route
        self.links = Links(setting.topology, setting.collectives)
        self._alone: dict[Place, bool] = {}

    def meets(self, who: User, route: tuple[int, ...]) -> int:
        """Return what may be under way together with a transfer on a link of its route."""
        others = (other[0] for link in route for other in self.by_link.get(link, ()) if not _in_turn(who, other))
        return max((MOVES if kind in (HAND_OVER, SWAP) else ANYTHING for kind in others), default=NOTHING_ELSE)

    def alone(self, replica: int, stage: int) -> bool:
        """Return whether nothing may be on a link of a stage's collectives with one of them, not even another one."""
        if (replica, stage) not in self._alone:
            mine = {link for links in self.groups.get((replica, stage), {}).values() for link in links}
            met = any(self.by_link[link] - {(COLLECTIVES, replica, stage)} for link in mine)
            self._alone[replica, stage] = not met and not self.own.get((replica, stage))
        return self._alone[replica, stage]

    @cached_property
    def groups(self) -> dict[Place, dict[tuple[int, ...], frozenset[int]]]:
        """Replica and stage → the groups of devices of its collectives, and the links that each of them may use."""
        setting, found = self.setting, {}
        for pool in setting.pools:
            for replica in pool.replicas[:1] if pool.plan.is_lockstep else pool.replicas:  # whose passes are of all
                for stage in range(pool.plan.pp):
                    links: dict[tuple[int, ...], frozenset[int]] = {}
                    for op, devices in setting.collectives_of(pool, replica, stage):
                        used = frozenset(link for loads in self.links.loads(op, devices) for link in loads)
                        links[devices] = links.get(devices, frozenset()) | used
                    found[replica, stage] = links
        return found

    @cached_property
    def own(self) -> dict[Place, frozenset[int]]:
        """Replica and stage → links of two of its groups that have no rank in common."""
        found = {}
        for place, links in self.groups.items():
            shared: set[int] = set()
            for one, other in combinations(links, 2):
                if set(one).isdisjoint(other):
                    shared |= links[one] & links[other]
            if shared:
                found[place] = frozenset(shared)
        return found

    @cached_property
    def contended(self) -> dict[int, set[User]]:
        """Links on which two may be at a time → who."""
        own = {link for links in self.own.values() for link in links}
        return {
            link: users for link, users in self.by_link.items() if link in own or (len(users) > 1 and not _queue(users))
        }

    @cached_property
    def by_link(self) -> dict[int, set[User]]:
        """Link → what may be on it."""
        found: dict[int, set[User]] = {}
        for who, links in self._uses():
            for link in links:
                found.setdefault(link, set()).add(who)
        return found

    def _uses(self) -> Iterator[tuple[User, Iterable[int]]]:
        """Yield who may be on which links."""
        for place, links in self.groups.items():
            yield (COLLECTIVES, *place), frozenset().union(*links.values())
        for pool in self.setting.pools:
            for replica in pool.replicas:
                for stage in range(pool.plan.pp):
                    yield from self._of_ranks(pool, pool.rank(replica, stage), last=stage + 1 == pool.plan.pp)
        for pair in self._hand_overs():
            yield (HAND_OVER, *pair), self.route(*pair)

    def _of_ranks(self, pool: Pool, first: int, *, last: bool) -> Iterator[tuple[User, Iterable[int]]]:
        """Yield what the ranks of a stage send on, and copy to their hosts and back."""
        many = pool.plan.stage_ranks
        for rank in range(first, first + many):
            if not last:
                yield (SEND, rank, rank + many), self.route(rank, rank + many)
            for pair in ((rank, HOST), (HOST, rank)) if pool.swaps else ():
                yield (SWAP, *pair), self.route(*pair)

    def _hand_overs(self) -> Iterator[Pair]:
        """Yield the ranks between which K/V may be handed over."""
        if len(self.setting.pools) < 2:
            return
        source, target = self.setting.pools
        for shard in self.setting.shards:
            reached = ranks(target, *shard.target)
            for rank in ranks(source, *shard.source):
                yield from ((rank, end) for end in reached)


def _in_turn(who: User, other: User) -> bool:
    """Return whether of two transfers one waits for the other: a rank hands over, and receives, one at a time."""
    if who == other:
        return True
    return who[0] == other[0] == HAND_OVER and (who[1] == other[1] or who[2] == other[2])


def _queue(users: set[User]) -> bool:
    """Return whether each of some transfers waits for every other one."""
    kinds, sources, targets = (set(one) for one in zip(*users, strict=True))
    return kinds == {HAND_OVER} and (len(sources) == 1 or len(targets) == 1)
