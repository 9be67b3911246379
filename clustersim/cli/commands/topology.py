"""``clustersim topology``: the topologies that ship with clustersim, or one in detail."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from clustersim import catalog
from clustersim.cli.tables import print_facts, print_json, print_table
from clustersim.cluster.topology import Topology
from clustersim.scenario.parts import load_topology
from clustersim.units import format_bandwidth, format_bytes, format_seconds


@click.command()
@click.argument("name", required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a parameter: nodes=4.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def topology(name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List topologies, or show the one called NAME (or in the file NAME)."""
    if name is None:
        if overrides:
            raise click.UsageError("--set needs the NAME of a topology")
        _list([summary(load_topology(known)) for known in catalog.names("topologies")], as_json)
        return
    found = load_topology(name, overrides)
    facts = summary(found) | {"links": link_groups(found), "source": found.source}
    if as_json:
        print_json(facts)
        return
    print_facts(
        {
            "name": found.name,
            "devices": _devices(found),
            "nodes": str(facts["nodes"]),
            "memory": format_bytes(facts["memory_bytes"]),
            "memory rate": format_bandwidth(facts["memory_bytes_per_s"]),
            "peak": ", ".join(f"{dtype} {rate / 1e12:,.0f} TFLOP/s" for dtype, rate in facts["flops"].items()),
            "first to last": f"{found.devices[0]} → {found.devices[-1]}: {_transit(facts)}",
            "in switch": "reduces" if facts["in_switch_reduction"] else "does not reduce",
        }
    )
    columns = ("links", "from → to", "count", "capacity", "latency")
    rows = [
        (
            group["tier"],
            f"{group['from']} → {group['to']}",
            f"{group['count']:,}",
            format_bandwidth(group["bytes_per_s"]),
            format_seconds(group["latency_s"]),
        )
        for group in facts["links"]
    ]
    print_table(columns, rows, numbers_from=2)
    click.echo(click.wrap_text(f"source: {found.source}", width=100))


def _devices(topology: Topology) -> str:
    """Return how many devices of which kind there are."""
    names = topology.device_names()
    return ", ".join(f"{len(topology.of_kind(name))} × {name}" for name in names)


def summary(topology: Topology) -> dict[str, Any]:
    """Return the main figures of a topology: counts, bytes, bytes/s, seconds, FLOP/s."""
    device = topology.device
    latency_s, bytes_per_s = topology.transit(0, len(topology.devices) - 1)
    alone = len(topology.devices) == 1
    return {
        "name": topology.name,
        "devices": len(topology.devices),
        "nodes": int(np.unique(topology.node_of).size),
        "device": device.name,
        "device_kinds": {name: len(topology.of_kind(name)) for name in topology.device_names()},
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "flops": dict(device.flops),
        "in_switch_reduction": topology.in_switch_reduction,
        "first_last_latency_s": None if alone else latency_s,
        "first_last_bytes_per_s": None if alone else bytes_per_s,
    }


def link_groups(topology: Topology) -> list[dict[str, Any]]:
    """Return the directed links, grouped by tier, kinds of their ends, capacity and latency."""
    kind = dict(zip(topology.vertices, topology.vertex_kinds, strict=True))
    groups: dict[tuple[str, str, str, float, float], int] = {}
    for (tail, head), tier, capacity, latency_s in zip(
        topology.link_ends,
        topology.link_tier,
        topology.link_capacity.tolist(),
        topology.link_latency_s.tolist(),
        strict=True,
    ):
        key = (tier, kind[tail], kind[head], capacity, latency_s)
        groups[key] = groups.get(key, 0) + 1
    names = ("tier", "from", "to", "bytes_per_s", "latency_s")
    return [dict(zip(names, key, strict=True)) | {"count": count} for key, count in groups.items()]


def _transit(facts: dict[str, Any]) -> str:
    if facts["first_last_latency_s"] is None:
        return "there is one device"
    latency = format_seconds(facts["first_last_latency_s"])
    return f"{latency}, {format_bandwidth(facts['first_last_bytes_per_s'])}"


def _list(summaries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(summaries)
        return
    columns = ("topology", "device", "devices", "nodes", "memory", "bandwidth", "bf16 TFLOP/s")
    rows = [
        (
            facts["name"],
            facts["device"],
            f"{facts['devices']:,}",
            f"{facts['nodes']:,}",
            format_bytes(facts["memory_bytes"]),
            format_bandwidth(facts["memory_bytes_per_s"]),
            f"{facts['flops']['bf16'] / 1e12:,.0f}" if "bf16" in facts["flops"] else "–",
        )
        for facts in summaries
    ]
    print_table(columns, rows, numbers_from=2)
