"""Which algorithms a collective has, which of them fit a group, and the plans of those.

``auto`` means those that serving systems have: NCCL's rings, trees, direct sends, NVLink SHARP and two-level
algorithms, and the custom all-reduces of vLLM, SGLang and TensorRT-LLM. The others are there by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clustersim.cluster.topology import Topology
from clustersim.collective.constants import Family, family
from clustersim.collective.exchange import exchange_traffic
from clustersim.collective.group import Group, group_of
from clustersim.collective.hierarchical import two_level, two_level_all_to_all
from clustersim.collective.pairs import (
    broadcast_direct,
    direct,
    gather,
    one_shot,
    pairwise,
    ring_shift,
    send,
    two_shot,
)
from clustersim.collective.price import CommPlan, price
from clustersim.collective.ring import broadcast_ring, ring
from clustersim.collective.switch import broadcast_in_switch, in_switch, shares_switch
from clustersim.collective.torus import bucket
from clustersim.collective.traffic import Traffic
from clustersim.collective.tree import double_tree, halving
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

Why = str
"""Why an algorithm does not fit a group; empty when it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One way to do a collective.

    Parameters
    ----------
    build : callable
        The traffic on a group that it fits.
    constants : str
        Family of its constants.
    refuses : callable
        Why it does not fit a group; empty when it does.
    auto : callable
        Whether ``auto`` may choose it, where it fits.
    """

    build: Callable[[Group], Traffic]
    constants: str
    refuses: Callable[[Group], Why] = lambda group: ""
    auto: Callable[[Group], bool] = lambda group: True


Kind = str | Exchange
"""A key of :data:`ALGORITHMS`, or an exchange between experts, which has one algorithm."""


def plan_collective(
    topology: Topology, kind: Kind, group: tuple[int, ...], algorithm: str = "auto"
) -> tuple[CommPlan, ...]:
    """Return the plans of a collective on a group: the candidates of ``auto``, or the one that is named.

    Parameters
    ----------
    topology : Topology
        Where the devices are.
    kind : str or Exchange
        A key of :data:`ALGORITHMS`; or DeepEP's way of an all-to-all between experts.
    group : tuple of int
        Device indices in rank order; the first is the root of ``broadcast`` and the owner of ``gather``, and
        ``send`` has (source, target).
    algorithm : str
        ``auto`` or an algorithm of that kind. :func:`~clustersim.collective.price.choose` picks by cost.

    Raises
    ------
    InputError
        On an unknown kind or algorithm, one that does not fit the group, or a group with wrong members.
    """
    name = kind if isinstance(kind, str) else "all_to_all"
    _check(topology, name, group)
    topology = topology.seen_from(group[0])
    members = group_of(topology, tuple(int(member) for member in group))
    if len(group) == 1:
        return (price(members, name, "none", Traffic(), Family()),)
    if not isinstance(kind, str):
        constant = family(topology.device, kind.family)
        return (price(members, name, kind.way, exchange_traffic(members, kind), constant),)
    known = ALGORITHMS[kind]
    if algorithm == "auto":
        names = [name for name, one in known.items() if not one.refuses(members) and one.auto(members)]
    else:
        _check_algorithm(known, kind, algorithm, members)
        names = [algorithm]
    constants = [family(topology.device, known[name].constants, len(group)) for name in names]
    return tuple(
        price(members, kind, name, known[name].build(members), of_name)
        for name, of_name in zip(names, constants, strict=True)
        if algorithm != "auto" or of_name.max_payload_bytes > 0.0
    )


def _check(topology: Topology, kind: str, group: tuple[int, ...]) -> None:
    problems = []
    if kind not in ALGORITHMS:
        problems.append(f"unknown collective {kind!r}{did_you_mean(kind, list(ALGORITHMS))}")
    if not group:
        problems.append("a collective needs a group of one device or more")
    if len(set(group)) < len(group):
        problems.append(f"the group {group} names a device twice")
    if kind == "send" and len(group) != 2:
        problems.append(f"send has one source and one target, but the group is {group}")
    outside = [device for device in group if not 0 <= device < len(topology.devices)]
    if outside:
        problems.append(f"{topology.name} has devices 0 to {len(topology.devices) - 1}, but not {outside}")
    if problems:
        raise InputError([Problem(message=message) for message in problems])


def _check_algorithm(known: Mapping[str, Algorithm], kind: str, name: str, members: Group) -> None:
    valid = [choice for choice, one in known.items() if not one.refuses(members)]
    if name not in known:
        hint = did_you_mean(name, ["auto", *known])
        raise InputError(Problem(path=f"collectives.{kind}", message=f"unknown algorithm {name!r} for {kind}{hint}"))
    why = known[name].refuses(members)
    if why:
        choices = ", ".join(["auto", *valid])
        message = f"algorithm {name!r} for {kind} over {len(members.given)} devices {why}; use one of {choices}"
        raise InputError(Problem(path=f"collectives.{kind}", message=message))


def _needs_shared_memory(group: Group) -> Why:
    if not group.is_one_domain:
        return "spans several scale-up domains"
    return "runs on a network without direct reads" if "ici" in group.tiers() else ""


def _is_custom_default(group: Group) -> bool:
    """vLLM and SGLang refuse more than two devices on PCIe (``custom_all_reduce.py``)."""
    return len(group.ranked) == 2 or "pcie" not in group.tiers()


def _is_two_shot_default(group: Group) -> bool:
    """Of two devices one shot moves as much with one barrier less: neither vLLM nor TensorRT-LLM takes two there."""
    return len(group.ranked) > 2 and "pcie" not in group.tiers()


def _needs_rails(group: Group) -> Why:
    if len(group.domains) < 2 or len(group.domains[0]) < 2:
        return "needs two scale-up domains or more with two members or more each"
    return "" if group.is_even else "needs equally many members in each scale-up domain"


def _needs_switch(group: Group) -> Why:
    return "" if shares_switch(group) else "needs one scale-up switch that reduces (NVLink SHARP)"


def _needs_power_of_two(group: Group) -> Why:
    count = len(group.ranked)
    return "" if count & (count - 1) == 0 else "needs a power of two"


def _needs_box(group: Group) -> Why:
    if not group.is_one_domain or group.tiers() != ["ici"]:
        return "needs devices in a torus"
    return "" if group.grid() else "needs a box of two axes or more in a torus"


def _spans_domains(group: Group) -> bool:
    """Inside one domain NCCL's tree is a chain, which takes as many steps as a ring."""
    return not group.is_one_domain


def _never(group: Group) -> bool:
    return False


def _on_box(group: Group, laps: int) -> Traffic:
    shape = group.grid()
    assert shape is not None
    return bucket(group, shape, laps)


def _shared(laps: int, up_down: Callable[[int], tuple[float, float]]) -> dict[str, Algorithm]:
    """The algorithms that all-reduce (two laps), all-gather and reduce-scatter (one) have in common."""
    return {
        "ring": Algorithm(build=lambda group: ring(group, laps), constants="ring"),
        "in_switch": Algorithm(
            build=lambda group: in_switch(group, *up_down(len(group.ranked))),
            constants="in_switch",
            refuses=_needs_switch,
        ),
        "hierarchical": Algorithm(build=lambda group: two_level(group, laps), constants="ring", refuses=_needs_rails),
        "torus": Algorithm(build=lambda group: _on_box(group, laps), constants="ring", refuses=_needs_box),
        "halving_doubling": Algorithm(
            build=lambda group: halving(group, laps),
            constants="ring",
            refuses=_needs_power_of_two,
            auto=_never,
        ),
    }


_DIRECT_SHARE = Algorithm(build=lambda group: direct(group, 1.0 / len(group.ranked)), constants="direct", auto=_never)

ALGORITHMS: Final[Mapping[str, Mapping[str, Algorithm]]] = {
    "all_reduce": {
        "one_shot": Algorithm(
            build=one_shot, constants="one_shot", refuses=_needs_shared_memory, auto=_is_custom_default
        ),
        "two_shot": Algorithm(
            build=two_shot, constants="two_shot", refuses=_needs_shared_memory, auto=_is_two_shot_default
        ),
        "tree": Algorithm(build=double_tree, constants="tree", auto=_spans_domains),
        **_shared(2, lambda count: (1.0 + 1.0 / count, 1.0 + 1.0 / count)),
    },
    "all_gather": {**_shared(1, lambda count: (1.0 / count, 1.0)), "direct": _DIRECT_SHARE},
    "reduce_scatter": {**_shared(1, lambda count: (1.0, 1.0 / count)), "direct": _DIRECT_SHARE},
    "all_to_all": {
        "direct": Algorithm(build=lambda group: direct(group, 1.0 / len(group.ranked)), constants="direct"),
        "hierarchical": Algorithm(build=two_level_all_to_all, constants="direct", refuses=_needs_rails),
        "pairwise": Algorithm(build=pairwise, constants="send", auto=_never),
    },
    "gather": {"direct": Algorithm(build=gather, constants="direct")},
    "broadcast": {
        "ring": Algorithm(build=broadcast_ring, constants="ring"),
        "in_switch": Algorithm(build=broadcast_in_switch, constants="in_switch", refuses=_needs_switch),
        "direct": Algorithm(build=broadcast_direct, constants="direct", auto=_never),
    },
    "send": {"direct": Algorithm(build=send, constants="send")},
    "ring_shift": {"direct": Algorithm(build=ring_shift, constants="send")},
}
"""Per kind, the algorithms by name."""
