"""What a replay recorded, folded, with one value changed: exactly the rule for it notices, or those listed with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from clustersim.graph.template import PassTemplate
from clustersim.legality.audit import check_history
from clustersim.legality.history import FACTS, History
from clustersim.simulation.audit import against, history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.notation import declaring
from tests.legality.timeline.test_replay_mutations import EXPERTS, PIPE, RING, document

Change = Callable[[History], History]
PLANS: dict[str, dict[str, Any]] = {
    "tensor": {"plan": {"tp": 2}},
    "stages": {"plan": PIPE},
    "ring": {"plan": RING},
    "experts": {"plan": {"tp": 2, "ep": 2}, "model": EXPERTS},
    "replicas": {"plan": {"dp": 2}},
}


@cache
def recorded(plan: str) -> History:
    """Return what a run under a plan recorded."""
    return history_of_run(simulate(scenario_of(document(**PLANS[plan]))))


def table(name: str, column: str, row: int, by: int) -> Change:
    """Add to one value of a table."""

    def change(history: History) -> History:
        found = dict(getattr(history, name))
        found[column] = found[column].copy()
        found[column][row] += by
        return replace(history, **{name: found})

    return change


def fact(kind: str, column: str, by: int) -> Change:
    """Add to a value of the last fact of a kind."""

    def change(history: History) -> History:
        assert history.facts is not None
        row = int(np.flatnonzero(history.facts["kind"] == FACTS.index(kind))[-1])
        return table("facts", column, row, by)(history)

    return change


def folded(name: str, row: int, by: int, column: str = "") -> Change:
    """Add to one value of the passes, transfers or durations."""

    def change(history: History) -> History:
        tables = history.folded
        assert tables is not None
        if not column:
            vector = getattr(tables, name).copy()
            vector[row] += by
            return replace(history, folded=replace(tables, **{name: vector}))
        columns = dict(getattr(tables, name))
        columns[column] = columns[column].copy()
        columns[column][row] += by
        return replace(history, folded=replace(tables, **{name: columns}))

    return change


def never_came(history: History) -> History:
    """Leave the first fact away: that a request arrived."""
    assert history.facts is not None
    assert FACTS[history.facts["kind"][0]] == "arrived"
    return replace(history, facts={name: column[1:] for name, column in history.facts.items()})


def shape(change_of: Callable[[PassTemplate], PassTemplate]) -> Change:
    """Change every template."""

    def change(history: History) -> History:
        tables = history.folded
        assert tables is not None
        templates = tuple(change_of(template) for template in tables.templates)
        return replace(history, folded=replace(tables, templates=templates))

    return change


def renamed(prefix: str) -> Change:
    """Let an operator be something else."""
    return shape(
        lambda template: replace(
            template,
            symbols=tuple(
                ("other", op, module) if name.startswith(prefix) else (name, op, module)
                for name, op, module in template.symbols
            ),
        )
    )


def rank_missing(template: PassTemplate) -> PassTemplate:
    """Leave rank 1 out of the all-reduce after the attention of layer 1."""
    members = tuple(
        ranks[:1] if template.symbols[symbol][0] == "o_proj_all_reduce" and layer == 1 else ranks
        for ranks, symbol, layer in zip(
            template.members, template.node_symbol.tolist(), template.node_layer.tolist(), strict=True
        )
    )
    return replace(template, members=members)


def written_twice(template: PassTemplate) -> PassTemplate:
    """Let the rotary embedding of each layer write the cache as well."""
    kv_write = next(symbol for symbol in template.symbols if symbol[0] == "kv_write")
    return replace(template, symbols=tuple(kv_write if s[0] == "rope" else s for s in template.symbols))


def looks_ahead(template: PassTemplate) -> PassTemplate:
    """Let the first operator need the last one."""
    return replace(template, after=((len(template.after) - 1,), *template.after[1:]))


def waits_less(template: PassTemplate) -> PassTemplate:
    """Let the last operator but one that needs others need none."""
    at = max(place for place, after in enumerate(template.after[:-1]) if after)
    return replace(template, after=(*template.after[:at], (), *template.after[at + 1 :]))


def on_another_stream(template: PassTemplate) -> PassTemplate:
    """Run the first operator of a layer on the stream for communication."""
    stream = template.instance_stream.copy()
    stream[template.node_instance[np.flatnonzero(template.node_layer == 0)[0]]] = 1
    return replace(template, instance_stream=stream)


def swapped_layers(template: PassTemplate) -> PassTemplate:
    """Exchange layers 0 and 1."""
    layer = template.node_layer
    return replace(template, node_layer=np.where(layer == 0, 1, np.where(layer == 1, 0, layer)))


def in_another_slot(history: History) -> History:
    """Let the other micro-batch carry a sequence as well."""
    assert history.decodes is not None
    decodes = {name: values.copy() for name, values in history.decodes.items()}
    row = int(np.argmax(decodes["last_step"] - decodes["first_step"]))
    slot, first, last = (int(decodes[name][row]) for name in ("slot", "first_step", "last_step"))
    steps = history.steps
    assert steps is not None
    inside = (steps["slot"] == 1 - slot) & (steps["step"] > first) & (steps["step"] < last)
    inside &= steps["prefill_tokens"] == 0
    step = int(steps["step"][np.flatnonzero(inside)[0]])
    more = {"replica": 0, "slot": 1 - slot, "request": decodes["request"][row], "first_step": step, "last_step": step}
    one_more = {name: steps[name] + (steps["step"] == step) for name in ("decode_tokens", "batch_requests")}
    return replace(
        history,
        decodes={name: np.append(values, more[name]) for name, values in decodes.items()},
        steps=dict(steps) | one_more,
    )


def with_other(degree: str, tokens: int) -> Change:
    """Compare with a run under another degree that gave request 0 other tokens."""

    def change(history: History) -> History:
        whole = against(history, declaring(history, **{degree: 8}))
        assert whole.other is not None
        got = whole.other.tokens.copy()
        got[0] += tokens
        return replace(whole, other=replace(whole.other, tokens=got))

    return change


def smaller_pool(history: History) -> History:
    """Give the pool a block less than was in use."""
    assert history.steps is not None
    return declaring(history, pool_blocks=int(history.steps["kv_blocks_used"].max()) - 1)


def kept_by_nobody(history: History) -> History:
    """Tell which SP rank keeps a sequence, where all have a part of it."""
    assert history.folded is not None
    owners = {name: np.zeros(1, values.dtype) for name, values in history.folded.owners.items()}
    return replace(history, folded=replace(history.folded, owners=owners))


MUTATIONS: list[tuple[str, str, Change, set[str]]] = [
    ("a decode step has a token more", "tensor", table("steps", "decode_tokens", 12, 1), {"PH-2"}),
    ("a prefill is told as a decode", "tensor", table("steps", "kind", 0, 1), {"PH-2"}),
    ("a decode is told as mixed", "replicas", table("steps", "kind", -1, 1), {"PH-2"}),
    ("a step counts a sequence more", "tensor", table("steps", "batch_requests", 3, 1), {"PH-2"}),
    ("a prefill names a micro-batch of decodes", "tensor", table("steps", "slot", 0, 1), {"PH-2"}),
    ("a step tells another pool", "tensor", table("steps", "kv_blocks_total", 4, -1), {"KV-6"}),
    ("a request more waits", "tensor", table("steps", "waiting", 2, 1), {"RUN-4"}),
    ("a request fewer runs", "stages", table("steps", "running", -1, -1), {"RUN-4"}),
    ("a prompt arrives with a token more", "tensor", fact("arrived", "value", 1), {"RUN-4"}),
    ("an admission knows a token less", "tensor", fact("admitted", "value", -1), {"RUN-4"}),
    ("a request finishes with a token more", "tensor", fact("finished", "value", 1), {"RUN-4"}),
    ("an admission is told a moment early", "tensor", fact("admitted", "time_ns", -1), {"RUN-4"}),
    ("an admission lends a block more", "stages", fact("admitted", "used", 1), {"KV-7"}),
    ("an arrival lends a block", "tensor", fact("arrived", "used", 2), {"KV-7"}),
    (
        "a step starts before its sequences' last", "tensor", table("steps", "start_ns", 10, -5),
        {"PH-3", "RUN-2", "RUN-4"},
    ),
    ("a request asked for a token more", "tensor", table("requests", "output_tokens", 0, 1), {"PH-4"}),
    ("a chunk starts one token later", "tensor", table("chunks", "start", 1, 1), {"KV-1", "RUN-2"}),
    ("a step prefills a token more than its chunks", "tensor", table("steps", "prefill_tokens", 0, -1), {"KV-3"}),
    ("a layer is written twice", "tensor", shape(written_twice), {"KV-3", "RUN-2"}),
    ("a step attends to another's entry", "tensor", table("steps", "context_tokens", 9, 1), {"KV-5"}),
    ("the pool is smaller", "tensor", smaller_pool, {"KV-6"}),
    ("a step has a block more in use", "tensor", table("steps", "kv_blocks_used", 5, 1), {"KV-7"}),
    ("a rank is missing", "tensor", shape(rank_missing), {"TP-5", "RUN-2"}),
    ("layers are swapped", "tensor", shape(swapped_layers), {"PP-6"}),
    ("under tp 8 a request got other tokens", "tensor", with_other("tp", 1), {"TP-9"}),
    ("under dp 8 a request got other tokens", "tensor", with_other("dp", 1), {"DP-4"}),
    ("a step lasts longer than its operators", "tensor", table("steps", "end_ns", -1, 7), {"RUN-2", "KV-7"}),
    ("an operator takes less than no time", "tensor", folded("row_values", 0, -(1 << 40)), {"RUN-2"}),
    ("an operator waits for nothing", "tensor", shape(waits_less), {"RUN-2"}),
    ("an operator runs on another stream", "tensor", shape(on_another_stream), {"RUN-2"}),
    ("an activation is something else", "tensor", renamed("ffn_act"), {"RUN-2"}),
    ("an operator needs a later one", "tensor", shape(looks_ahead), {"RUN-2"}),
    ("a request never came", "tensor", never_came, {"RUN-4"}),
    ("segments are not exchanged", "ring", renamed("kv_ring"), {"SP-2"}),
    ("segments are not moved", "ring", renamed("kv_move"), {"SP-8"}),
    ("a prefill is called a decode", "ring", shape(lambda t: replace(t, kind="decode")), {"SP-3"}),
    ("experts are not combined", "experts", renamed("combine"), {"EP-4"}),
    ("a stage starts before its input arrives", "stages", folded("transfer_times", 1, 1), {"PP-2", "RUN-2"}),
    ("a send takes less than its cost", "stages", folded("transfer_times", 1, -1), {"RUN-2"}),
    ("a stage runs ahead of the one before", "stages", folded("passes", 1, -(10**9), "start_ns"), {"PP-3", "RUN-2"}),
    ("a sequence is in two micro-batches", "stages", in_another_slot, {"PP-2", "PP-4", "RUN-2"}),
    ("a chunk runs on another replica", "replicas", table("chunks", "replica", -1, -1), {"DP-2", "KV-3", "RUN-2"}),
    (
        "the plan has a replica less", "replicas", lambda history: declaring(history, dp=1),
        {"PH-2", "KV-3", "RUN-2", "RUN-4"},
    ),
    ("an SP rank keeps a whole sequence", "ring", kept_by_nobody, {"DP-2"}),
    (
        "the digest is another", "tensor",
        lambda history: replace(history, digests=(("as recorded", "a"), ("simulated again", "b"))), {"RUN-5"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_what_was_recorded_is_legal(plan: str) -> None:
    assert check_history(recorded(plan)).violations == ()


@pytest.mark.parametrize(("name", "plan", "change", "rules"), MUTATIONS, ids=[one[0] for one in MUTATIONS])
def test_audit_catches_a_changed_record_by_its_rule(name: str, plan: str, change: Change, rules: set[str]) -> None:
    del name
    assert broken(change(recorded(plan)), rules) == rules
