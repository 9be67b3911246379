"""What the operators of attention do: projections, the core, K/V writes and what SP ranks show each other."""

from __future__ import annotations

from clustersim.legality.prices.work import Parts, Work
from clustersim.model.architecture import Attention


class AttentionWorks(Parts):
    """Finds what an operator of attention does."""

    def _heads(self, a: Attention) -> tuple[int, int]:
        """Return query heads and K/V heads on a rank; one K/V head at least."""
        return a.num_heads // self.tp, max(1, a.num_kv_heads // self.tp)

    def entry(self, a: Attention) -> int:
        """Return the elements of one token's K/V on a rank."""
        if a.kind == "mla":
            return (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0)
        return self._heads(a)[1] * (a.head_dim + a.v_head_dim)

    def of(self, name: str, a: Attention) -> Work | None:
        """Return what an operator does; None where its name is none of attention."""
        h, (heads, kv) = self.hidden, self._heads(a)
        latent, rope, q_rank = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0, a.q_lora_rank
        exposed = self._exposure(name, a)
        if exposed is not None:
            return exposed
        match name:
            case "attention_norm" | "attention_post_norm":
                return self.memory(name, 2 * h)
            case "attention_add":
                return self.memory(name, 3 * h)
            case "qkv_proj":
                return self.gemm(heads * a.head_dim + kv * (a.head_dim + a.v_head_dim), h)
            case "rope" | "qk_norm_rope":
                return self.memory(name, 2 * (heads + kv) * a.head_dim)
            case "kv_write":
                return Work(op="memory", amount={"tokens": self.entry(a) * (self.act + self.kv)})
            case "o_proj":
                return self.linear(h, a.num_heads * a.v_head_dim, columns=self.split.attention_out == "columns")
            case "q_a_proj" if q_rank:
                return self.gemm(q_rank, h)
            case "q_a_norm" if q_rank:
                return self.memory(name, 2 * q_rank)
            case "q_b_proj":
                return self.gemm(a.num_heads * a.head_dim // self.tp, q_rank or h)
            case "kv_a_proj":
                return self.gemm(latent + rope, h)
            case "kv_a_norm_rope":
                return self.memory(name, 2 * (latent + rope))
            case "kv_b_proj":
                width = (a.qk_nope_head_dim or 0) + a.v_head_dim
                return self.gemm(a.num_heads * width // self.tp, latent, "prefill_keys")
            case "q_absorb":
                return self.gemm(a.num_heads * latent // self.tp, a.qk_nope_head_dim or 0, "decode_sequences")
            case "v_absorb":
                return self.gemm(a.num_heads * a.v_head_dim // self.tp, latent, "decode_sequences")
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
        if self.deployment.splits and self.plan.sp.scheme == "all_to_all":
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
            return Work(op="all_gather", amount={"exposed_tokens": self.entry(a) * self.act})
        if name.startswith("kv_ring_"):
            return Work(op="ring_shift", amount={"ring_tokens": self.entry(a) * self.act})
        if name == "qkv_all_to_all":
            entries = sum(self._kv_needed(a)) * (a.head_dim + a.v_head_dim) * self.act
            queries = heads * a.head_dim * self.act
            return Work(op="all_to_all", amount={"segment_tokens": queries + entries, "context_tokens": entries})
        if name == "out_all_to_all":
            return Work(op="all_to_all", amount={"segment_tokens": heads * a.v_head_dim * self.act})
        return None
