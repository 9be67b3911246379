"""Links that transfers share max-min fairly, in whole numbers.

A *path* is the links that one transfer at a time may take: a send, a collective as a whole, a copy. Alone, a transfer
takes what it costs. Where several meet, each link offers its transfers equal shares of its bytes, and each takes the
least of its offers. A link of which all take the offer is full: they keep these, and other links offer again what is
left. For transfers that load all their links alike this is max-min fairness (Bertsekas & Gallager, Data Networks, 1992,
section 6.5.2). A collective may load links unequally, and runs at one rate. If no link is full then, all take as much
more as the fullest link allows (bottleneck fairness of parallel tasks: Bonald & Roberts, SIGMETRICS 2015).

Everything is a whole number of parts, 2³⁰ to one. Rates are parts of the full speed of a path, offers of what a link
carries, and what is left of the nanoseconds that it takes at full speed. So an update is exact whenever it is made,
sums do not depend on their order, and only paths whose rate changes are touched. Rates are rounded down, ends to the
nearest nanosecond; no product is above 2⁶². It does not model packets, windows or start-up.

Who uses it
-----------
Functions take ``n`` (:class:`Flows`, or ``core.passes.Network``) and ``f``, the number of a path. They know no events::

    enter(n, f, now, ns)   a transfer begins on f, which must be free; alone it takes ns > 0 and ends at path.due
    leave(n, f)            it has ended, or is cancelled
    share(n, now)          once at the end of an instant at which any came or went; then the first
                           n.traffic[0].changed of n.paths[…].changed end at another instant, path.due

Nothing depends on the order of those calls at one instant, and ``share`` may be called again at the same one.
``core.transfers`` has transfers as events of the core: ``transfer(s, n, f, wait, ns)`` begins one after ``wait`` ns
that use no link, and ``cancel(n, f)`` stops it. ``core.stages.go_on_transfer`` is called when it gets on its links, and
when it ends. It knows whose the path is (``path.owner``, ``path.number``), and ``core.passes.tell`` tells passes there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record
from clustersim.core.state import NEVER

BITS: Final = 30
WHOLE: Final = 1 << BITS
NOBODY: Final = -1
TIE: Final = 20
"""Offers that differ by one in 2²⁰ are the same: what is rounded must not decide who is satisfied first."""
LONG: Final = 32
"""Nanoseconds of so many bits are counted in all parts; longer transfers in fewer."""


class Traffic(Record):
    """How many transfers are present, how many paths are touched and have changed, and how many links were crossed.

    ``seen`` tells components apart.
    """

    __slots__ = ("changed", "crossed", "present", "seen", "touched")


class Path(Record):
    """Places [``first``, ``end``), and the transfer that ``is_on`` them.

    ``left`` counted at ``since``; it loses ``rate`` each nanosecond, of ``WHOLE >> scale`` at full speed. It is ``due``
    then. ``version`` is another one whenever that changes. ``owner`` and ``number`` are whatever who made it needs.
    The last three are no fields of this path, but columns of lists of paths: touched, changed, and of a component.
    """

    __slots__ = (
        "changed",
        "connected",
        "due",
        "end",
        "first",
        "is_on",
        "is_touched",
        "left",
        "number",
        "offer",
        "owner",
        "rate",
        "scale",
        "seen",
        "since",
        "touched",
        "version",
    )  # fmt: skip


class Link(Record):
    """A directed link: what it carries now (``WHOLE``, but where it is weak), and the first place of those on it.

    ``watcher`` is whom it concerns that a send is on the link, −1: nobody.
    The others are of the component being solved: ``open`` paths share what is ``left``, and have ``taken`` so much.
    ``crossed`` is no field of this link, but a column: the list of links of that component.
    """

    __slots__ = (
        "capacity", "crossed", "first", "is_full", "left", "offer", "open", "seen", "taken", "users", "watcher",
    )  # fmt: skip


class Place(Record):
    """A link of a path, what of it a transfer takes at full speed, and who is on the same link after and before it."""

    __slots__ = ("after", "before", "link", "path", "weight")


class Flows(NamedTuple):
    """All paths, and what is on their links (``core.passes.Network`` has these fields as well)."""

    traffic: Any
    paths: Any
    links: Any
    places: Any


def touch_path(n: Any, f: int) -> None:
    """Let a path's links be shared again."""
    traffic = n.traffic[0]
    if n.paths[f].is_touched == 0:
        n.paths[f].is_touched = 1
        n.paths[traffic.touched].touched = f
        traffic.touched += 1


def enter(n: Any, f: int, since: int, ns: int) -> None:
    """Let a transfer begin that takes so long alone; it may have been alone on its links since an earlier instant."""
    path, scale, meets = n.paths[f], 0, False
    while ns >> scale >> LONG > 0 and scale < BITS:
        scale += 1
    path.scale, path.left, path.rate, path.since = scale, ns * (WHOLE >> scale), WHOLE >> scale, since
    path.due = since + ns if ns < NEVER - since else NEVER
    path.is_on = 1
    n.traffic[0].present += 1
    for at in range(path.first, path.end):
        place = n.places[at]
        link = n.links[place.link]
        place.before, place.after = NOBODY, link.first
        if link.first >= 0:
            n.places[link.first].before = at
            meets = True
        link.first = at
        link.users += 1
    if meets:
        touch_path(n, f)


def leave(n: Any, f: int) -> None:
    """Take a transfer off its links."""
    path = n.paths[f]
    path.is_on = 0
    path.version += 1
    n.traffic[0].present -= 1
    for at in range(path.first, path.end):
        place = n.places[at]
        link = n.links[place.link]
        if place.after >= 0:
            n.places[place.after].before = place.before
        if place.before >= 0:
            n.places[place.before].after = place.after
        else:
            link.first = place.after
        link.users -= 1
        touch_link(n, place.link)


def touch_link(n: Any, l: int) -> None:  # noqa: E741
    """Let a link be shared again."""
    at = n.links[l].first
    while at >= 0:
        touch_path(n, n.places[at].path)
        at = n.places[at].after


def share(n: Any, now: int) -> None:
    """Share links again, where that is to be done, and say which transfers end at another instant."""
    traffic = n.traffic[0]
    traffic.changed = 0
    first = traffic.seen + 1
    for at in range(traffic.touched):
        f = n.paths[at].touched
        n.paths[f].is_touched = 0
        if n.paths[f].is_on and n.paths[f].seen < first:
            traffic.seen += 1
            share_component(n, f, now)
    traffic.touched = 0


def find_component(n: Any, f: int) -> int:
    """Find who shares links with a path, directly or through others; return how many they are."""
    seen, count, links, done = n.traffic[0].seen, 1, 0, 0
    n.paths[0].connected = f
    n.paths[f].seen = seen
    while done < count:
        path = n.paths[n.paths[done].connected]
        done += 1
        for at in range(path.first, path.end):
            link = n.links[n.places[at].link]
            if link.seen == seen:
                continue
            link.seen = seen
            link.left, link.open = link.capacity, link.users
            n.links[links].crossed = n.places[at].link
            links += 1
            other = link.first
            while other >= 0:
                one = n.places[other].path
                if n.paths[one].seen != seen:
                    n.paths[one].seen = seen
                    n.paths[count].connected = one
                    count += 1
                other = n.places[other].after
    n.traffic[0].crossed = links
    return count


def share_component(n: Any, f: int, now: int) -> None:
    """Share the links of all that are connected with a path."""
    count = find_component(n, f)
    if count == 1:  # what a transfer takes alone is settled, whatever has become of its links since
        set_rate(n, f, WHOLE, now)
        return
    while count > 0:
        times, part = offer_shares(n, count)
        kept = 0
        for number in range(count):
            one = n.paths[number].connected
            path = n.paths[one]
            closes = path.offer == WHOLE
            for at in range(path.first, path.end):
                closes = closes or n.links[n.places[at].link].is_full > 0
            if closes:
                rate = max(1, min(WHOLE, path.offer * times // part))
                set_rate(n, one, rate, now)
                for at in range(path.first, path.end):
                    link = n.links[n.places[at].link]
                    link.left = max(0, link.left - part_of(rate, n.places[at].weight))
                    link.open -= 1
            else:
                n.paths[kept].connected = one
                kept += 1
        count = kept


def part_of(rate: int, weight: int) -> int:
    """Return what a transfer takes of a link, rounded up."""
    return (rate * weight + WHOLE - 1) >> BITS


def offer_shares(n: Any, count: int) -> tuple[int, int]:
    """Let links offer what they have left, and say which are full; return by which fraction offers are to be raised."""
    links, some_close = n.traffic[0].crossed, False
    for number in range(links):
        link = n.links[n.links[number].crossed]
        link.offer, link.taken, link.is_full = link.left // max(link.open, 1), 0, 1 if link.open > 0 else 0
    for number in range(count):
        path, offer = n.paths[n.paths[number].connected], WHOLE
        for at in range(path.first, path.end):
            offer = min(offer, (n.links[n.places[at].link].offer << BITS) // n.places[at].weight)
        path.offer = offer
        some_close = some_close or offer == WHOLE
        for at in range(path.first, path.end):
            link, weight = n.links[n.places[at].link], n.places[at].weight
            link.taken += part_of(offer, weight)
            if max(link.offer - 2, 0) << BITS >= (offer + (offer >> TIE) + 1) * weight:  # it offers more
                link.is_full = 0
    for number in range(links):
        some_close = some_close or n.links[n.links[number].crossed].is_full > 0
    return (1, 1) if some_close else fullest(n, links)


def fullest(n: Any, links: int) -> tuple[int, int]:
    """Let those links be full of which most is taken; return by which fraction it can be more."""
    times, part = WHOLE, 0
    for number in range(links):
        link = n.links[n.links[number].crossed]
        if link.open > 0 and link.left * part < times * link.taken:
            times, part = link.left, link.taken
    for number in range(links):
        link = n.links[n.links[number].crossed]
        if link.open > 0 and link.left * part <= times * link.taken + (times * link.taken >> TIE):
            link.is_full = 1
    return times, part


def set_rate(n: Any, f: int, rate: int, now: int) -> None:
    """Let a transfer go on at a rate."""
    path = n.paths[f]
    rate = max(1, rate >> path.scale)
    if rate == path.rate:
        return
    path.left = max(0, path.left - path.rate * (now - path.since))
    path.rate, path.since = rate, now
    whole = path.left // rate
    rest = path.left - whole * rate
    whole = max(1, whole + 1 if rest >= rate - rest else whole)
    path.due = now + whole if whole < NEVER - now else NEVER
    path.version += 1
    n.paths[n.traffic[0].changed].changed = f
    n.traffic[0].changed += 1
