"""Reading configurations: the families, the keys that repositories use, and every kind of mistake."""

from __future__ import annotations

import pytest
from model_configs import GPT_OSS, LATENT, LLAMA, OPT, QWEN_MOE

from clustersim.errors import InputError
from clustersim.model import Ffn, Moe, model_from_config
from clustersim.model.weights import total_parameters


def read(config, **changes):
    return model_from_config(config | changes, "toy", "test")


def attention(config, layer=0, **changes):
    return read(config, **changes).layers[layer].attention


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def problems(config, **changes):
    with pytest.raises(InputError) as caught:
        read(config, **changes)
    return {problem.path: problem.message for problem in caught.value.problems}


def windows(config, **changes):
    return [layer.attention.sliding_window for layer in read(config, **changes).layers]


def sparse(config, **changes):
    return [isinstance(layer.ffn, Moe) for layer in read(config, **changes).layers]


def test_llama_fields_land_where_they_belong():
    model = read(LLAMA)
    assert (model.hidden, model.vocab, len(model.layers), model.max_positions) == (64, 1000, 4, 2048)
    assert (model.name, model.source, model.norm, model.learned_positions) == ("toy", "test", "rms", 0)
    layer = model.layers[0]
    assert (layer.attention.kind, layer.attention.num_heads, layer.attention.num_kv_heads) == ("gqa", 8, 2)
    assert (layer.attention.head_dim, layer.attention.v_head_dim) == (8, 8)
    assert layer.ffn == Ffn(intermediate=100)
    assert model.unused_keys == ()


def test_equal_layers_are_one_value():
    layers = read(LATENT).layers
    assert len({id(layer) for layer in layers}) == 2


@pytest.mark.parametrize(("kv_heads", "kind"), [(8, "mha"), (4, "gqa"), (1, "mqa"), (None, "mha")])
def test_kind_follows_the_kv_heads(kv_heads, kind):
    assert attention(LLAMA, num_key_value_heads=kv_heads).kind == kind


@pytest.mark.parametrize("key", ["n_head_kv", "num_kv_heads", "multi_query_group_num", "num_attention_groups"])
def test_kv_heads_are_found_under_other_names(key):
    config = without(LLAMA, "num_key_value_heads") | {key: 4}
    assert attention(config).num_kv_heads == 4


@pytest.mark.parametrize("key", ["moe_num_experts", "n_routed_experts", "num_local_experts"])
def test_experts_are_found_under_other_names(key):
    assert read(without(QWEN_MOE, "num_experts") | {key: 8}).layers[0].ffn.num_experts == 8


def test_head_dim_is_not_computed_when_it_is_given():
    assert attention(LLAMA, head_dim=16).head_dim == 16


def test_language_model_is_found_in_a_nested_configuration():
    config = {
        "model_type": "some_vision_model",
        "vision_config": {"hidden_size": 7},
        "hidden_size": 9,
        "tie_word_embeddings": True,
        "text_config": without(LLAMA, "tie_word_embeddings"),
    }
    model = read(config)
    assert (model.hidden, model.tied_embeddings) == (64, True)
    assert model.unused_keys == ("hidden_size", "vision_config")


def test_problem_in_a_nested_configuration_has_its_whole_path():
    assert list(problems({"text_config": without(LLAMA, "vocab_size")})) == ["text_config.vocab_size"]


def test_qwen2_has_biases_on_q_k_v_only():
    found = attention(LLAMA, model_type="qwen2")
    assert (found.qkv_bias, found.out_bias, found.qk_norm) == (True, False, False)


def test_llama_attention_bias_is_on_every_projection():
    found = attention(LLAMA, attention_bias=True)
    assert (found.qkv_bias, found.out_bias) == (True, True)
    assert read(LLAMA, mlp_bias=True).layers[0].ffn.bias


def test_qwen3_norms_queries_and_keys():
    assert attention(LLAMA, model_type="qwen3").qk_norm


def test_opt_has_learned_positions_biases_layer_norms_and_one_table():
    model = read(OPT)
    assert (model.learned_positions, model.norm, model.tied_embeddings) == (2050, "layer", True)
    assert model.layers[0].ffn == Ffn(intermediate=256, gated=False, bias=True)
    found = model.layers[0].attention
    assert (found.kind, found.qkv_bias, found.out_bias, found.rotary) == ("mha", True, True, False)


def test_mixtral_experts_have_the_width_of_the_ffn():
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert read(config).layers[3].ffn == Moe(num_experts=8, top_k=2, expert_intermediate=100)


GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 128,
}  # fmt: skip


def test_gemma_2_norms_behind_its_modules_and_caps_scores_and_logits():
    model = read(GEMMA2)
    first, second = model.layers[:2]
    assert all(layer.post_norms for layer in model.layers)
    assert (model.logit_cap, model.scaled_embedding, model.tied_embeddings, model.vocab) == (30.0, True, True, 256_000)
    assert (first.attention.score_cap, first.attention.query_scalar, first.attention.head_dim) == (50.0, 256, 256)
    assert (first.attention.sliding_window, second.attention.sliding_window) == (4096, None)
    assert (model.layers[2:], first.ffn.gated, model.unused_keys) == (model.layers[:2], True, ())


def test_what_a_file_says_goes_before_what_its_family_has():
    model = read(GEMMA2, head_dim=32, final_logit_softcapping=None, attn_logit_softcapping=20, sliding_window=8)
    attention = model.layers[0].attention
    assert (attention.head_dim, attention.score_cap, attention.sliding_window, model.logit_cap) == (32, 20.0, 8, None)


def test_gemma_3_sees_all_tokens_in_one_layer_of_six_and_norms_queries():
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 13, "intermediate_size": 128}
    model = read({"model_type": "gemma3", "text_config": {**text, "sliding_window": 512}, "vision_config": {"a": 1}})
    windows = [layer.attention.sliding_window for layer in model.layers]
    assert windows == [*[512] * 5, None, *[512] * 5, None, 512]
    attention = model.layers[0].attention
    assert (attention.num_heads, attention.num_kv_heads, attention.qk_norm, attention.score_cap) == (8, 4, True, None)
    assert (model.vocab, model.logit_cap, model.unused_keys) == (262_208, None, ("vision_config",))


def test_gpt_oss_slides_every_other_layer_from_the_first():
    assert windows(GPT_OSS) == [128, None, 128, None]
    found = attention(GPT_OSS)
    assert (found.sinks, found.qkv_bias, found.out_bias) == (True, True, True)
    assert read(GPT_OSS).layers[0].ffn == Moe(
        num_experts=8, top_k=2, expert_intermediate=100, bias=True, router_bias=True
    )


def test_layer_types_say_which_layers_slide():
    types = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    assert windows(GPT_OSS, layer_types=types) == [None, None, 128, None]


def test_mistral_slides_everywhere():
    assert windows(LLAMA, model_type="mistral", sliding_window=4096) == [4096] * 4


def test_qwen2_slides_above_max_window_layers_only_when_it_says_so():
    config = LLAMA | {"model_type": "qwen2", "sliding_window": 512, "max_window_layers": 3}
    assert windows(config, use_sliding_window=True) == [None, None, None, 512]
    assert windows(config, use_sliding_window=False) == [None] * 4


def test_sliding_window_pattern_leaves_each_nth_layer_full():
    assert windows(LLAMA, sliding_window=512, sliding_window_pattern=3) == [512, 512, None, 512]


def test_latent_attention_has_one_cached_head_and_two_widths():
    found = attention(LATENT)
    assert (found.kind, found.num_heads, found.num_kv_heads) == ("mla", 4, 1)
    assert (found.head_dim, found.v_head_dim) == (12, 6)
    assert (found.q_lora_rank, found.kv_lora_rank) == (30, 20)
    assert attention(LATENT, q_lora_rank=None).q_lora_rank is None


def test_deepseek_has_dense_layers_first_and_shared_experts():
    model = read(LATENT)
    assert model.layers[0].ffn == Ffn(intermediate=100)
    assert model.layers[1].ffn == Moe(
        num_experts=16,
        top_k=4,
        expert_intermediate=10,
        num_shared_experts=2,
        shared_intermediate=20,
        router_bias=True,
    )
    assert not read(LATENT, topk_method="greedy").layers[1].ffn.router_bias


def test_qwen2_moe_gives_the_width_of_its_shared_expert():
    config = QWEN_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 40}
    found = read(config).layers[0].ffn
    assert (found.num_shared_experts, found.shared_intermediate, found.shared_gate) == (1, 40, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_shared_experts": 0}, (0, 0)),
        ({"n_shared_experts": 3}, (3, 30)),
        ({"num_shared_experts": 3, "moe_shared_expert_intermediate_size": 7}, (3, 21)),
        ({"moe_shared_expert_intermediate_size": 7}, (1, 7)),
        ({"shared_expert_intermediate_size": 0}, (0, 0)),
        ({"n_shared_experts": 2, "shared_expert_intermediate_size": 40}, (2, 40)),
    ],
)
def test_shared_experts_and_their_width_together(changes, expected):
    found = read(QWEN_MOE, **changes).layers[0].ffn
    assert (found.num_shared_experts, found.shared_intermediate) == expected


def test_dense_layers_may_have_a_width_of_their_own():
    model = read(QWEN_MOE, mlp_only_layers=[0], intermediate_size_mlp=300)
    assert model.layers[0].ffn == Ffn(intermediate=300)


@pytest.mark.parametrize("experts", [0, None])
def test_family_without_experts_is_dense_when_there_are_none(experts):
    assert read(LLAMA, num_experts=experts).layers[0].ffn == Ffn(intermediate=100)


def test_family_without_experts_has_them_when_they_are_named():
    changes = {"num_experts": 1, "num_experts_per_tok": 1}
    assert read(LLAMA, **changes).layers[0].ffn == Moe(num_experts=1, top_k=1, expert_intermediate=100)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True, True]),
        ({"mlp_only_layers": [1]}, [True, False, True, True]),
        ({"decoder_sparse_step": 3}, [False, False, True, False]),
        ({"interleave_moe_layer_step": 2}, [False, True, False, True]),
        ({"moe_layer_freq": 2}, [True, False, True, False]),
        ({"moe_layer_freq": [0, 1, 1, 0]}, [False, True, True, False]),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, [False, True, True, True]),
        ({"first_k_dense_replace": 3}, [False, False, False, True]),
    ],
)
def test_layers_with_experts(changes, expected):
    assert sparse(QWEN_MOE, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "fp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "int4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "int8"),
    ],
)
def test_weight_format_of_the_checkpoint(changes, expected):
    assert read(LLAMA, **changes).default_weight_dtype == expected


def test_unknown_format_is_refused():
    assert "'int3'" in problems(LLAMA, torch_dtype="int3")["torch_dtype"]
    for config in (
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "awq", "bits": 8},
        {"quant_method": "bitsandbytes"},
    ):
        assert list(problems(LLAMA, quantization_config=config)) == ["quantization_config"]


def test_unknown_family_is_accepted_and_tells_what_was_not_read():
    config = LLAMA | {"model_type": "novel", "hidden_act": "silu", "rms_norm_eps": 1e-6, "frobnicate": 3}
    model = read(config)
    assert model.layers == read(LLAMA).layers
    assert model.unused_keys == ("frobnicate",)


def test_unknown_family_must_say_what_its_ffn_and_norm_are():
    assert list(problems(LLAMA, model_type="novel")) == ["mlp_gated_linear_units", "rms_norm_eps"]


def test_activation_that_may_be_gated_or_not_does_not_say_it():
    found = problems(LLAMA, model_type="novel", hidden_act="gelu", rms_norm_eps=1e-6)
    assert list(found) == ["mlp_gated_linear_units"]


def test_unknown_family_may_say_what_its_ffn_and_norm_are():
    changes = {"model_type": "novel", "mlp_gated_linear_units": False, "layer_norm_eps": 1e-5, "use_qk_norm": True}
    model = read(LLAMA, **changes)
    assert (model.norm, model.layers[0].ffn.gated, model.layers[0].attention.qk_norm) == ("layer", False, True)


def test_prediction_layers_are_not_part_of_the_model():
    model = read(LATENT, num_nextn_predict_layers=1)
    assert len(model.layers) == 4
    assert "num_nextn_predict_layers" in model.unused_keys


def test_alias_of_equal_value_counts_as_read_and_of_another_does_not():
    assert read(GPT_OSS, experts_per_token=2).unused_keys == ()
    assert read(GPT_OSS, experts_per_token=3).unused_keys == ("experts_per_token",)


def test_every_missing_field_is_named_with_what_else_would_do():
    found = problems({"model_type": "llama"})
    assert list(found) == [
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    ]
    assert "num_layers or n_layer or n_layers would also do" in found["num_hidden_layers"]


def test_misspelt_field_is_named():
    config = without(LLAMA, "num_hidden_layers") | {"num_hiden_layers": 4}
    assert "'num_hiden_layers' a misspelling" in problems(config)["num_hidden_layers"]


def test_missing_model_type_is_refused():
    assert list(problems(without(LLAMA, "model_type"))) == ["model_type"]


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_family_with_experts_must_name_them(family):
    assert {"num_experts", "num_experts_per_tok"} <= set(problems(LLAMA, model_type=family, sliding_window=8))


@pytest.mark.parametrize("value", [0, -4, 4096.0, "4096", True, [64]])
@pytest.mark.parametrize("key", ["hidden_size", "num_key_value_heads", "intermediate_size", "head_dim"])
def test_size_that_is_no_positive_whole_number_is_refused(key, value):
    found = problems(LLAMA, **{key: value})
    assert list(found) == [key]
    assert repr(value) in found[key]


@pytest.mark.parametrize(
    ("changes", "path", "part"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "3 K/V heads do not divide 8 query heads"),
        ({"num_attention_heads": 6}, "head_dim", "6 heads do not divide the hidden size 64"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers", "from 1 to 10000"),
        ({"vocab_size": 10**12}, "vocab_size", "from 1 to 16777216"),
        ({"layer_types": ["full_attention"]}, "layer_types", "1 entry, but the model has 4 layers"),
        ({"layer_types": "full"}, "layer_types", "expected a list"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window", "is missing"),
        ({"attention_bias": "yes"}, "attention_bias", "expected true or false, but found 'yes'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "expected true or false"),
    ],
)
def test_impossible_value_is_refused(changes, path, part):
    assert part in problems(LLAMA, **changes)[path]


@pytest.mark.parametrize(
    ("changes", "path", "part"),
    [
        ({"num_experts_per_tok": 17}, "num_experts_per_tok", "only 16"),
        ({"mlp_only_layers": [4]}, "mlp_only_layers", "layer 4 does not exist"),
        ({"moe_layer_freq": [1]}, "moe_layer_freq", "1 entry"),
        ({"mlp_layer_types": ["dense", "sparse", "odd", "odd"]}, "mlp_layer_types", "'odd'"),
    ],
)
def test_impossible_experts_are_refused(changes, path, part):
    assert part in problems(QWEN_MOE, **changes)[path]


@pytest.mark.parametrize("key", ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_latent_attention_needs_each_width(key):
    assert list(problems(without(LATENT, key))) == [key]


@pytest.mark.parametrize(
    ("changes", "path", "part"),
    [
        ({"index_topk": 2048}, "index_topk", "beyond 2048 tokens"),
        ({"linear_attn_config": {"num_heads": 2}}, "linear_attn_config", "recurrent state"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads", "recurrent state"),
        ({"mamba_d_state": 128}, "mamba_d_state", "recurrent state"),
        (
            {"layer_types": ["linear_attention"] * 4},
            "layer_types",
            "'linear_attention' layers are not modelled",
        ),
        ({"compress_ratios": [4]}, "compress_ratios", "several tokens"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size", "chunks"),
        ({"use_parallel_residual": True}, "use_parallel_residual", "side by side"),
        ({"model_type": "olmo2"}, "model_type", "'olmo2' norms the outputs of attention and FFN and not their inputs"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention", "later tokens"),
        ({"final_logit_softcapping": -3}, "final_logit_softcapping", "expected a number above 0, but found -3"),
        ({"attn_logit_softcapping": "50"}, "attn_logit_softcapping", "expected a number above 0, but found '50'"),
        ({"model_type": "falcon"}, "model_type", "side by side"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(changes, path, part):
    assert part in problems(LLAMA, **changes)[path]


@pytest.mark.parametrize("off", [None, False, 0, []])
def test_feature_that_is_switched_off_is_no_reason_to_refuse(off):
    assert read(LLAMA, index_topk=off, use_parallel_residual=off).hidden == 64


@pytest.mark.parametrize("changes", [{"word_embed_proj_dim": 32}, {"do_layer_norm_before": False}])
def test_small_opt_with_norms_after_the_residual_is_refused(changes):
    assert list(problems(OPT, **changes)) == list(changes)


MINIMAX = {
    "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256,
    "num_experts_per_tok": 8, "vocab_size": 200064, "use_qk_norm": True, "attn_type_list": [1] * 62,
}  # fmt: skip


def test_attention_of_type_1_is_plain_attention():
    assert round(total_parameters(model_from_config(MINIMAX, "minimax-m2")) / 1e7) == 22_869


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ([1] * 60 + [0, 1], "1 of 62 layers have lightning attention (0), which is not modelled"),
        ([1] * 61, "62"),
        ("full", "expected a list"),
        ([1] * 61 + [2], "expected 0 or 1, but found 2"),
    ],
)
def test_attention_of_another_type_is_refused(kinds, message):
    with pytest.raises(InputError) as caught:
        model_from_config(MINIMAX | {"attn_type_list": kinds}, "minimax-m1")
    (problem,) = caught.value.problems
    assert problem.path == "attn_type_list"
    assert message in problem.message


def test_model_whose_index_is_not_described_is_taken_for_dense_and_says_so():
    config = {
        "model_type": "glm_moe_dsa", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 100,
    }  # fmt: skip
    (note,) = model_from_config(config, "glm").notes
    assert note.startswith("taken for dense attention")
    with pytest.raises(InputError):
        model_from_config(config | {"index_topk": 2048}, "glm")
