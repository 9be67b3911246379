"""What each operator of a plan does on one rank: its kernel or collective, its shape, and how much by what a step has.

Names are those that operators have on a timeline; RULES.md says what each of them is. Amounts are linear in the
features of a step (``contents``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from clustersim.legality.prices.declared import BYTES, Declared
from clustersim.legality.prices.visits import rank_loads
from clustersim.model.architecture import Attention, Ffn, Layer, Moe

Terms = Mapping[str, float]
"""Feature of a step → how much of the amount it brings."""

TOKENS: Final[Terms] = {"tokens": 1.0}
HOST: Final = ("schedule", "sample")
SUFFIXES: Final = ("_all_reduce", "_all_gather", "_reduce_scatter")
"""Of the name of a collective that puts together what an operator has made."""
INCLUDED: Final = ("dispatch", "combine", "expert_act", "aggregate")
"""Work in memory whose time is in the constants of the grouped products."""
FUSED: Final = ("attention_add", "ffn_add", "moe_add", "shared_add")
"""Work in memory that runs inside a neighbour's kernel: it takes its bytes, and neither a floor nor a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operator does.

    Parameters
    ----------
    op : str
        Kind of kernel or collective, ``schedule`` or ``sample``.
    amount, least : mapping
        Rows, bytes or payload: the larger of two linear forms.
    shape : mapping
        What of its shape no step changes.
    pairs, keys : str
        Features that attention reads besides.
    fused, included : bool
    """

    op: str
    amount: Terms
    least: Terms = field(default_factory=dict)
    shape: Mapping[str, float] = field(default_factory=dict)
    pairs: str = ""
    keys: str = ""
    fused: bool = False
    included: bool = False

    @property
    def features(self) -> set[str]:
        """What of a step it depends on."""
        return {*self.amount, *self.least, self.pairs, self.keys} - {""}

    def of_half(self, half: int) -> Work:
        """Return the same of one half of a step."""

        def own(terms: Terms) -> Terms:
            return {f"{name}~{half}": value for name, value in terms.items()}

        pairs, keys = (f"{name}~{half}" if name else "" for name in (self.pairs, self.keys))
        return replace(self, amount=own(self.amount), least=own(self.least), pairs=pairs, keys=keys)


class Works:
    """Finds what an operator of a plan does.

    Parameters
    ----------
    declared : Declared
    """

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.plan, self.split = declared.plan, declared.plan.split
        self.hidden, self.vocab, self.tp = declared.model.hidden, declared.model.vocab, declared.plan.tp
        self.act, self.kv = BYTES[declared.precision.activations], BYTES[declared.precision.kv_cache]

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
        at = self.declared.model.layers[layer] if layer >= 0 else None
        found: Work | None
        if name in HOST:
            return Work(op=name, amount={"sequences": 1.0})
        if name == "kv_move":
            entry = sum(self._entry(self.declared.model.layers[one].attention) for one in cached) * self.kv
            idle = self.plan.sp.decode == "idle"
            return Work(op=op, amount={"all_prefill_tokens" if idle else "segment_tokens": entry})
        if at is None:
            found = self._outside(name)
        elif name.startswith(("expert_", "dispatch", "combine", "gate", "shared_", "aggregate", "moe_")):
            found = self._moe(name, at, layer, s)
        else:
            found = self._attention(name, at.attention) or self._ffn(name, at)
        if found is None:
            found = self._put_together(name, op, at, layer, s)
        return found

    def _memory(self, name: str, elements: float, feature: str = "tokens") -> Work:
        return Work(op="memory", amount={feature: elements * self.act}, fused=name in FUSED, included=name in INCLUDED)

    def _gemm(self, n: float, k: float, rows: str = "tokens") -> Work:
        return Work(op="gemm", amount={rows: 1.0}, shape={"n": n, "k": k})

    def _linear(self, n: int, k: int, *, columns: bool, rows: str = "tokens") -> Work:
        """Return a product whose output or input dimension TP splits."""
        return self._gemm(n // self.tp, k, rows) if columns else self._gemm(n, k // self.tp, rows)

    def _outside(self, name: str) -> Work | None:
        h = self.hidden
        match name:
            case "embedding":
                return self._memory(name, 2 * h / (1 if self.split.embedding == "vocab" else self.tp))
            case "final_norm":
                return self._memory(name, 2 * h, "rows")
            case "lm_head":
                return self._linear(self.vocab, h, columns=self.split.lm_head == "vocab", rows="rows")
        return None

    def _heads(self, a: Attention) -> tuple[int, int]:
        """Return query heads and K/V heads on a rank; one K/V head at least."""
        return a.num_heads // self.tp, max(1, a.num_kv_heads // self.tp)

    def _entry(self, a: Attention) -> int:
        """Return the elements of one token's K/V on a rank."""
        if a.kind == "mla":
            return (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0)
        return self._heads(a)[1] * (a.head_dim + a.v_head_dim)

    def _attention(self, name: str, a: Attention) -> Work | None:
        h, (heads, kv) = self.hidden, self._heads(a)
        latent, rope, q_rank = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0, a.q_lora_rank
        exposed = self._exposure(name, a)
        if exposed is not None:
            return exposed
        match name:
            case "attention_norm":
                return self._memory(name, 2 * h)
            case "attention_add":
                return self._memory(name, 3 * h)
            case "qkv_proj":
                return self._gemm(heads * a.head_dim + kv * (a.head_dim + a.v_head_dim), h)
            case "rope" | "qk_norm_rope":
                return self._memory(name, 2 * (heads + kv) * a.head_dim)
            case "kv_write":
                return Work(op="memory", amount={"tokens": self._entry(a) * (self.act + self.kv)})
            case "o_proj":
                return self._linear(h, a.num_heads * a.v_head_dim, columns=self.split.attention_out == "columns")
            case "q_a_proj" if q_rank:
                return self._gemm(q_rank, h)
            case "q_a_norm" if q_rank:
                return self._memory(name, 2 * q_rank)
            case "q_b_proj":
                return self._gemm(a.num_heads * a.head_dim // self.tp, q_rank or h)
            case "kv_a_proj":
                return self._gemm(latent + rope, h)
            case "kv_a_norm_rope":
                return self._memory(name, 2 * (latent + rope))
            case "kv_b_proj":
                width = (a.qk_nope_head_dim or 0) + a.v_head_dim
                return self._gemm(a.num_heads * width // self.tp, latent, "prefill_keys")
            case "q_absorb":
                return self._gemm(a.num_heads * latent // self.tp, a.qk_nope_head_dim or 0, "decode_sequences")
            case "v_absorb":
                return self._gemm(a.num_heads * a.v_head_dim // self.tp, latent, "decode_sequences")
        return self._core(name, a)

    def _core(self, name: str, a: Attention) -> Work | None:
        heads, kv = self._heads(a)
        window = "" if a.sliding_window is None else f"@{a.sliding_window}"
        mla = a.kind == "mla"
        if name == "attention_decode":
            latent = a.kv_lora_rank or 0
            dims = (1, latent + (a.qk_rope_head_dim or 0), latent) if mla else (kv, a.head_dim, a.v_head_dim)
            shape = self._shape(heads, *dims, shared=mla)
            return Work(op=name, amount={"decode_sequences": 1.0}, shape=shape, keys=f"decode_keys{window}")
        base, _, step = name.partition("attention_prefill")
        if base or (step and not step.removeprefix("_").isdigit()):
            return None
        own, rows = window + step.replace("_", "#"), "prefill_tokens"
        kv = heads if mla else kv
        if self.declared.splits and self.plan.sp.scheme == "all_to_all":
            own, rows = f"{window}*", "all_prefill_tokens"
            heads, kv = heads // self.plan.sp.degree, max(self._kv_needed(a))
        shape = self._shape(heads, kv, a.head_dim, a.v_head_dim, shared=False)
        return Work(
            op="attention_prefill", amount={rows: 1.0}, shape=shape, pairs=f"pairs{own}", keys=f"prefill_keys{own}"
        )

    @staticmethod
    def _shape(heads: int, kv_heads: int, qk_dim: int, v_dim: int, *, shared: bool) -> dict[str, float]:
        return {
            "heads": float(heads), "kv_heads": float(kv_heads), "qk_dim": float(qk_dim), "v_dim": float(v_dim),
            "shared_kv": float(shared),
        }  # fmt: skip

    def _kv_needed(self, a: Attention) -> list[int]:
        """Return how many K/V heads each SP rank attends with, that has some of the query heads."""
        (heads, kv), sp = self._heads(a), self.plan.sp.degree
        of_head = [head * kv // heads for head in range(heads)]
        each = heads // sp
        return [len(set(of_head[rank * each : (rank + 1) * each])) for rank in range(sp)]

    def _exposure(self, name: str, a: Attention) -> Work | None:
        """Return what SP ranks show each other of their tokens."""
        heads, _ = self._heads(a)
        if name == "kv_all_gather":
            return Work(op="all_gather", amount={"exposed_tokens": self._entry(a) * self.act})
        if name.startswith("kv_ring_"):
            return Work(op="ring_shift", amount={"ring_tokens": self._entry(a) * self.act})
        if name == "qkv_all_to_all":
            entries = sum(self._kv_needed(a)) * (a.head_dim + a.v_head_dim) * self.act
            queries = heads * a.head_dim * self.act
            return Work(op="all_to_all", amount={"segment_tokens": queries + entries, "context_tokens": entries})
        if name == "out_all_to_all":
            return Work(op="all_to_all", amount={"segment_tokens": heads * a.v_head_dim * self.act})
        return None

    def _ffn(self, name: str, at: Layer) -> Work | None:
        f, h = at.ffn, self.hidden
        if not isinstance(f, Ffn):
            return None
        inner = f.intermediate
        match name:
            case "ffn_norm":
                return self._memory(name, 2 * h)
            case "ffn_up":
                return self._linear(inner * (1 + f.gated), h, columns=self.split.ffn_up == "columns")
            case "ffn_act":
                return self._memory(name, (2 + f.gated) * inner / self.tp)
            case "ffn_down":
                return self._linear(h, inner, columns=self.split.ffn_down == "columns")
            case "ffn_add":
                return self._memory(name, 3 * h)
        return None

    def _moe(self, name: str, at: Layer, layer: int, s: tuple[int, int]) -> Work | None:
        f, h, tp = at.ffn, self.hidden, self.tp
        if not isinstance(f, Moe):
            return None
        up, shared, spread = f.expert_intermediate * (1 + f.gated), f.shared_intermediate, self.plan.ep.degree > 1
        match name:
            case "moe_norm":
                return self._memory(name, 2 * h)
            case "gate":
                return self._gemm(f.num_experts, h)
            case "dispatch" | "combine" if spread:
                return self._between_ranks(name, f, layer)
            case "expert_up":
                return self._experts(f, up // self.declared.expert_tp, h, layer, s)
            case "expert_down":
                return self._experts(f, h, f.expert_intermediate // self.declared.expert_tp, layer, s)
            case "dispatch" | "combine" | "expert_act" | "aggregate":
                return self._memory(name, 0.0)
            case "shared_up":
                return self._linear(shared * (1 + f.gated), h, columns=True)
            case "shared_gate":
                return self._gemm(1, h)
            case "shared_act":
                return self._memory(name, (2 + f.gated) * shared / tp)
            case "shared_down":
                return self._linear(h, shared, columns=False)
            case "shared_add" | "moe_add":
                return self._memory(name, 3 * h)
        return None

    def _routed(self, f: Moe, layer: int, s: tuple[int, int]) -> dict[str, float]:
        """Return the rows of the experts of a rank, by feature: of its TP group the one that has most."""
        ep = self.plan.ep
        if ep.degree == 1:
            return {"tokens": float(f.top_k)}
        loads = rank_loads(f, ep, self.declared.moe_layers_before(layer))
        first, last = s[0] * self.tp // self.declared.expert_tp, ((s[1] + 1) * self.tp - 1) // self.declared.expert_tp
        return {"stage_tokens": f.top_k / ep.degree * max(loads[first : last + 1])}

    def _experts(self, f: Moe, n: int, k: int, layer: int, s: tuple[int, int]) -> Work:
        ep = self.plan.ep
        held = f.num_experts if ep.degree == 1 else (f.num_experts + ep.redundant) // ep.degree
        shape = {"n": n, "k": k, "experts": held, "share": f.top_k / f.num_experts}
        return Work(op="grouped_gemm", amount=self._routed(f, layer, s), shape=shape)

    def _between_ranks(self, name: str, f: Moe, layer: int) -> Work:
        """Return the all-to-all that lasts as its most loaded rank: whose tokens, or whose experts' rows, are most."""
        ep, shared = self.plan.ep, self.declared.expert_tp
        row = f.top_k * self.hidden * self.act
        most = max(rank_loads(f, ep, self.declared.moe_layers_before(layer)))
        outer, inner = row / self.tp * (shared if name == "dispatch" else 1), most * row / ep.degree
        inner /= 1 if name == "dispatch" else shared
        if self.declared.coordinates == 1:
            return Work(op="all_to_all", amount={"peak_tokens": max(outer, inner)})
        return Work(op="all_to_all", amount={"peak_tokens": outer}, least={"stage_tokens": inner})

    def _put_together(self, name: str, op: str, at: Layer | None, layer: int, s: tuple[int, int]) -> Work | None:
        """Return the collective over what an operator has made: its rows, as wide as they are on all ranks."""
        if f"_{op}" not in SUFFIXES:
            return None
        base = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), "")
        a, f, h = (at.attention, at.ffn, self.hidden) if at is not None else (None, None, self.hidden)
        rows: Terms = TOKENS
        if base in ("embedding", "o_proj", "ffn_down", "aggregate", "shared_add", "shared_down"):
            width = h
        elif base == "lm_head":
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
