"""What each operator of a plan does on one rank, by its name.

Names are those that operators have on a timeline; RULES.md says what each of them is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clustersim.legality.formats import weights_in
from clustersim.legality.prices.attention_work import AttentionWorks
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.exchange import copies_of, copy_bytes, exchange_of
from clustersim.legality.prices.visits import rank_loads, rank_shares
from clustersim.legality.prices.work import HOST, Parts, Terms, Work
from clustersim.model.architecture import Ffn, Layer, Moe

TOKENS: Final[Terms] = {"tokens": 1.0}
SUFFIXES: Final = ("_all_reduce", "_all_gather", "_reduce_scatter")
"""Of the name of a collective that puts together what an operator has made."""


class Works(Parts):
    """Finds what an operator of a plan does.

    Parameters
    ----------
    deployment : PricedDeployment
    """

    def __init__(self, deployment: PricedDeployment) -> None:
        super().__init__(deployment)
        self.attention = AttentionWorks(deployment)

    def of(self, name: str, op: str, layer: int, s: tuple[int, int], cached: tuple[int, ...]) -> Work | None:
        """Return what an operator does; None where its name tells nothing.

        Parameters
        ----------
        name, op : str
        layer : int
            −1 outside the layers.
        s : (int, int)
            First and last SP coordinate that runs it.
        cached : tuple of int
            Layers whose K/V the stage writes.
        """
        at = self.deployment.model.layers[layer] if layer >= 0 else None
        found: Work | None
        if name in HOST:
            return Work(op=name, amount={"sequences": 1.0})
        if name == "kv_move":
            entry = sum(self.attention.entry(self.deployment.model.layers[one].attention) for one in cached) * self.kv
            idle = self.plan.sp.decode == "idle"
            return Work(op=op, amount={"all_prefill_tokens" if idle else "segment_tokens": entry})
        if at is None:
            found = self._outside(name)
        elif name.startswith(("expert_", "dispatch", "combine", "gate", "shared_", "aggregate", "moe_")):
            found = self._moe(name, at, layer, s)
        else:
            found = self.attention.of(name, at.attention) or self._ffn(name, at)
        if found is None:
            return self._put_together(name, op, at, layer, s)
        if found.op not in ("gemm", "grouped_gemm"):
            return found
        model, precision = self.deployment.model, self.deployment.precision
        of_ffn = name.startswith(("ffn_", "expert_", "gate", "shared_"))
        part = model if at is None else at.ffn if of_ffn else at.attention
        return replace(found, weights=weights_in(precision, model, name, part))

    def _outside(self, name: str) -> Work | None:
        h = self.hidden
        match name:
            case "embedding":
                return self.memory(name, 2 * h / (1 if self.split.embedding == "vocab" else self.tp))
            case "final_norm":
                return self.memory(name, 2 * h, "rows")
            case "lm_head":
                return self.linear(self.vocab, h, columns=self.split.lm_head == "vocab", rows="rows")
            case "logits_cap":
                return self.memory(name, 2 * self.vocab, "rows")
        return None

    def _ffn(self, name: str, at: Layer) -> Work | None:
        f, h = at.ffn, self.hidden
        if not isinstance(f, Ffn):
            return None
        inner = f.intermediate
        match name:
            case "ffn_norm" | "ffn_post_norm":
                return self.memory(name, 2 * h)
            case "ffn_up":
                return self.linear(inner * (1 + f.gated), h, columns=self.split.ffn_up == "columns")
            case "ffn_act":
                return self.memory(name, (2 + f.gated) * inner / self.tp)
            case "ffn_down":
                return self.linear(h, inner, columns=self.split.ffn_down == "columns")
            case "ffn_add":
                return self.memory(name, 3 * h)
        return None

    def _moe(self, name: str, at: Layer, layer: int, s: tuple[int, int]) -> Work | None:
        f, h, tp = at.ffn, self.hidden, self.tp
        if not isinstance(f, Moe):
            return None
        up, shared, spread = f.expert_intermediate * (1 + f.gated), f.shared_intermediate, self.plan.ep.sends
        match name:
            case "moe_norm" | "moe_post_norm":
                return self.memory(name, 2 * h)
            case "gate":
                return self.gemm(f.num_experts, h)
            case "dispatch" | "combine" if spread:
                return self._between_ranks(name, f, layer)
            case "expert_up":
                return self._experts(f, up // self.deployment.expert_tp, h, layer, s)
            case "expert_down":
                return self._experts(f, h, f.expert_intermediate // self.deployment.expert_tp, layer, s)
            case "dispatch" | "combine" | "expert_act" | "aggregate":
                return self.memory(name, 0.0)
            case "shared_up":
                return self.linear(shared * (1 + f.gated), h, columns=True)
            case "shared_gate":
                return self.gemm(1, h)
            case "shared_act":
                return self.memory(name, (2 + f.gated) * shared / tp)
            case "shared_down":
                return self.linear(h, shared, columns=False)
            case "shared_add" | "moe_add":
                return self.memory(name, 3 * h)
        return None

    def _routed(self, f: Moe, layer: int, s: tuple[int, int]) -> dict[str, float]:
        """Return the rows of the experts of a rank, by feature: of its TP group the one that has most."""
        ep = self.plan.ep
        if ep.degree == 1:
            return {"tokens": float(f.top_k)}
        loads = rank_loads(f, ep, self.deployment.moe_layers_before(layer))
        return {"stage_tokens": f.top_k / ep.degree * loads[self._waited_for(loads, s)]}

    def _waited_for(self, loads: tuple[float, ...], s: tuple[int, int]) -> int:
        """Return the EP rank that has most of those of a TP group."""
        first, last = s[0] * self.tp // self.deployment.expert_tp, (s[1] + 1) * self.tp - 1
        return max(range(first, last // self.deployment.expert_tp + 1), key=loads.__getitem__)

    def _experts(self, f: Moe, n: int, k: int, layer: int, s: tuple[int, int]) -> Work:
        ep = self.plan.ep
        held = f.num_experts if ep.degree == 1 else (f.num_experts + ep.redundant) // ep.degree
        shape = {"n": n, "k": k, "experts": held, "share": f.top_k / f.num_experts}
        before = self.deployment.moe_layers_before(layer)
        shares = rank_shares(f, ep, before)
        mine = shares[self._waited_for(rank_loads(f, ep, before), s) if ep.degree > 1 else 0] if shares else ()
        return Work(op="grouped_gemm", amount=self._routed(f, layer, s), shape=shape, shares=mine)

    def _between_ranks(self, name: str, f: Moe, layer: int) -> Work:
        """Return what brings tokens to experts or back.

        An all-to-all lasts as its most loaded rank does: whose tokens, or whose experts' rows, are most.
        """
        ep, shared = self.plan.ep, self.deployment.expert_tp
        row = copy_bytes(name, ep, self.deployment.precision, self.hidden)
        if ep.exchange == "all_gather":
            return Work(op="all_gather" if name == "dispatch" else "reduce_scatter", amount={"stage_tokens": row})
        loads = rank_loads(f, ep, self.deployment.moe_layers_before(layer))
        copies, most = copies_of(f, ep, loads)
        outer, inner = copies * row / self.tp * (shared if name == "dispatch" else 1), most * row
        inner /= 1 if name == "dispatch" else shared
        way = exchange_of(name, f, ep)
        if self.deployment.coordinates == 1:
            return Work(op="all_to_all", amount={"peak_tokens": max(outer, inner)}, exchange=way)
        return Work(op="all_to_all", amount={"peak_tokens": outer}, least={"stage_tokens": inner}, exchange=way)

    def _put_together(self, name: str, op: str, at: Layer | None, layer: int, s: tuple[int, int]) -> Work | None:
        """Return the collective over what an operator has made: its rows, as wide as they are on all ranks."""
        if f"_{op}" not in SUFFIXES:
            return None
        base = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), "")
        a, f, h = (at.attention, at.ffn, self.hidden) if at is not None else (None, None, self.hidden)
        rows: Terms = TOKENS
        if base in ("embedding", "o_proj", "ffn_down", "aggregate", "shared_add", "shared_down"):
            width = h
        elif base in ("lm_head", "logits_cap"):
            width, rows = self.vocab, {"rows": 1.0}
        elif base in ("ffn_up", "ffn_act") and isinstance(f, Ffn):
            width = f.intermediate * (1 + f.gated if base == "ffn_up" else 1)
        elif base in ("attention_prefill", "attention_decode", "v_absorb") and a is not None:
            width = a.num_heads * a.v_head_dim
            rows = {"prefill_tokens" if base == "attention_prefill" else "decode_sequences": 1.0}
        elif base == "expert_down" and isinstance(f, Moe):
            width, rows = h, self._routed(f, layer, s)
        else:
            return None
        return Work(op=op, amount={feature: value * width * self.act for feature, value in rows.items()})
