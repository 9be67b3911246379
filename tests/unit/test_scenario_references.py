"""Changes of what a scenario refers to by name."""

from __future__ import annotations

import pytest

from clustersim.errors import InputError
from clustersim.scenario.parts import load_model


def test_a_change_of_a_model_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        load_model("llama-3.1-8b", ("config.num_hidden_layer=4",))
    assert str(caught.value) == (
        "--set #1: config.num_hidden_layer: unknown key 'num_hidden_layer'; did you mean 'num_hidden_layers'?"
    )


def test_a_known_key_without_effect_on_speed_may_be_changed() -> None:
    assert load_model("llama-3.1-8b", ("config.rope_theta=1e6",)) == load_model("llama-3.1-8b")
