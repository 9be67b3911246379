"""The rule that a wrong value belongs to, from what arrived at the node that made it, and a sentence about it.

Where a stage, a layer or a step did not have what the one before it makes, that rule is PP-2, PP-6 or PH-3: level X
finds it broken, though it is checked as such on the graph and the timeline.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.rule import Violation
from clustersim.proof.operators.values import ALL, Arrival, Dense, Routed
from clustersim.proof.place import Place
from clustersim.values import dataclass

_NO_PAIRS: Final = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspect:
    """The first wrong value.

    Parameters
    ----------
    at : Place
        The node and rank that made it.
    arrived : list of Arrival
        What it had to work with.
    missing : bool
        Whether numbers are missing, rather than different.
    unseen, unasked : int64 arrays of shape (pairs, 2)
        Rows and slots: keys that a token should have attended to and did not, and the other way round.
    lost, extra : tuple of (row, expert)
        Pairs that should be here and are not, and the other way round.
    entering : bool or None
        Whether what enters the module is right.
    """

    at: Place
    arrived: list[Arrival]
    missing: bool
    unseen: Int64Array = field(default_factory=lambda: _NO_PAIRS)
    unasked: Int64Array = field(default_factory=lambda: _NO_PAIRS)
    lost: tuple[tuple[int, int], ...] = ()
    extra: tuple[tuple[int, int], ...] = ()
    entering: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A broken rule, where, and what would mend it."""

    rule: str
    where: str
    message: str
    fix: str


_FIX: Final = {
    "PH-3": "start a step of a sequence after the one before has sampled its token",
    "PH-5": "attend to every token up to the own one (inside the model's window), and to no later one",
    "KV-2": "let attention depend on the K/V write of its step and on the K/V read of the steps before",
    "TP-2": "sum what is split by rows and put side by side what is split by columns before it is read as a whole",
    "TP-9": "give the node every input that it has on one device",
    "SP-2": "bring the K/V of every earlier token to the rank before it attends",
    "SP-8": "move the K/V of a prompt to the rank that decodes it before the boundary",
    "PP-2": "start a stage after what the stage before it sent has arrived",
    "PP-6": "run the modules of a step in the order of the model",
    "EP-2": "send each token to its top-k experts, once, and bring all results back",
    "EP-3": "route by the token's hidden state alone",
}


def cause_of(suspect: Suspect, step: int) -> Cause:
    """Return the rule that the first wrong value of an execution breaks."""
    rule, words = _rule(suspect)
    state = "is missing" if suspect.missing else "differs from that of one device"
    return Cause(rule=rule, where=where_of(suspect.at, step), message=f"the value {state}: {words}", fix=_FIX[rule])


def as_violation(cause: Cause, order: str) -> Violation:
    """Return a cause as a violation of level X, found in an order of that name."""
    message = f"{cause.message} ({order})"
    return Violation(rule=cause.rule, level="X", where=cause.where, message=message, fix=cause.fix)


def where_of(at: Place, step: int) -> str:
    """Return where a node runs: ``step 2, rank 1, layer 0, attention o_proj``."""
    layer = f"layer {at.layer}, " if at.layer >= 0 else ""
    return f"step {step}, rank {at.rank}, {layer}{at.node.module} {at.node.name}"


def out_of_shape(at: Place, step: int) -> Cause:
    """Return the cause of a node that asks for heads or features that its inputs or parameters do not have."""
    words = "the node asks for heads or features that its rank, or the model, does not have"
    fix = "give the node its rank's share of the heads and of the matrix"
    return Cause(rule="TP-9", where=where_of(at, step), message=f"no value can be computed: {words}", fix=fix)


def _rule(suspect: Suspect) -> tuple[str, str]:
    node = suspect.at.node
    if len(suspect.unseen) or len(suspect.unasked):
        return _attention_rule(suspect)
    if suspect.lost or suspect.extra:
        return "EP-2", _pair_words(suspect)
    if node.name == "schedule":
        return "PH-3", "no earlier step has sampled a token that the step needs"
    if node.name == "kv_move":
        return "SP-8", "K/V of the step does not arrive where decode will read it"
    if node.name == "recv":
        return "PP-2", "it is not the output of the stage before"
    if node.axis in ("tp", "expert_tp"):
        return "TP-2", f"{node.op} does not put together what the ranks of its group have"
    incoming = [one.value for one in suspect.arrived if isinstance(one.value, Dense)]
    terms = [one.value for one in suspect.arrived if isinstance(one.value, Dense | Routed) and one.value.partial]
    if terms:
        return "TP-2", "a term of a sum is read as if it were the whole"
    if suspect.missing and any(value.columns is not ALL for value in incoming) and node.rule in _WHOLE:
        return "TP-2", "a slice of the features is read as if it were the whole"
    if suspect.entering is False:
        return "PP-6", "what enters the module is not the output of the module before it"
    if node.name in ("gate", "dispatch"):
        return "EP-3", "the router's choice is not that of the token's hidden state"
    if node.name in ("aggregate", "combine") or node.name.startswith("expert_"):
        return "EP-2", "the experts' results are not those of the tokens' top-k experts"
    if node.op.startswith("attention_") and incoming:
        return "KV-2", "the keys and values that it attends to are not those that were written"
    if node.name.endswith("_add") and node.name != "shared_add" and len(incoming) < 2:
        return "PP-6", "the residual does not come from the module before"
    return "TP-9", f"{len(incoming)} of its inputs arrived"


_WHOLE: Final = ("replicate", "columns", "qkv", "ffn_up", "lm_head", "attention_out", "ffn_down", "linear")


def _attention_rule(suspect: Suspect) -> tuple[str, str]:
    at, tokens = suspect.at, suspect.at.tokens
    window, wanted = at.node.variant.window, at.attention.sliding_window
    if window != wanted:
        row, slot = (suspect.unasked if len(suspect.unasked) else suspect.unseen)[0].tolist()
        verb = "attends" if len(suspect.unasked) else "does not attend"
        words = f"{_token(suspect, row)} {verb} to token {tokens.slot_position[slot]}"
        return "PH-5", f"{words}: its window is {window or 'all tokens'}, and the model's {wanted or 'all tokens'}"
    if len(suspect.unasked):
        row, slot = suspect.unasked[0].tolist()
        return "PH-5", f"{_token(suspect, row)} attends to token {tokens.slot_position[slot]}"
    row, slot = suspect.unseen[0].tolist()
    words = f"{_token(suspect, row)} does not attend to token {tokens.slot_position[slot]}"
    now = np.flatnonzero(tokens.slot == slot)
    if len(now):
        writer = int(tokens.s[now[0]])
        if writer == at.s:
            return "KV-2", f"{words}, whose K/V this rank writes in this step"
        return "SP-2", f"{words}, whose K/V " + (f"SP rank {writer} writes" if writer >= 0 else "no SP rank computes")
    if at.setting.plan.sp.degree == 1:
        return "KV-2", f"{words}, whose K/V an earlier step wrote"
    owned = at.s == int(tokens.owner[row])
    cache = at.memory.caches.get((at.rank, at.layer))
    held = cache is not None and not bool(np.isnan(cache[slot]).all())
    if owned and held:
        return "KV-2", f"{words}, whose K/V is in the rank's cache"
    if owned:
        return "SP-8", f"{words}, whose K/V was not moved to this rank"
    return "SP-2", f"{words}, whose K/V SP rank {int(tokens.owner[row])} keeps"


def _token(suspect: Suspect, row: int) -> str:
    tokens = suspect.at.tokens
    return f"token {int(tokens.position[row])} of sequence {int(tokens.sequence[row])}"


def _pair_words(suspect: Suspect) -> str:
    words = []
    for pairs, verb in ((suspect.lost, "does not reach"), (suspect.extra, "should not reach, or not twice,")):
        if pairs:
            row, expert = pairs[0]
            words.append(f"{_token(suspect, row)} {verb} expert {expert}")
    return "; ".join(words)
