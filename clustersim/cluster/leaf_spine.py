"""The network between nodes: NICs on leaf switches, leaves on spines.

::

    spine0 … spine15            every leaf on every spine
      ╱│╲      ╱│╲              a unit: so many nodes with one leaf per rail
    leaf0 leaf1 … leaf7         NIC j of every node of unit u on leaf u × rails + (j mod rails)
      │     │       │
    nic0  nic1 …  nic7          rails = 1: all NICs of a rack of nodes on one leaf (a plain fat tree)

Traffic to another leaf takes the spine that the target's port on its leaf picks (D-mod-k, see ``routing``):
what comes down to a leaf's ports is spread evenly, so a non-blocking tree blocks only where sources of one
leaf pick targets whose port numbers are equal modulo the number of spines. Not modelled: a third tier,
adaptive routing.
"""

from __future__ import annotations

from typing import Final

from clustersim.cluster.reading import MOST_OVERSUBSCRIBED, Reader
from clustersim.values import dataclass

NETWORK_KEYS: Final = (
    "nics_per_node", "nic_bandwidth", "nic_latency", "fabric_latency", "nodes_per_unit", "nodes_per_leaf",
    "rails", "spines", "oversubscription",
)  # fmt: skip
"""A fabric that has any of these must have a whole network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpine:
    """A leaf and spine network; NIC ``n × nics_per_node + j`` is NIC j of node n.

    Parameters
    ----------
    nodes, nics_per_node, rails, nodes_per_unit, spines : int
        Counts; ``spines`` is 0 where there is only one leaf.
    nic_bandwidth, spine_bandwidth : float
        Bytes/s of a NIC's link to its leaf, and of a leaf's link to one spine, in each direction.
    nic_latency_s, fabric_latency_s : float
        Seconds of these links.
    """

    nodes: int
    nics_per_node: int
    rails: int
    nodes_per_unit: int
    spines: int
    nic_bandwidth: float
    spine_bandwidth: float
    nic_latency_s: float
    fabric_latency_s: float

    @property
    def num_leaves(self) -> int:
        """Number of leaves: one per rail and unit."""
        return -(-self.nodes // self.nodes_per_unit) * self.rails

    def leaf_of(self, nic: int) -> int:
        """Return the leaf on which a NIC is."""
        node, j = divmod(nic, self.nics_per_node)
        return node // self.nodes_per_unit * self.rails + j % self.rails

    def port_of(self, nic: int) -> int:
        """Return the number of a NIC's port on its leaf."""
        node, j = divmod(nic, self.nics_per_node)
        return node % self.nodes_per_unit * (self.nics_per_node // self.rails) + j // self.rails

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one NIC to another, numbered within the network.

        Links ``2 q`` and ``2 q + 1`` go up from and down to NIC q; after those, per leaf and spine, up and
        down.
        """
        up, down = 2 * source, 2 * target + 1
        here, there = self.leaf_of(source), self.leaf_of(target)
        if here == there:
            return up, down
        spine = self.port_of(target) % self.spines
        first = 2 * self.nodes * self.nics_per_node
        return (
            up,
            first + 2 * (here * self.spines + spine),
            first + 2 * (there * self.spines + spine) + 1,
            down,
        )

    def links(self, nic_names: list[str]) -> list[tuple[str, str, float, float, str]]:
        """Return (from, to, bytes/s, seconds, tier) of every link in the order of :meth:`path`."""
        found = []
        for nic, name in enumerate(nic_names):
            leaf = f"leaf{self.leaf_of(nic)}"
            found.append((name, leaf, self.nic_bandwidth, self.nic_latency_s, "nic"))
            found.append((leaf, name, self.nic_bandwidth, self.nic_latency_s, "nic"))
        for leaf_number in range(self.num_leaves):
            leaf = f"leaf{leaf_number}"
            for spine_number in range(self.spines):
                spine = f"spine{spine_number}"
                found.append((leaf, spine, self.spine_bandwidth, self.fabric_latency_s, "fabric"))
                found.append((spine, leaf, self.spine_bandwidth, self.fabric_latency_s, "fabric"))
        return found


def leaf_spine(
    fabric: Reader, *, nodes: int, nics_per_node: int, rails: int | None = None, unit: str = "nodes_per_unit"
) -> LeafSpine:
    """Read the network between nodes.

    Parameters
    ----------
    rails : int or None
        NICs of a node go to this many leaves in turn; None reads the key ``rails``, by default one per NIC.
    unit : str
        The key with the number of nodes that share leaves.
    """
    rails = fabric.count("rails", nics_per_node) if rails is None else rails
    if nics_per_node % rails:
        fabric.problem("rails", f"{rails} rails don't divide {nics_per_node} NICs per node")
        rails = 1
    nodes_per_unit = fabric.count(unit, 32)
    spines = fabric.count("spines", 16)
    oversubscription = fabric.number("oversubscription", 1.0, least=1.0, most=MOST_OVERSUBSCRIBED)
    nic_bandwidth = fabric.quantity("nic_bandwidth", "bandwidth")
    num_leaves = -(-nodes // nodes_per_unit) * rails
    leaf_bandwidth = nodes_per_unit * (nics_per_node // rails) * nic_bandwidth
    return LeafSpine(
        nodes=nodes,
        nics_per_node=nics_per_node,
        rails=rails,
        nodes_per_unit=nodes_per_unit,
        spines=spines if num_leaves > 1 else 0,
        nic_bandwidth=nic_bandwidth,
        spine_bandwidth=leaf_bandwidth / (spines * oversubscription),
        nic_latency_s=fabric.quantity("nic_latency", "time", zero=True),
        fabric_latency_s=fabric.quantity("fabric_latency", "time", zero=True),
    )
