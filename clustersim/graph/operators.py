"""The single-device dataflow of each module: what one device would run for one step.

Element-wise work that engines fuse into a neighbour (the residual add, rotary embedding) is its own node with its
own bytes, so that it can be found on the timeline; the cost of launching it is a matter of pricing.

Around experts, permutation, activation and sum have their bytes but no time of their own: MoE modules were measured
as a whole, and what they take is in the constants of the grouped products (:mod:`clustersim.cost.fit`).

A norm of what attention or an FFN puts out is a kernel of its own behind the sum over TP ranks, and the residual add
is part of the norm behind it: so vLLM runs Gemma 2 and 3 (vllm/model_executor/models/gemma2.py,
``Gemma2DecoderLayer.forward``, 2024). A soft cap of logits is one kernel over whole logits, as SGLang's
``fused_softcap`` (sglang/srt/layers/elementwise.py, 2025); vLLM takes three (logits_processor.py). Embeddings are
scaled by the operator that looks them up, as transformers' ``Gemma3TextScaledWordEmbedding``; scores are capped inside
the kernel of attention.

MLA: prefill expands the latent to heads, decode absorbs the expansion into the query and the output
(DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.2).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from clustersim.cost.precision import Precision, format_of
from clustersim.graph.blueprint import INPUT, Blueprint, Body, BodyBuilder, Node, StepKind, Terms, Unit
from clustersim.graph.variant import Variant
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe, WithFormats

TOKENS: Terms = (("tokens", 1.0),)
PREFILL: Terms = (("prefill_tokens", 1.0),)
DECODE: Terms = (("decode_sequences", 1.0),)
ROWS: Terms = (("rows", 1.0),)
SEQUENCES: Terms = (("sequences", 1.0),)


def scaled(terms: Terms, factor: float) -> Terms:
    """Multiply a linear form by a number."""
    return tuple((feature, coefficient * factor) for feature, coefficient in terms)


def boundary_node() -> Node:
    """Return the node after which the prompts of a step may decode (rule PH-1)."""
    return Node(name="boundary", op="boundary", module="boundary")


@lru_cache(maxsize=16)
def single_device(model: ModelSpec, precision: Precision, kind: StepKind) -> Blueprint:
    """Return the blueprint of one step on one device, before any primitive is applied.

    Parameters
    ----------
    model : ModelSpec
    precision : Precision
    kind : str
        Which token sets the step carries: ``prefill``, ``decode`` or ``mixed``.
    """
    work = _Work(model, precision, kind)
    attention = {key: work.told(work.attention(*key), key[0]) for key in dict.fromkeys(map(_first_half, model.layers))}
    ffn = {key: work.told(work.ffn_or_moe(*key), key[0]) for key in dict.fromkeys(map(_second_half, model.layers))}
    units = [Unit(body=work.host("schedule"), layer=-1), Unit(body=work.embedding(), layer=-1)]
    for index, layer in enumerate(model.layers):
        units.append(Unit(body=attention[_first_half(layer)], layer=index))
        units.append(Unit(body=ffn[_second_half(layer)], layer=index))
    units.append(Unit(body=work.told(work.head(), model), layer=-1))
    return Blueprint(kind=kind, stages=(tuple(units),))


def _first_half(layer: Layer) -> tuple[Attention, bool]:
    return layer.attention, layer.post_norms


def _second_half(layer: Layer) -> tuple[Ffn | Moe, bool]:
    return layer.ffn, layer.post_norms


class _Work:
    def __init__(self, model: ModelSpec, precision: Precision, kind: StepKind) -> None:
        self.model, self.precision = model, precision
        self.act = precision.activation_bytes
        self.kv = precision.kv_bytes
        self.prefills = kind != "decode"
        self.decodes = kind != "prefill"

    def told(self, body: Body, part: WithFormats) -> Body:
        """Return a body whose products tell the format of their weights, where most weights have another one."""
        formats = {
            node.name: format_of(self.precision, self.model, node.name, part)
            for node in body.nodes
            if node.op in ("gemm", "grouped_gemm")
        }
        other = {name: found for name, found in formats.items() if found != self.precision.weights}
        nodes = (replace(node, weights=other[node.name]) if node.name in other else node for node in body.nodes)
        return replace(body, nodes=tuple(nodes)) if other else body

    def moved(self, elements: float, terms: Terms = TOKENS) -> Terms:
        return scaled(terms, elements * self.act)

    def norm(self, name: str, module: str, terms: Terms = TOKENS) -> Node:
        h = self.model.hidden
        return Node(name=name, op="memory", module=module, amount=self.moved(2 * h, terms), width=h)

    def residual(self, name: str, module: str) -> Node:
        h = self.model.hidden
        return Node(name=name, op="memory", module=module, amount=self.moved(3 * h), width=h, fused=True)

    def added(self, build: BodyBuilder, module: str, last: int, post_norm: bool) -> Body:
        """Return the body of a module whose output, normed or as it is, is added to the residual stream."""
        if post_norm:
            last = build.add(self.norm(f"{module}_post_norm", module), last)
        return build.build(build.add(self.residual(f"{module}_add", module), last, INPUT))

    def linear(self, name: str, module: str, n: int, k: int, rule: str, terms: Terms = TOKENS) -> Node:
        return Node(name=name, op="gemm", module=module, amount=terms, n=n, k=k, rule=rule, width=n)

    def host(self, name: str) -> Body:
        build = BodyBuilder(name)
        build.add(Node(name=name, op="schedule", module="host", amount=SEQUENCES, stream="host"), INPUT)
        return build.build(0)

    def embedding(self) -> Body:
        h = self.model.hidden
        build = BodyBuilder("embedding")
        node = Node(
            name="embedding",
            op="memory",
            module="embedding",
            amount=self.moved(2 * h),
            rule="embedding",
            width=h,
        )
        return build.build(build.add(node, INPUT))

    def head(self) -> Body:
        h, vocab = self.model.hidden, self.model.vocab
        build = BodyBuilder("lm_head")
        norm = build.add(self.norm("final_norm", "lm_head", ROWS), INPUT)
        logits = build.add(self.linear("lm_head", "lm_head", vocab, h, "lm_head", ROWS), norm)
        if self.model.logit_cap is not None:
            cap = Node(
                name="logits_cap", op="memory", module="lm_head", amount=self.moved(2 * vocab, ROWS), width=vocab
            )
            logits = build.add(cap, logits)
        sample = Node(name="sample", op="sample", module="host", amount=SEQUENCES, stream="host")
        last = build.add(sample, logits)
        if self.prefills:
            build.add(boundary_node(), last, kind="boundary")
        return build.build(last)

    def attention(self, a: Attention, post_norm: bool) -> Body:
        return self._latent_attention(a, post_norm) if a.kind == "mla" else self._attention(a, post_norm)

    def _cores(self, build: BodyBuilder, a: Attention, ready: int, cache: int) -> list[int]:
        """Add the K/V read and one attention node per token set; return their positions."""
        read = build.add(Node(name="kv_read", op="kv_read", module="attention"))
        variant = Variant(window=a.sliding_window)
        found = []
        for name, present in (("attention_prefill", self.prefills), ("attention_decode", self.decodes)):
            if not present:
                continue
            core = Node(
                name=name, op=name, module="attention",
                amount=PREFILL if name == "attention_prefill" else DECODE,
                heads=a.num_heads, kv_heads=a.num_kv_heads, qk_dim=a.head_dim, v_dim=a.v_head_dim,
                variant=variant, rule="heads", width=a.num_heads * a.v_head_dim,
            )  # fmt: skip
            position = build.add(core, ready)
            build.edge(cache, position, "kv")
            build.edge(read, position, "kv")
            found.append(position)
        return found

    def _attention(self, a: Attention, post_norm: bool) -> Body:
        h = self.model.hidden
        q, k, v = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.num_kv_heads * a.v_head_dim
        shaped = Node(
            name="", op="memory", module="attention", heads=a.num_heads, kv_heads=a.num_kv_heads, qk_dim=a.head_dim,
            v_dim=a.v_head_dim,
        )  # fmt: skip
        build = BodyBuilder("attention")
        norm = build.add(self.norm("attention_norm", "attention"), INPUT)
        qkv = replace(shaped, name="qkv_proj", op="gemm", amount=TOKENS, n=q + k + v, k=h, rule="qkv", width=q + k + v)
        ready = build.add(qkv, norm)
        if a.rotary or a.qk_norm:
            name = "qk_norm_rope" if a.qk_norm else "rope"
            rope = replace(shaped, name=name, amount=self.moved(2 * (q + k)), rule="heads", width=q + k + v)
            ready = build.add(rope, ready)
        stored = scaled(TOKENS, (k + v) * (self.act + self.kv))
        write = replace(shaped, name="kv_write", amount=stored, rule="heads", width=k + v)
        cache = build.add(write, ready)
        cores = self._cores(build, a, ready, cache)
        out = build.add(self.linear("o_proj", "attention", h, a.num_heads * a.v_head_dim, "attention_out"), *cores)
        return self.added(build, "attention", out, post_norm)

    def _latent_attention(self, a: Attention, post_norm: bool) -> Body:
        h, heads = self.model.hidden, a.num_heads
        nope, rope, latent = a.qk_nope_head_dim or 0, a.qk_rope_head_dim or 0, a.kv_lora_rank or 0
        build = BodyBuilder("attention")
        norm = build.add(self.norm("attention_norm", "attention"), INPUT)
        q_in, q_width = norm, h
        if a.q_lora_rank is not None:
            q_a = build.add(self.linear("q_a_proj", "attention", a.q_lora_rank, h, "replicate"), norm)
            q_norm = Node(
                name="q_a_norm", op="memory", module="attention", amount=self.moved(2 * a.q_lora_rank),
                width=a.q_lora_rank,
            )  # fmt: skip
            q_in, q_width = build.add(q_norm, q_a), a.q_lora_rank
        q_b = build.add(self.linear("q_b_proj", "attention", heads * a.head_dim, q_width, "columns"), q_in)
        kv_a = build.add(self.linear("kv_a_proj", "attention", latent + rope, h, "replicate"), norm)
        kv_norm = Node(
            name="kv_a_norm_rope", op="memory", module="attention", amount=self.moved(2 * (latent + rope)),
            width=latent + rope,
        )  # fmt: skip
        latents = build.add(kv_norm, kv_a)
        write = Node(
            name="kv_write", op="memory", module="attention",
            amount=scaled(TOKENS, (latent + rope) * (self.act + self.kv)), width=latent + rope,
        )  # fmt: skip
        cache = build.add(write, latents)
        read = build.add(Node(name="kv_read", op="kv_read", module="attention"))
        outputs = []
        if self.prefills:
            expand = self.linear(
                "kv_b_proj",
                "attention",
                heads * (nope + a.v_head_dim),
                latent,
                "columns",
                (("prefill_keys", 1.0),),
            )
            expanded = build.add(expand, latents)
            build.edge(cache, expanded, "kv")
            build.edge(read, expanded, "kv")
            core = Node(
                name="attention_prefill", op="attention_prefill", module="attention", amount=PREFILL,
                heads=heads, kv_heads=heads, qk_dim=a.head_dim, v_dim=a.v_head_dim, rule="latent_heads",
                width=heads * a.v_head_dim,
            )  # fmt: skip
            position = build.add(core, q_b, expanded)
            build.edge(cache, position, "kv")
            build.edge(read, position, "kv")
            outputs.append(position)
        if self.decodes:
            absorb = self.linear("q_absorb", "attention", heads * latent, nope, "heads_columns", DECODE)
            absorbed = build.add(absorb, q_b)
            core = Node(
                name="attention_decode", op="attention_decode", module="attention", amount=DECODE, heads=heads,
                kv_heads=1, qk_dim=latent + rope, v_dim=latent, shared_kv=True, rule="latent_heads",
                width=heads * latent,
            )  # fmt: skip
            position = build.add(core, absorbed)
            build.edge(cache, position, "kv")
            build.edge(read, position, "kv")
            value = self.linear("v_absorb", "attention", heads * a.v_head_dim, latent, "heads_columns", DECODE)
            outputs.append(build.add(value, position))
        out = build.add(self.linear("o_proj", "attention", h, heads * a.v_head_dim, "attention_out"), *outputs)
        return self.added(build, "attention", out, post_norm)

    def ffn_or_moe(self, f: Ffn | Moe, post_norm: bool) -> Body:
        return self._moe(f, post_norm) if isinstance(f, Moe) else self._ffn(f, post_norm)

    def _act(self, name: str, module: str, inner: int, gated: bool, terms: Terms, rule: str) -> Node:
        moved = (3 if gated else 2) * inner
        return Node(name=name, op="memory", module=module, amount=self.moved(moved, terms), rule=rule, width=inner)

    def _ffn(self, f: Ffn, post_norm: bool) -> Body:
        h, inner = self.model.hidden, f.intermediate
        build = BodyBuilder("ffn")
        norm = build.add(self.norm("ffn_norm", "ffn"), INPUT)
        up = build.add(self.linear("ffn_up", "ffn", inner * (2 if f.gated else 1), h, "ffn_up"), norm)
        act = build.add(self._act("ffn_act", "ffn", inner, f.gated, TOKENS, "elementwise"), up)
        down = build.add(self.linear("ffn_down", "ffn", h, inner, "ffn_down"), act)
        return self.added(build, "ffn", down, post_norm)

    def _moe(self, f: Moe, post_norm: bool) -> Body:
        h, inner = self.model.hidden, f.expert_intermediate
        routed = scaled(TOKENS, f.top_k)
        build = BodyBuilder("moe")
        norm = build.add(self.norm("moe_norm", "moe"), INPUT)
        gate = build.add(self.linear("gate", "moe", f.num_experts, h, "replicate"), norm)
        permute = Node(
            name="dispatch",
            op="memory",
            module="moe",
            amount=self.moved(2 * h, routed),
            rule="dispatch",
            width=h,
            included=True,
        )
        dispatch = build.add(permute, gate, norm)
        up_width = inner * (2 if f.gated else 1)
        up = Node(
            name="expert_up", op="grouped_gemm", module="moe", amount=routed, n=up_width, k=h, experts=f.num_experts,
            num_experts=f.num_experts, top_k=f.top_k, rule="expert_up", width=up_width,
        )  # fmt: skip
        act = replace(self._act("expert_act", "moe", inner, f.gated, routed, "expert_act"), included=True)
        down = Node(
            name="expert_down", op="grouped_gemm", module="moe", amount=routed, n=h, k=inner, experts=f.num_experts,
            num_experts=f.num_experts, top_k=f.top_k, rule="expert_down", width=h,
        )  # fmt: skip
        last = build.add(down, build.add(act, build.add(up, dispatch)))
        combine = Node(
            name="combine",
            op="memory",
            module="moe",
            amount=self.moved(2 * h, routed),
            rule="combine",
            width=h,
            included=True,
        )
        aggregate = Node(
            name="aggregate",
            op="memory",
            module="moe",
            amount=self.moved((f.top_k + 1) * h),
            rule="linear",
            width=h,
            included=True,
        )
        total = build.add(aggregate, build.add(combine, last))
        if f.num_shared_experts:
            shared = f.shared_intermediate
            s_up = self.linear("shared_up", "moe", shared * (2 if f.gated else 1), h, "columns")
            s_act = self._act("shared_act", "moe", shared, f.gated, TOKENS, "elementwise")
            s_down = self.linear("shared_down", "moe", h, shared, "rows")
            parts = [build.add(s_up, norm)]
            if f.shared_gate:  # scaling the inner activations scales the output, whichever part of it a rank has
                parts.append(build.add(self.linear("shared_gate", "moe", 1, h, "replicate"), norm))
            s_last = build.add(s_down, build.add(s_act, *parts))
            add = Node(
                name="shared_add",
                op="memory",
                module="moe",
                amount=self.moved(3 * h),
                rule="linear",
                width=h,
                fused=True,
            )
            total = build.add(add, total, s_last)
        return self.added(build, "moe", total, post_norm)
