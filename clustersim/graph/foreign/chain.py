"""A node that stands for several operators: the chain of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim.graph.vocabulary import kind_of

_LINK: Final = "\x1f"
"""Between the id of a module and the number of an operator in it."""


def chain_of(node: Mapping[str, Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a node for each operator that it is."""
    if len(names) <= 1:
        yield {**node, **({"name": names[0]} if names else {})}
        return
    kept = {key: node[key] for key in ("ranks", "layer", "stage") if key in node}
    for at, name in enumerate(names):
        yield {"id": f"{node.get('id')}{_LINK}{at}", "name": name, "op": kind_of(name), **kept}


def next_in(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the id of the next operator of the same module, if a node is in one."""
    identity = node.get("id")
    if not isinstance(identity, str) or _LINK not in identity:
        return ()
    head, _, at = identity.rpartition(_LINK)
    return (f"{head}{_LINK}{int(at) + 1}",) if at.isdecimal() else ()
