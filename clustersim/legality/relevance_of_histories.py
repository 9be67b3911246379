"""Which rules of level T a history from outside must give something to look at, and which tables would do so.

Data: rule → when it is relevant, by what was declared and recorded, and what it reads. Rules that compare two runs
(TP-9, DP-4, RUN-5) are not asked of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.legality.history import STREAMS, Declared, History
from clustersim.legality.relevance import demanded
from clustersim.legality.rule import Level, LookedAt, Verdict
from clustersim.values import dataclass

Relevant = Callable[[History], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """When a rule is relevant; the tables that it reads, the columns of spans beside the needed ones, or what does."""

    when: Relevant
    tables: tuple[str, ...]
    columns: tuple[str, ...] = ()
    instead: str = ""


def _always(_: History) -> bool:
    return True


def _decodes(history: History) -> bool:
    """Some request gets a second token, as far as anybody says."""
    requests = history.requests
    return requests is None or bool((requests["output_tokens"] > 1).any())


def _decodes_on(history: History) -> bool:
    """Some request has one decode step after another, as far as anybody says."""
    requests = history.requests
    return requests is None or bool((requests["output_tokens"] > 2).any())


def _declared(test: Callable[[Declared], bool]) -> Relevant:
    """Return a test of what any pool declared, which holds as well where nobody knows which rank is where."""
    return lambda history: any(map(test, history.pools)) or not history.declared.mesh


_tp = _declared(lambda declared: declared.tp > 1)
_sp = _declared(lambda declared: declared.sp > 1)
_pp = _declared(lambda declared: declared.pp > 1)
_dp = _declared(lambda declared: declared.dp > 1)
_spread = _declared(lambda declared: declared.ep > 1)
_experts = _declared(lambda declared: declared.ep > 1 or declared.top_k is not None)


def _exchanged(history: History) -> bool:
    """Experts are spread, and tokens sent to them, as far as anybody says."""
    spans = history.spans
    if not _spread(history) or spans is None or not any(name for name, _, _ in spans.symbols):
        return _spread(history)
    own = np.array([name.startswith(("dispatch", "combine")) for name, _, _ in spans.symbols])[spans.columns["symbol"]]
    sent = (spans.columns["stream"] == STREAMS.index("comm")) | (spans.columns["group"] >= 0)
    return bool((own & sent).any())


def _pooled(history: History) -> bool:
    return (
        history.declared.pool_blocks is not None
        or history.declared.block_tokens is not None
        or history.held is not None
    )


def _sized(history: History) -> bool:
    declared = history.declared
    return _pooled(history) or declared.max_batch_tokens is not None or declared.max_batch_requests is not None


def _shared(history: History) -> bool:
    return history.declared.prefix_caching is True or history.held is not None


def _layered(history: History) -> bool:
    spans = history.spans
    return spans is not None and len(set(spans.columns["layer"].tolist()) - {-1}) > 1


_CARRIED: Final = ("requests", "steps", "chunks", "decodes")

HISTORY: Final[Mapping[str, Demand]] = {
    "PH-1": Demand(when=_always, tables=_CARRIED),
    "PH-2": Demand(when=_decodes, tables=_CARRIED),
    "PH-3": Demand(when=_decodes_on, tables=_CARRIED),
    "PH-4": Demand(when=_always, tables=_CARRIED),
    "KV-1": Demand(when=_always, tables=_CARRIED),
    "KV-2": Demand(
        when=_always, tables=(*_CARRIED, "spans"), columns=("name", "layer", "after"), instead="or give held"
    ),
    "KV-3": Demand(when=_decodes, tables=_CARRIED),
    "KV-5": Demand(when=_shared, tables=("held",)),
    "KV-6": Demand(when=_sized, tables=("held", "steps"), instead="declare pool_blocks, or max_batch_tokens"),
    "KV-7": Demand(when=_pooled, tables=("held", "facts")),
    "TP-5": Demand(when=_tp, tables=("spans",), columns=("name", "stream", "group")),
    "TP-6": Demand(when=_tp, tables=("spans",), columns=("name", "stream", "group", "after")),
    "TP-7": Demand(when=_tp, tables=("spans",), columns=("name", "stream", "group", "layer")),
    "SP-2": Demand(when=_sp, tables=("spans", *_CARRIED), columns=("name", "group", "layer", "after")),
    "SP-3": Demand(when=_sp, tables=("spans", *_CARRIED), columns=("name", "layer")),
    "SP-5": Demand(when=_sp, tables=("spans", *_CARRIED), columns=("name", "group", "layer", "after")),
    "SP-8": Demand(when=_sp, tables=("spans", *_CARRIED), columns=("name", "group", "layer", "after")),
    "PP-2": Demand(when=_pp, tables=("spans",), columns=("name", "step", "layer")),
    "PP-3": Demand(when=_pp, tables=("spans", *_CARRIED)),
    "PP-4": Demand(when=_pp, tables=_CARRIED),
    "PP-6": Demand(when=_layered, tables=("spans",), columns=("layer", "step")),
    "EP-2": Demand(when=_experts, tables=("routes",), instead="declare top_k"),
    "EP-3": Demand(when=_experts, tables=("routes",)),
    "EP-4": Demand(when=_experts, tables=("spans",), columns=("name", "group", "layer", "after")),
    "EP-5": Demand(when=_experts, tables=("spans",), columns=("name", "group", "layer", "after")),
    "EP-8": Demand(when=_exchanged, tables=("spans",), columns=("name", "group", "layer", "step")),
    "DP-2": Demand(when=_dp, tables=(*_CARRIED, "facts")),
    "DP-3": Demand(when=_dp, tables=("spans",), columns=("group", "after")),
    "RUN-2": Demand(when=_always, tables=("spans", "steps"), columns=("after", "cost_ns")),
    "RUN-3": Demand(when=_always, tables=("spans",)),
    "RUN-4": Demand(when=_always, tables=("facts", "requests")),
}
"""Rule of level T → when it is relevant, and what it reads."""


def demanded_of(history: History, verdict: Verdict) -> Verdict:
    """Return the verdict on a history from outside, legal only where each relevant rule looked at something."""
    relevant: list[tuple[str, Level]] = [(rule, "T") for rule, demand in HISTORY.items() if demand.when(history)]
    return demanded(verdict, relevant, lambda entry: tuple(_lacks(history, entry)) or entry.lacks)


def _lacks(history: History, entry: LookedAt) -> Iterator[str]:
    demand = HISTORY[entry.id]
    tables = [name for name in demand.tables if getattr(history, name) is None]
    spans = history.spans
    columns = [name for name in demand.columns if spans is not None and name not in spans.recorded]
    if tables:
        yield f"give {', '.join(tables)}"
    elif not history.declared.mesh:
        yield "declare tp, sp, pp and dp, which account for all ranks"
    if columns:
        yield f"record {_listed(columns)} of spans" + (f", {demand.instead}" if demand.instead else "")
    elif tables or not history.declared.mesh:
        return
    elif demand.columns:
        yield f"let {_listed(demand.columns)} of spans tell what it is about: clustersim rules {entry.id}"
    elif demand.instead or not entry.lacks:
        yield demand.instead or f"record what it is about: clustersim rules {entry.id}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
