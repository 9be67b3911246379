"""What a node of the graph does on one rank: FLOPs, bytes moved, and what its amount counts.

Element-wise work (norms, activations, softmax, rotary embedding) counts as bytes, not as FLOPs. Each matrix is read
once, each input and output once; the scores of attention stay on chip (Dao et al., "FlashAttention",
arXiv:2205.14135).
"""

from __future__ import annotations

from typing import Final

from clustersim.cost.precision import Precision
from clustersim.graph.batch import Features
from clustersim.graph.blueprint import COLLECTIVE_OPS, HOST_OPS, TRANSFER_OPS, Node
from clustersim.graph.prices.pricer import active_experts
from clustersim.graph.prices.table import amount, node_amount

AMOUNT_OF: Final = {
    "gemm": "rows",
    "grouped_gemm": "expert_rows",
    "attention_prefill": "queries",
    "attention_decode": "sequences",
    "memory": "bytes",
    **dict.fromkeys(HOST_OPS, "sequences"),
    **dict.fromkeys((*COLLECTIVE_OPS, *TRANSFER_OPS), "payload_bytes"),
}
"""Operator → what its amount counts; structural nodes have none."""


def flops(node: Node, features: Features, s: int) -> float:
    """Return the FLOPs of ``node`` on one rank at SP coordinate ``s``.

    A product of m×k by k×n takes 2·m·n·k; attention takes 2 per attended pair, head and element of the query and
    of the value.
    """
    match node.op:
        case "gemm" | "grouped_gemm":
            return 2.0 * amount(node.amount, features, s) * node.n * node.k
        case "attention_prefill":
            return 2.0 * features[f"pairs{node.variant}"][s] * node.heads * (node.qk_dim + node.v_dim)
        case "attention_decode":
            return 2.0 * features[f"decode_keys{node.variant}"][s] * node.heads * (node.qk_dim + node.v_dim)
        case _:
            return 0.0


def bytes_moved(node: Node, features: Features, s: int, precision: Precision) -> float:
    """Return the bytes that ``node`` moves on one rank: to and from device memory, or as payload between ranks.

    Parameters
    ----------
    node : Node
    features : Features
        Numbers of the batch.
    s : int
        SP coordinate.
    precision : Precision
        Number formats.
    """
    act = precision.activation_bytes
    count = node_amount(node, features, s)
    match node.op:
        case "gemm":
            return node.n * node.k * precision.bytes_of(node.weights) + count * (node.n + node.k) * act
        case "grouped_gemm":
            visited = active_experts(node, count)
            return visited * node.n * node.k * precision.bytes_of(node.weights) + count * (node.n + node.k) * act
        case "attention_prefill" | "attention_decode":
            keys = features[keys_feature(node)][s]
            ends = count * node.heads * (node.qk_dim + node.v_dim) * act
            return ends + keys * key_elements(node) * (act if reads_activations(node) else precision.kv_bytes)
        case "schedule" | "sample":
            return 0.0
        case _:
            return count


def keys_feature(node: Node) -> str:
    """Return the feature that counts the keys which an attention node reads."""
    prefix = "prefill_keys" if node.op == "attention_prefill" else "decode_keys"
    return prefix + node.variant.text


def key_elements(node: Node) -> int:
    """Return the elements that an attention node reads per key; a latent is key and value at once."""
    return node.kv_heads * (node.qk_dim if node.shared_kv else node.qk_dim + node.v_dim)


def reads_activations(node: Node) -> bool:
    """Whether the keys of an attention node were expanded from latents just now, rather than read from the cache."""
    return node.rule == "latent_heads" and not node.shared_kv
