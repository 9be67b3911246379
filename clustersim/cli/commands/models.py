"""``clustersim models``: the architectures that ship with clustersim, or one in detail."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import Any

import click

from clustersim import catalog
from clustersim.cli.tables import print_facts, print_json, print_table
from clustersim.cost.precision import dtype_bytes
from clustersim.model.architecture import Layer, ModelSpec, Moe
from clustersim.model.kv import kv_bytes_per_token
from clustersim.model.weights import active_parameters, total_parameters
from clustersim.scenario.parts import load_model
from clustersim.simulation.account import weights_account
from clustersim.units import format_bytes


@click.command()
@click.argument("name", required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change: config.num_hidden_layers=4.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """List architectures, or show the one called NAME (or in the file NAME, such as a config.json)."""
    if name is None:
        if overrides:
            raise click.UsageError("--set needs the NAME of a model")
        _list([summary(load_model(known)) for known in catalog.names("scenarios/models")], as_json)
        return
    model = load_model(name, overrides)
    runs = layer_runs(model)
    facts = summary(model) | {
        "weights": weights_account(model),
        "unused_keys": list(model.unused_keys),
        "notes": list(model.notes),
        "source": model.source,
    }
    if as_json:
        layers = [{"first": first, "count": count} | dataclasses.asdict(layer) for first, count, layer in runs]
        print_json(facts | {"layers": layers})
        return
    print_facts(
        {
            "name": model.name,
            "parameters": _short(facts["parameters"]),
            "per token": f"{_short(facts['active_parameters'])} parameters",
            "weights": f"{format_bytes(facts['weight_bytes'])}, most as {model.default_weight_dtype}",
            "K/V per token": f"{format_bytes(facts['kv_bytes_per_token'])} as bf16",
            "hidden": str(model.hidden),
            "vocabulary": f"{model.vocab} ({'tied' if model.tied_embeddings else 'own'} LM head)",
            "positions": "no limit given" if model.max_positions is None else str(model.max_positions),
            "not read": ", ".join(model.unused_keys) or "nothing",
            "source": model.source or "not given",
            **({"note": "; ".join(model.notes)} if model.notes else {}),
        }
    )
    rows = [(_range(first, count), attention_words(layer), ffn_words(layer)) for first, count, layer in runs]
    print_table(("layers", "attention", "FFN"), rows, numbers_from=3)
    weights = [
        (one["module"], one["format"], _short(one["parameters"]), format_bytes(one["bytes"]))
        for one in facts["weights"]
    ]
    print_table(("weights", "format", "parameters", "memory"), weights, numbers_from=2)


def summary(model: ModelSpec) -> dict[str, Any]:
    """Return the main figures of a model; K/V bytes are those of a bf16 cache."""
    parameters = total_parameters(model)
    return {
        "name": model.name,
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "attention": _attention_of_all(model),
        "ffn": ffn_words(model.layers[-1]),
        "parameters": parameters,
        "active_parameters": active_parameters(model),
        "weight_dtype": model.default_weight_dtype,
        "weight_bytes": sum(one["bytes"] for one in weights_account(model)),
        "kv_bytes_per_token": int(kv_bytes_per_token(model, dtype_bytes("bf16"))),
        "max_positions": model.max_positions,
    }


def layer_runs(model: ModelSpec) -> list[tuple[int, int, Layer]]:
    """Return runs of equal layers: (index of the first, how many, the layer)."""
    runs: list[tuple[int, int, Layer]] = []
    first = 0
    for layer, group in groupby(model.layers):
        count = len(list(group))
        runs.append((first, count, layer))
        first += count
    return runs


def attention_words(layer: Layer) -> str:
    """Say what the attention of a layer is: ``gqa 64/8 × 128``."""
    attention = layer.attention
    window = "" if attention.sliding_window is None else f", window {attention.sliding_window}"
    if attention.kind == "mla":
        latent = f"{attention.kv_lora_rank}+{attention.qk_rope_head_dim}"
        return f"mla {attention.num_heads} heads, latent {latent}{window}"
    return f"{attention.kind} {attention.num_heads}/{attention.num_kv_heads} × {attention.head_dim}{window}"


def _attention_of_all(model: ModelSpec) -> str:
    """Say what most is in common: the first layer's attention, and on how many layers it has a window."""
    first = model.layers[0]
    windowed = sum(layer.attention.sliding_window is not None for layer in model.layers)
    mixed = 0 < windowed < len(model.layers)
    return attention_words(first) + (f" on {windowed} of {len(model.layers)}" if mixed else "")


def ffn_words(layer: Layer) -> str:
    """Say what the FFN of a layer is: ``28672`` or ``top 8 of 128 × 768``."""
    ffn = layer.ffn
    if isinstance(ffn, Moe):
        shared = f" + {ffn.num_shared_experts} shared" if ffn.num_shared_experts else ""
        return f"top {ffn.top_k} of {ffn.num_experts} × {ffn.expert_intermediate}{shared}"
    return f"{ffn.intermediate}{' gated' if ffn.gated else ''}"


def _short(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.2f} M"


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first} … {first + count - 1}"


def _list(summaries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(summaries)
        return
    columns = ("model", "attention", "FFN", "layers", "hidden", "parameters", "per token", "K/V per token")
    rows = [
        (
            facts["name"],
            facts["attention"],
            facts["ffn"],
            str(facts["layers"]),
            str(facts["hidden"]),
            _short(facts["parameters"]),
            _short(facts["active_parameters"]),
            format_bytes(facts["kv_bytes_per_token"]),
        )
        for facts in summaries
    ]
    print_table(columns, rows, numbers_from=3)
