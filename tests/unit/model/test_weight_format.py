"""Number formats of weights by module: what configurations list, what scenarios name, and what both come to.

The right values are of published checkpoints and logs, or counted by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.cost.precision import Precision, dtype_bytes, format_of
from clustersim.errors import InputError
from clustersim.legality.formats import bytes_of, weights_in
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.model.hugging_face import model_from_config
from clustersim.model.weight_parts import MODULES
from clustersim.scenario.parts import load_model
from clustersim.simulation.account import weights_account

KIMI: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "vocab_size": 163840, "max_position_embeddings": 262144, "tie_word_embeddings": False,
}  # fmt: skip
OF_EXPERTS = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True},
        }
    },
    "ignore": [
        "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 2048, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 8192,
}  # fmt: skip
DENSE: dict[str, Any] = {
    key: value for key, value in SMALL.items() if "experts" not in key
} | {"model_type": "llama"}  # fmt: skip


def quantised(config: dict[str, Any], **found: Any) -> ModelSpec:
    return model_from_config({**config, "quantization_config": found}, "m")


def formats(model: ModelSpec, layer: int = 1) -> dict[str, str]:
    """Return the format of every linear map of a layer, as both who simulates and who checks have it."""
    precision = Precision(weights=model.default_weight_dtype)
    parts = {"attention": model.layers[layer].attention, "ffn": model.layers[layer].ffn}
    names = {
        "attention": ("qkv_proj", "o_proj"),
        "ffn": ("expert_up", "expert_down", "gate") if isinstance(parts["ffn"], Moe) else ("ffn_up", "ffn_down"),
    }
    found = {name: (parts[part], name) for part, some in names.items() for name in some}
    found |= {name: (model, name) for name in ("embedding", "lm_head", "norms")}
    one, other = (
        {name: of(precision, model, linear, part) for name, (part, linear) in found.items()}
        for of in (format_of, weights_in)
    )
    assert one == other
    assert all(dtype_bytes(name) == bytes_of(name) for name in one.values())
    return one


def test_kimi_has_4_bit_experts_and_the_rest_in_16() -> None:
    """Kimi-K2.5: 1.0147e12 weights of experts of 4.5 bit, 11.7e9 of 16: 594 GB."""
    account = {one["module"]: one for one in weights_account(quantised(KIMI, **OF_EXPERTS))}
    assert sum(one["bytes"] for one in account.values()) == pytest.approx(594e9, rel=0.001)
    assert {module: one["format"] for module, one in account.items()} == {
        "embedding": "bf16", "lm_head": "bf16", "attention": "bf16", "ffn": "bf16", "experts": "int4-g32",
        "shared_experts": "bf16", "router": "bf16", "norms": "bf16",
    }  # fmt: skip
    assert account["experts"]["parameters"] == 60 * 384 * 3 * 7168 * 2048
    assert account["experts"]["bytes"] == 60 * 384 * 3 * 7168 * 2048 * 4.5 / 8


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("gpt-oss-120b", 65.2),  # the files of openai/gpt-oss-120b
        ("gpt-oss-20b", 13.76),  # of openai/gpt-oss-20b
        ("meta-llama/Llama-3.1-8B-Instruct-FP8", 9.08),
        ("moonshotai/Kimi-K2-Thinking", 594),  # 1.0147e12 weights of experts of 4.5 bit, 11.7e9 of 16; the card: 594 GB
    ],
)
def test_published_checkpoints_have_the_size_of_their_files(name: str, gigabytes: float) -> None:
    found = sum(one["bytes"] for one in weights_account(load_model(name)))
    assert found == pytest.approx(gigabytes * 1e9, rel=0.002)


def test_metas_405b_has_the_ffns_of_inner_layers_in_fp8_alone() -> None:
    """The log of vllm-project/vllm#6746 says 57.75 GiB for each of 8 GPUs; RedHat's checkpoint has other modules."""
    account = weights_account(load_model("meta-llama/Llama-3.1-405B-Instruct-FP8"))
    assert sum(one["bytes"] for one in account) / 8 == pytest.approx(57.75 * 2**30, rel=0.03)
    narrow = [(one["module"], one["parameters"]) for one in account if one["format"] == "fp8"]
    assert narrow == [("ffn", 124 * 3 * 16384 * 53248)]
    other = weights_account(load_model("RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8"))
    assert {one["module"] for one in other if one["format"] == "fp8"} == {"attention", "ffn"}


@pytest.mark.parametrize(
    ("listed", "narrow"),
    [
        ({}, {"qkv_proj", "o_proj", "expert_up", "expert_down"}),
        ({"modules_to_not_convert": ["model.layers.1.self_attn"]}, {"expert_up", "expert_down"}),
        ({"ignored_layers": ["self_attn.q_proj"]}, {"o_proj", "expert_up", "expert_down"}),
        ({"modules_to_not_convert": ["model.layers.2"]}, {"qkv_proj", "o_proj", "expert_up", "expert_down"}),
        ({"ignore": ["re:.*block_sparse_moe.experts.*"]}, {"qkv_proj", "o_proj"}),
        ({"exclude_modules": ["model.layers.*.self_attn*", "lm_head"]}, {"expert_up", "expert_down"}),
        ({"ignore": ["language_model.model.layers.1.self_attn.o_proj"]}, {"qkv_proj", "expert_up", "expert_down"}),
        ({"ignore": ["vision_tower.layers.1.self_attn"]}, {"qkv_proj", "o_proj", "expert_up", "expert_down"}),
        ({"modules_to_not_convert": ["model.layers.1.", "lm_head"]}, set()),  # as lists for AWQ end
        ({"modules_to_not_convert": None, "ignore": ["gate"]}, {"qkv_proj", "o_proj", "expert_up", "expert_down"}),
    ],
)
def test_what_a_checkpoint_lists_stays_in_16_bit(listed: dict[str, Any], narrow: set[str]) -> None:
    model = quantised(SMALL, quant_method="fp8", weight_block_size=[128, 128], **listed)
    assert {name for name, of in formats(model).items() if of == "fp8"} == narrow
    assert {of for name, of in formats(model).items() if name not in narrow} == {"bf16"}


@pytest.mark.parametrize(
    ("found", "name", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4-g128z", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "int4-g32z", 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4-channel", 4),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, "fp8-1x128", 8.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 4.5),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8_PB_WO"}}, "fp8", 8),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4-g32", 4.5),  # 32 bit for each 64 weights
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "int4", 4.125),
    ],
)
def test_scales_and_zero_points_count(found: dict[str, Any], name: str, bits: float) -> None:
    assert formats(quantised(DENSE, **found))["ffn_up"] == name
    assert dtype_bytes(name) == bits / 8


def test_groups_of_compressed_tensors_have_targets_of_their_own() -> None:
    weights = {"num_bits": 8, "type": "float"}
    experts = {"num_bits": 4, "type": "int", "group_size": 64, "symmetric": False}
    groups = {
        "a": {"targets": ["re:.*experts.*"], "weights": experts},
        "b": {"targets": ["re:.*self_attn.*"], "weights": weights},
    }
    model = quantised(SMALL, quant_method="compressed-tensors", config_groups=groups)
    assert model.default_weight_dtype == "int4"  # that of most weights
    found = formats(model)
    assert (found["expert_up"], found["qkv_proj"], found["gate"]) == ("int4-g64z", "fp8", "bf16")


def test_a_group_that_names_modules_comes_before_the_one_of_their_class() -> None:
    wide, narrow = {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "int", "group_size": 128}
    groups = {
        "group_0": {"targets": ["Linear"], "weights": narrow},
        "group_1": {"targets": ["re:.*down_proj"], "weights": wide},
    }
    found = formats(quantised(DENSE, quant_method="compressed-tensors", config_groups=groups))
    assert (found["qkv_proj"], found["ffn_up"], found["ffn_down"]) == ("int4-g128", "int4-g128", "fp8")


def test_null_of_the_language_model_is_not_what_its_whole_says() -> None:
    outer = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    model = model_from_config({**outer, "text_config": {**DENSE, "quantization_config": None}}, "m")
    assert formats(model)["ffn_up"] == "fp8"


def test_mixed_precision_names_the_algorithm_of_each_layer() -> None:
    layers = {
        "model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.1.block_sparse_moe.experts": {"quant_algo": "NVFP4", "group_size": 16},
    }
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    model = quantised(SMALL, **config)
    found, other = formats(model), formats(model, layer=2)
    assert (found["qkv_proj"], found["o_proj"], found["expert_down"]) == ("fp8", "bf16", "fp4")
    assert {other["qkv_proj"], other["expert_down"]} == {"bf16"}


def test_gptq_has_formats_of_its_own_for_some_layers_and_none_for_others() -> None:
    dynamic = {r"-:.*self_attn.*": {}, r".*layers\.1\..*down_proj": {"bits": 8, "group_size": 32}}  # + if unsaid
    model = quantised(DENSE, quant_method="gptq", bits=4, group_size=128, dynamic=dynamic)
    found, other = formats(model), formats(model, layer=2)
    assert (found["qkv_proj"], found["ffn_up"], found["ffn_down"]) == ("bf16", "int4-g128z", "int8-g32z")
    assert other["ffn_down"] == "int4-g128z"


def test_what_modelopt_writes_beside_a_checkpoint_may_stand_in_its_configuration() -> None:
    written = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]}}
    model = model_from_config({**DENSE, **written}, "m")
    assert (formats(model)["qkv_proj"], formats(model)["ffn_up"]) == ("bf16", "fp8")
    outer = {"model_type": "mllama_text", "text_config": DENSE, **written}
    assert formats(model_from_config(outer | {"model_type": "llama"}, "m"))["ffn_up"] == "fp8"


def test_a_format_of_the_kv_cache_is_told_as_not_read() -> None:
    for key, told in (("kv_cache_scheme", {"num_bits": 8, "type": "float"}), ("kv_cache_quant_algo", "FP8")):
        found: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", key: told}
        assert quantised(DENSE, **found).unused_keys == (f"quantization_config.{key}",)
        assert quantised(DENSE, **found | {key: None}).unused_keys == ()


def test_null_is_as_good_as_none() -> None:
    found = formats(quantised(DENSE, quant_method="gptq", bits=None, w_bit=8, group_size=None))
    assert found["ffn_up"] == "int8-g128z"


def test_a_quantised_lm_head_is_one_that_the_configuration_names() -> None:
    assert (
        formats(quantised(DENSE, quant_method="gptq", bits=4, group_size=128, lm_head=True))["lm_head"] == "int4-g128z"
    )
    assert formats(quantised(DENSE, quant_method="gptq", bits=4, group_size=128))["lm_head"] == "bf16"


@pytest.mark.parametrize(
    ("found", "path", "words"),
    [
        ({"quant_method": "quark"}, "quantization_config.quant_method", "unknown method 'quark'"),
        ({}, "quantization_config.quant_method", "is missing; known: awq"),
        ({"quant_method": "gptq", "bits": 4.0}, "quantization_config.bits", "expected a whole number, but found 4.0"),
        ({"quant_method": "mxfp4"}, "quantization_config", "quantises nothing of this model"),  # it has no experts
        ({"quant_method": "fp9"}, "quantization_config.quant_method", "did you mean 'fp8'?"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP5"}, "quantization_config", "did you mean 'NVFP4'?"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "quantization_config.ignore", "expected a list of names"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "quantization_config.ignore", "re:("),
        ({"quant_method": "awq", "group_size": "64"}, "quantization_config.group_size", "expected a whole number"),
        (
            {"quant_method": "modelopt", "quantized_layers": {"re:[": {"quant_algo": "FP8"}}},
            "quantization_config.quantized_layers",
            "expected names with mappings",
        ),
        (
            {"quant_method": "modelopt", "quantized_layers": {"a": {"quant_algo": "NVFP5"}}},
            "quantization_config",
            "did you mean 'NVFP4'?",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"type": "float", "num_bits": 8, "block_structure": "64x64"}}},
            },
            "quantization_config.config_groups",
            "expected groups with weights and targets",
        ),
    ],
)
def test_what_is_not_known_is_named(found: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        quantised(DENSE, **found)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in problem.message


def test_what_a_scenario_names_by_module_comes_before_the_checkpoint() -> None:
    model = quantised(SMALL, quant_method="fp8", modules_to_not_convert=["self_attn"])
    layer = model.layers[0]

    def found(**precision: Any) -> list[str]:
        one = Precision(**precision)
        parts = {"qkv_proj": layer.attention, "expert_up": layer.ffn, "lm_head": model, "gate": layer.ffn}
        each = [format_of(one, model, name, part) for name, part in parts.items()]
        assert each == [weights_in(one, model, name, part) for name, part in parts.items()]
        return each

    assert found(weights="fp8") == ["bf16", "fp8", "bf16", "bf16"]  # its own format: its list holds
    assert found(weights="fp4") == ["fp4", "fp4", "bf16", "bf16"]  # another one: in place of all that it says
    assert found(weights="bf16") == ["bf16", "bf16", "bf16", "bf16"]
    assert found(weights="fp8", modules=(("lm_head", "fp8"), ("attention", "int8"))) == ["int8", "fp8", "fp8", "bf16"]
    assert found(weights="fp8", activations="fp16") == ["fp16", "fp8", "fp16", "fp16"]
    assert found(weights="fp32") == ["fp32"] * 4


def test_a_tied_head_is_the_embedding() -> None:
    tied = model_from_config(DENSE | {"tie_word_embeddings": True}, "m")
    precision = Precision(weights="fp8", modules=(("embedding", "fp8"),))
    assert format_of(precision, tied, "lm_head", tied) == weights_in(precision, tied, "lm_head", tied) == "fp8"


def test_modules_of_a_scenario_are_one_list() -> None:
    with pytest.raises(InputError, match="did you mean 'lm_head'"):
        Precision(modules=(("lm_hed", "fp8"),))
    assert list(MODULES) == [
        "embedding", "lm_head", "attention", "ffn", "experts", "shared_experts", "router", "norms",
    ]  # fmt: skip
