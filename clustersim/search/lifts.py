"""The limits of a scenario that can be lifted one at a time, each as changes of its values.

A limit is lifted where the scenario says it, as ``--set`` would; what devices and links are is changed in the topology
written out. All else stays as it was resolved: an engine's defaults depend on the memory of a device.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from clustersim.scenario.scenario import Scenario
from clustersim.units import plural
from clustersim.values import dataclass

MANY: Final = 1000
"""So many times the bandwidth is as good as a free network."""
ROOMY: Final = 16
"""So many times the memory of a device."""
MEANT: Final = {
    "batch": ("batch_wait",),
    "tokens": ("budget_wait", "interference"),
    "memory": ("blocks_wait", "preempted"),
    "network": ("communication", "transfer"),
    "bandwidth": ("communication", "transfer"),
    "host": ("host", "front_end"),
    "replicas": ("batch_wait", "blocks_wait", "step_wait"),
}
"""Limit → the causes of a latency that are gone, or less, without it."""
NAMES: Final = ("faults", *MEANT)
"""What ``--only`` takes."""
_RESOLVED: Final = ("scheduler", "max_batch_requests", "max_batch_tokens", "prefix_caching", "memory_utilization")
_HOST: Final = ("schedule", "schedule_per_request", "sample", "sample_per_request", "stage", "front_end")
"""Times of an engine's profile that its host takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """A limit that is lifted.

    Parameters
    ----------
    limit : str
        What is lifted, in words.
    key : str
        The key of a scenario that decides about it.
    changes : tuple of str
        ``PATH=VALUE`` each; empty where it can't be lifted.
    why_not : str
        Why it can't; empty where it can.
    name : str
        Of ``NAMES``; empty of what never can be lifted.
    """

    limit: str
    key: str
    changes: tuple[str, ...] = ()
    why_not: str = ""
    name: str = ""


def lifts_of(scenario: Scenario, requests: int) -> list[Lift]:
    """Return every limit of a scenario of so many requests."""
    return [
        *_budgets(scenario, requests),
        _blocks(scenario),
        _network(scenario, MANY, "a free network", "network"),
        _network(scenario, 2, "twice the bandwidth of every link", "bandwidth"),
        _host(scenario),
        _faults(scenario),
        *_replicas(scenario),
        Lift(
            limit="no prompts of other requests in a step",
            key="serving.scheduler",
            why_not="no value takes them out of the steps of one pool; two pools do (serving.scheduler: disaggregated)",
        ),
    ]


def pools_of(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """Return where ``serving`` and ``plan`` of each pool are said below their section."""
    return [(f"{one.pools[0].name}." if scenario.hands_over else "", one) for one in scenario.each_pool()]


def _budgets(scenario: Scenario, requests: int) -> Iterator[Lift]:
    places, tokens = [], []
    for at, one in pools_of(scenario):
        places.append(f"serving.{at}max_batch_requests={max(requests, one.serving.max_batch_requests)}")
        tokens.append(f"serving.{at}max_batch_tokens={2 * one.serving.max_batch_tokens}")
    yield Lift(limit="no cap on the batch", key=_key(places), changes=tuple(places), name="batch")
    yield Lift(limit="twice the token budget", key=_key(tokens), changes=tuple(tokens), name="tokens")


def _key(changes: list[str]) -> str:
    return " and ".join(one.partition("=")[0] for one in changes)


def _blocks(scenario: Scenario) -> Lift:
    """Give devices more memory; K/V blocks that are said are left to that."""
    changes, said = [roomy_topology(scenario), *as_resolved(scenario)], []
    for at, one in pools_of(scenario):
        if one.serving.kv_blocks is not None:
            changes.append(f"serving.{at}kv_blocks={ROOMY * one.serving.kv_blocks}")
            said.append(f"serving.{at}kv_blocks")
    key = " and ".join(said) or "serving.memory_utilization"
    return Lift(limit=f"{ROOMY} times the K/V memory", key=key, changes=tuple(changes), name="memory")


def roomy_topology(scenario: Scenario) -> str:
    """Return the change by which devices have ``ROOMY`` times the memory."""
    return f"topology={json.dumps(_changed(scenario.portable['topology'], _roomy))}"


def _network(scenario: Scenario, times: int, words: str, name: str) -> Lift:
    topology = _changed(scenario.portable["topology"], lambda key, value: _faster(key, value, times))
    changes = (f"topology={json.dumps(topology)}", *as_resolved(scenario))
    return Lift(limit=words, key="topology", changes=changes, name=name)


def as_resolved(scenario: Scenario) -> Iterator[str]:
    """Yield the changes that keep what the engine decided by its devices when these change."""
    serving = scenario.portable["serving"]
    for at, _ in pools_of(scenario):
        own = serving[at[:-1]] if at else serving
        for key in _RESOLVED:
            if isinstance(own.get(key), (str, int, float)):
                yield f"serving.{at}{key}={json.dumps(own[key])}"


def _host(scenario: Scenario) -> Lift:
    engine = dict(scenario.portable["serving"]["engine"])
    timed = {key: "0 s" for key in _HOST if key in engine}
    changes = (f"serving.engine={json.dumps(engine | timed)}",)
    return Lift(limit="no host time", key="serving.engine", changes=changes, name="host")


def _faults(scenario: Scenario) -> Lift:
    if not scenario.faults:
        return Lift(limit="no faults", key="faults", why_not="nothing fails", name="faults")
    return Lift(limit="no faults", key="faults", changes=("faults=[]",), name="faults")


def _replicas(scenario: Scenario) -> Iterator[Lift]:
    for at, one in pools_of(scenario):
        words = f"one more {at[:-1]} replica".replace("  ", " ")
        used = sum(pool.plan.world for _, pool in pools_of(scenario)) + one.plan.world // one.plan.dp
        changes = [f"plan.{at}dp={one.plan.dp + 1}"]
        here, nodes = len(scenario.topology.devices), scenario.portable["topology"].get("nodes")
        if used > here and not nodes:
            why = f"the topology has {here} devices, and {used} are needed; it has no nodes to add"
            yield Lift(limit=words, key=f"plan.{at}dp", why_not=why, name="replicas")
            continue
        if used > here:
            grown = math.ceil(used / (here // nodes))
            changes.append(f"topology.nodes={grown}")
            words += f" on {plural(grown - nodes, 'more node')}"
        yield Lift(limit=words, key=f"plan.{at}dp", changes=tuple(changes), name="replicas")


def _changed(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return plain data with some of its values changed by their dotted key."""
    if isinstance(value, dict):
        return {name: _changed(inside, change, f"{key}.{name}") for name, inside in value.items()}
    if isinstance(value, list):
        return [_changed(inside, change, key) for inside in value]
    return change(key, value)


def _faster(key: str, value: Any, times: int) -> Any:
    """Return a bandwidth of links so many times as large; what devices have is no link's."""
    link = key.endswith("bandwidth") and ".memory." not in key
    return _times(value, times) if link and isinstance(value, str) else value


def _roomy(key: str, value: Any) -> Any:
    memory = key.endswith((".memory.capacity", ".memory.usable"))
    return _times(value, ROOMY) if memory and isinstance(value, str) else value


def _times(text: str, times: int) -> str:
    found = re.fullmatch(r"([0-9.eE+-]+)(\s*\D.*)", text)
    return text if found is None else f"{float(found[1]) * times!r}{found[2]}"
