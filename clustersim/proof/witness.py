"""Finds the first value that is missing or different, and the rule that its cause belongs to.

It watches an execution and compares every value, in the order in which they are made, with what the unsharded model
computed for the same tokens, heads and features. Terms of a sum can't be compared; the sum can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.rule import Violation
from clustersim.model.architecture import ModelSpec
from clustersim.plan.exchange import SUMMED
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.stages import stage_layers
from clustersim.proof.cause import Cause, Suspect, as_violation, cause_of
from clustersim.proof.operators.experts import homes
from clustersim.proof.operators.values import Arrival, Attended, Dense, Moved, Routed, TokenIds, Value
from clustersim.proof.place import Place
from clustersim.proof.reference import Trace
from clustersim.proof.tokens import BoolArray, StepTokens

NEAR: Final = 1e-9

_ENDINGS: Final = ("_all_reduce", "_all_gather", "_reduce_scatter")
_NAMES: Final = {"qk_norm_rope": "rope", "out_all_to_all": "attention", "v_absorb": "attention"}


class Witness:
    """Watches an execution; afterwards ``cause`` is that of the first wrong value, or None.

    Parameters
    ----------
    model : ModelSpec
    plan : ParallelPlan
    traces : sequence of Trace
        What the unsharded model computed for each sequence.
    """

    def __init__(self, model: ModelSpec, plan: ParallelPlan, traces: Sequence[Trace]) -> None:
        self.model = model
        self.plan = plan
        self.traces = traces
        self.entries = [stage[0] for stage in stage_layers(model, plan)]
        self.cause: Cause | None = None
        self.known: dict[tuple[int, str], FloatArray] = {}

    def __call__(self, step: int, at: Place, arrived: list[Arrival], value: Value) -> None:
        """Look at one value, unless a wrong one was found before."""
        if self.cause is None:
            suspect = self._suspect(at, arrived, value)
            if suspect is not None:
                self.cause = cause_of(suspect, step)

    def violation(self, order: str) -> Violation:
        """Return what was found as a violation of level X."""
        if self.cause is None:
            return Violation(
                rule="TP-9", level="X", where=order,
                message="logits or cache are not those of one device, though no value on the way is different",
                fix="sample every sequence on the last stage, and leave its whole cache where decode reads it",
            )  # fmt: skip
        return as_violation(self.cause, order)

    def _suspect(self, at: Place, arrived: list[Arrival], value: Value) -> Suspect | None:
        match value:
            case TokenIds():
                wrong = bool((value.ids[at.rows] < 0).any())
                return Suspect(at=at, arrived=arrived, missing=True) if wrong else None
            case Routed():
                return self._pairs(at, arrived, value)
            case Moved():
                return self._moved(at, arrived, value)
            case Dense():
                return self._dense(at, arrived, value)
            case None if at.node.op == "sample":
                return self._sampled(at, arrived)
            case _:
                return None

    def _sampled(self, at: Place, arrived: list[Arrival]) -> Suspect | None:
        wanted = self._slots(-1, "lm_head" if self.model.logit_cap is None else "logits_cap", at.tokens)
        rows = at.tokens.rows("rows", at.s)
        assert wanted is not None
        missing, wrong = _differs(at.dense(arrived, self.model.vocab)[rows], wanted[at.tokens.slot[rows]])
        return Suspect(at=at, arrived=arrived, missing=missing) if wrong else None

    # --- values of tokens ---------------------------------------------------------------------------------------

    def _dense(self, at: Place, arrived: list[Arrival], value: Dense) -> Suspect | None:
        if at.node.op == "send":
            return None
        if value.partial:  # of a term of a sum only its absence shows
            missing = bool(np.isnan(value.data[value.rows]).any())
            return Suspect(at=at, arrived=arrived, missing=True) if missing else None
        unseen = unasked = np.empty((0, 2), np.int64)
        if isinstance(value, Attended):
            hop = at.node.variant.hop
            if hop is not None and hop < self.plan.sp.degree - 1:
                return None
            needed = self._needed(at)
            unseen, unasked = np.argwhere(needed & ~value.seen), np.argwhere(value.seen & ~needed)
        wanted = self._wanted(at)
        wrong = missing = False
        if wanted is not None:
            rows = value.rows
            found = value.data[rows][:, value.columns]
            missing, wrong = _differs(found, wanted[at.tokens.slot[rows]][:, value.columns])
        if not (wrong or len(unseen) or len(unasked)):
            return None
        entering = self._entering(at, arrived)
        return Suspect(at=at, arrived=arrived, missing=missing, unseen=unseen, unasked=unasked, entering=entering)

    def _wanted(self, at: Place) -> FloatArray | None:
        """Return what one device computes at this node for every slot; None where it has no such value."""
        name = at.node.name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        if name == "recv":
            return self._hidden(at.stage, at.tokens)
        if name.startswith(("attention_prefill", "attention_decode")):
            if at.node.shared_kv:
                return None
            name = "attention"
        return self._slots(at.layer, _NAMES.get(name, name), at.tokens)

    def _hidden(self, stage: int, tokens: StepTokens) -> FloatArray | None:
        """Return the hidden states that enter a stage."""
        layer, part = self.entries[stage]
        return self._entry(layer, part, tokens)

    def _entry(self, layer: int, part: str, tokens: StepTokens) -> FloatArray | None:
        if part == "ffn":
            return self._slots(layer, "attention_add", tokens)
        if layer == 0:
            return self._slots(-1, "embedding", tokens)
        before = self._slots(layer - 1, "ffn_add", tokens)
        return self._slots(layer - 1, "moe_add", tokens) if before is None else before

    def _slots(self, layer: int, name: str, tokens: StepTokens) -> FloatArray | None:
        key = layer, name
        if key not in self.traces[0].values:
            return None
        if key not in self.known:
            shape = self.traces[0].values[key].shape[1:]
            whole = np.full((tokens.sequences, tokens.positions, *shape), np.nan)
            for sequence, trace in enumerate(self.traces):
                whole[sequence, : len(trace.values[key])] = trace.values[key]
            self.known[key] = whole.reshape(tokens.slots, *shape)
        return self.known[key]

    def _entering(self, at: Place, arrived: list[Arrival]) -> bool | None:
        """Whether what enters a module is what the module before it made; None at other nodes."""
        part = {"attention_norm": "attention", "ffn_norm": "ffn", "moe_norm": "ffn"}.get(at.node.name)
        if part is None:
            return None
        wanted = self._entry(at.layer, part, at.tokens)
        assert wanted is not None
        found = at.dense(arrived, self.model.hidden)[at.rows]
        return not _differs(found, wanted[at.tokens.slot[at.rows]])[1]

    def _needed(self, at: Place) -> BoolArray:
        """Return which slots each row must attend to: all of its sequence up to itself, inside the model's window."""
        tokens, window = at.tokens, at.attention.sliding_window
        needed = np.zeros((len(tokens), tokens.slots), bool)
        for row in at.rows.tolist():
            position = int(tokens.position[row])
            first = 0 if window is None else max(0, position - window + 1)
            base = int(tokens.sequence[row]) * tokens.positions
            needed[row, base + first : base + position + 1] = True
        return needed

    # --- pairs of token and expert ------------------------------------------------------------------------------

    def _choices(self, layer: int, tokens: StepTokens) -> Int64Array:
        return np.array(
            [
                self.traces[sequence].choices[layer][position]
                for sequence, position in zip(tokens.sequence.tolist(), tokens.position.tolist(), strict=True)
            ]
        )

    def _pairs(self, at: Place, arrived: list[Arrival], value: Routed) -> Suspect | None:
        choices, spread = self._choices(at.layer, at.tokens), self.plan.ep.sends
        rows: list[int] = at.rows.tolist()
        if spread:
            back = at.node.name == "combine"
            rows = at.share.tolist() if back else np.flatnonzero((at.tokens.s >= 0) & at.among).tolist()
        wanted = [(row, expert) for row in rows for expert in choices[row].tolist()]
        if self.plan.ep.degree > 1 and not (spread and at.node.name == "combine"):
            token, expert = np.array(wanted, np.int64).reshape(-1, 2).T
            here = (homes(at, token, expert) == at.expert_group[0]).tolist()
            wanted = [pair for pair, mine in zip(wanted, here, strict=True) if mine]
        found = list(zip(value.token.tolist(), value.expert.tolist(), strict=True))
        if at.node.name == "combine" and spread and self.plan.ep.exchange in SUMMED:
            return self._sums(at, arrived, wanted, found)
        if sorted(found) != sorted(wanted):
            lost = sorted(set(wanted) - set(found))
            extra = sorted(set(found) - set(wanted)) or sorted({pair for pair in found if found.count(pair) > 1})
            return Suspect(at=at, arrived=arrived, missing=bool(lost), lost=tuple(lost), extra=tuple(extra))
        name = at.node.name.removesuffix("_all_reduce")
        numbers = self._slots(at.layer, "expert_down" if name == "combine" else name, at.tokens)
        if value.partial or numbers is None:
            return None
        place = [choices[row].tolist().index(expert) for row, expert in found]
        wanted_data = numbers[at.tokens.slot[value.token], np.array(place, np.int64)]
        missing, wrong = _differs(value.data[:, value.columns], wanted_data[:, value.columns])
        return Suspect(at=at, arrived=arrived, missing=missing) if wrong else None

    def _sums(
        self, at: Place, arrived: list[Arrival], wanted: list[tuple[int, int]], found: list[tuple[int, int]]
    ) -> Suspect | None:
        """Look for the sums of tokens on EP ranks; what they come to shows when they are put together."""
        token, expert = np.array(wanted, np.int64).reshape(-1, 2).T
        pair_of = dict(zip(zip(token.tolist(), homes(at, token, expert).tolist(), strict=True), wanted, strict=True))
        if sorted(found) == sorted(pair_of):
            return None
        lost = tuple(sorted(pair for summed, pair in pair_of.items() if summed not in found))
        extra = sorted({one for one in found if one not in pair_of or found.count(one) > 1})
        return Suspect(at=at, arrived=arrived, missing=bool(lost), lost=lost, extra=() if lost else tuple(extra))

    # --- the cache ----------------------------------------------------------------------------------------------

    def _moved(self, at: Place, arrived: list[Arrival], value: Moved) -> Suspect | None:
        tokens = at.tokens
        goal = tokens.owner if at.node.op == "all_to_all" else np.zeros_like(tokens.owner)
        wanted = set(tokens.slot[tokens.prefill & (goal == at.s) & (tokens.s != at.s)].tolist())
        for layer, part in stage_layers(self.model, self.plan)[at.stage]:
            slots, entries = value.arriving.get(layer, (np.empty(0, np.int64), np.empty((0, 1, 1))))
            here = set(slots[~np.isnan(entries).all(axis=(1, 2))].tolist())
            if part == "attention" and wanted - here:
                return Suspect(at=at, arrived=arrived, missing=True)
        return None


def _differs(found: FloatArray, wanted: FloatArray) -> tuple[bool, bool]:
    """Return whether numbers are missing, and whether they are missing or different."""
    if found.shape != wanted.shape:  # nothing arrived that would say what it is
        return True, True
    if not wanted.size:
        return False, False
    scale = max(float(np.abs(wanted).max()), 1e-3)
    return bool(np.isnan(found).any()), not bool((np.abs(found - wanted) <= NEAR * scale).all())
