"""From the ``serving`` of a scenario to a serving configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clustersim.clock import to_ns
from clustersim.cost.engine import Engine
from clustersim.cost.unsaid import SCHEDULERS, VALUES, Place
from clustersim.errors import InputError, Problem
from clustersim.inputs import resolved
from clustersim.scenario.document import Document, dotted
from clustersim.scenario.lookup import find_file
from clustersim.scenario.schema import POOLS, OrderPart, PoolServingPart, ServingPart
from clustersim.serving.config import PrefixRouting, ServingConfig
from clustersim.serving.order import DEFAULT_PATIENCE_NS, UNLIMITED, Order
from clustersim.serving.user_class import UserClass

_PLAIN: Final = {key: getattr(ServingConfig(), key) for key in VALUES}
"""What is taken where neither a scenario nor its engine says it."""
METHODS: Final = {"scheduler": "decide", "router": "route"}
"""Key of a scenario that may name a user's class → the method that the class must have."""
DEFAULT_HOST_KV_BYTES: Final = 4.0 * 2**30
"""Per device: vLLM 0.6's ``--swap-space`` (engine/arg_utils.py; general knowledge, not re-fetched)."""


def as_the_engine_decides(part: ServingPart, engine: Engine, places: Mapping[str, Place]) -> ServingPart:
    """Return ``serving`` with everything said that an engine decides.

    Parameters
    ----------
    part : ServingPart
    engine : Engine
    places : Mapping from str to Place
        Where ranks are, by the name of their pool; that of the only one is empty.
    """
    update: dict[str, Any] = {}
    for name, place in places.items():
        pool = (getattr(part, name) or PoolServingPart()) if name else part
        said = {key: getattr(part, key) for key in VALUES}
        said |= {"scheduler": None} | {key: of for key in VALUES if (of := getattr(pool, key, None)) is not None}
        found = {key: of for key, of in (_PLAIN | engine.decides(said, place)).items() if said[key] is None}
        if name or (said["scheduler"] or found["scheduler"]) not in SCHEDULERS:  # which keep no room for what runs
            found["preemption"] = said["preemption"] or _PLAIN["preemption"]
        own = {key: found.pop(key) for key in tuple(found) if name and hasattr(pool, key)}
        update = found | update | ({name: pool.model_copy(update=own)} if name else {})
    if part.context_window == "model":
        window = next(iter(places.values())).positions
        update["context_window"] = "unlimited" if window is None else window
    return part.model_copy(update=update)


def build_serving(part: ServingPart, document: Document, *, allow_code: bool = False) -> ServingConfig:
    """Return the serving configuration; a user's file must exist and have the class that is named.

    With ``allow_code`` the file is run to find it, else its text is looked at.

    Raises
    ------
    InputError
        With every problem, placed in the scenario or in the user's file.
    """
    problems: list[Problem] = []
    chosen: dict[str, Any] = {}
    ways = part.router_options if part.router == "prefix_aware" else {}
    for key in METHODS:
        try:
            chosen[key] = _named(
                key, getattr(part, key) or _PLAIN[key], getattr(part, f"{key}_options"), document, allow_code
            )
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    ends = (f"{key}{end}" for key in METHODS for end in ("", "_options"))
    elsewhere = {"engine", "order", "host_kv", *POOLS, "transfer", "queue_timeout", "context_window", *ends}
    plain = {key: of for key, of in part.model_dump(exclude=elsewhere).items() if of is not None}
    timeout = None if part.queue_timeout is None else to_ns(part.queue_timeout)
    host = DEFAULT_HOST_KV_BYTES if part.host_kv is None and part.preemption == "swap" else part.host_kv
    routing = PrefixRouting(**ways)
    return ServingConfig(
        **chosen, order=_order(part.order), prefix_routing=routing, queue_timeout_ns=timeout, host_kv_bytes=host,
        transfer=part.transfer or "whole",
        context_window=part.context_window if isinstance(part.context_window, int) else None, **plain,
    )  # fmt: skip


def build_pool_serving(part: ServingPart, name: str, document: Document, *, allow_code: bool = False) -> ServingConfig:
    """Return the serving configuration of a pool: its own keys, where it is one of two, else those of ``serving``.

    Prefixes are cached where prompts are computed: a decode pool computes only what it has preempted.
    """
    if not name:
        return build_serving(part, document, allow_code=allow_code)
    pool: PoolServingPart | None = getattr(part, name)
    own = {} if pool is None else {key: getattr(pool, key) for key in pool.model_fields_set}
    own = {"scheduler": None} | {key: value for key, value in own.items() if value is not None}
    if name == "decode":
        own["prefix_caching"] = False
    return build_serving(part.model_copy(update=own), document, allow_code=allow_code)


def _order(part: OrderPart) -> Order:
    if part.patience == "unlimited":
        return Order(by=part.by, patience_ns=UNLIMITED)
    given = DEFAULT_PATIENCE_NS[part.by] if part.patience is None else to_ns(part.patience)
    return Order(by=part.by, patience_ns=given)


def _named(key: str, text: str, options: dict[str, Any], document: Document, allowed: bool) -> str | UserClass:
    """Return a name that ships, or the class of a file."""
    if ":" not in text:
        return text
    path = user_file(document, key, text)
    name = text.rpartition(":")[2]
    user = UserClass(path=str(path), name=name, method=METHODS[key], options=options, allowed=allowed)
    user.made() if allowed else user.seen()
    return user


def user_file(document: Document, key: str, text: str) -> Path:
    """Return the absolute path of the file in ``my_file.py:MyClass``."""
    place = ("serving", key)
    found = find_file(
        text.rpartition(":")[0],
        kind=key,
        mark=document.mark(place),
        path=dotted(place),
        base=Path(document.file).parent,
    )
    return resolved(found)
