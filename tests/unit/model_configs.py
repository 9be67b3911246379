"""Configurations of round numbers, one per structure, for the tests of the model package."""

from __future__ import annotations

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
QWEN_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 10,
}
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "q_lora_rank": 30,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "intermediate_size": 100,
    "moe_intermediate_size": 10,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "vocab_size": 1000,
}
GPT_OSS = LLAMA | {
    "model_type": "gpt_oss",
    "head_dim": 10,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
}
OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
