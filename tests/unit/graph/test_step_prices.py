"""Step prices of round numbers, so that each can be added up in the head."""

from __future__ import annotations

import pytest

from clustersim.cost.engine import Engine
from clustersim.cost.protocol import Shape
from clustersim.errors import InputError
from clustersim.graph.prices import step_table
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.prices.steps import step_prices as prices_of
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.replay.programs import compile_programs
from tests import round_numbers

# One dense layer on one device, see round_numbers: 2,000 ns at the ends and 4,600 ns besides attention.
FIXED = round_numbers.ENDS_NS + round_numbers.LAYER_NS


def step_prices(stage: int = 0, **deployment: object) -> StepPrices:
    """Step prices of a stage of a deployment of round numbers."""
    given = round_numbers.deployment([(0, 1, 1)], **deployment)
    compiled = compile_programs(Mesh(plan=given.entry.plan), given.entry.blueprints, given.comm)
    return StepPrices(given.entry.pricer, compiled[0, stage])


def test_decode_adds_ten_ns_per_key_to_what_is_fixed():
    price = step_prices().decode(3)
    assert price.base_ns == FIXED
    assert price.counts == (1,)
    assert price.windows == (None,)
    assert [ns(70) for ns in price.ns] == [700]
    assert price.sends == ()


def test_stages_of_as_many_equal_layers_have_one_price_and_others_their_own():
    given = round_numbers.deployment([(0, 1, 1)], layers=6, plan=ParallelPlan(pp=5))
    compiled = compile_programs(Mesh(plan=given.entry.plan), given.entry.blueprints, given.comm)
    programs = [compiled[0, stage] for stage in range(5)]
    found = [prices_of(given.entry.pricer, one) for one in programs]
    layers = [len({*one["decode"].template.node_layer.tolist()}) for one in programs]
    assert found[0] not in found[1:]  # it embeds …
    assert found[4] not in found[:4]  # … and the last one samples
    for one in (1, 2, 3):
        for other in (1, 2, 3):
            assert (found[one] is found[other]) == (layers[one] == layers[other])
    assert 2 <= len({*map(id, found)}) < 5


def test_decode_prices_are_made_once_and_numbered_in_order():
    prices = step_prices()
    first, second = prices.decode(5), prices.decode(2)
    assert prices.decode(5) is first
    assert (first.number, second.number) == (0, 1)
    assert prices.rows["decode"][1][0] is second.row
    assert first.row[list(first.columns)].tolist() == [0]


def test_a_prompt_adds_ten_ns_per_pair():
    """4 tokens after 6: 6·4 + 4·5/2 = 34 pairs."""
    prices = step_prices()
    assert prices.prompts(1, 4, 6, 34, 10, 0, 0) == (FIXED + 340, 0, (340,), ())


def test_a_mixed_step_has_both_attentions_once_per_layer():
    prices = step_prices(layers=2)
    total, number, varying, sends = prices.prompts(1, 4, 0, 10, 4, 3, 50)
    assert (number, varying, sends) == (0, (100, 500), ())
    assert total == round_numbers.ENDS_NS + 2 * (round_numbers.LAYER_NS + 100 + 500)


def test_steps_of_equal_tokens_and_sequences_share_a_row():
    prices = step_prices()
    assert [prices.prompts(*step)[1] for step in ((1, 4, 0, 10, 4, 3, 50), (2, 5, 9, 60, 14, 2, 7))] == [0, 0]
    assert prices.prompts(1, 5, 0, 15, 5, 3, 50)[1] == 1
    assert len(prices.rows["mixed"]) == 2


def test_rows_keep_their_numbers_when_what_is_remembered_is_forgotten(monkeypatch):
    monkeypatch.setattr(step_table, "MOST_ROWS", 1)
    monkeypatch.setattr(step_table, "MOST_PRICES", 1)
    prices = step_prices()
    numbers = [prices.prompts(1, new, 0, 1, new, 0, 0)[1] for new in (4, 5, 4)]
    assert numbers == [0, 1, 2]
    rows = [row.tolist() for row, _ in prices.rows["prefill"]]
    assert rows[0] == rows[2]


def test_a_stage_sends_the_hidden_states_of_its_tokens():
    """1,000 bytes per token at 1 ns each, and 1 µs for the serial step."""
    prices = step_prices(layers=2, plan=ParallelPlan(pp=2))
    assert prices.decode(3).sends == (4_000,)
    assert prices.prompts(1, 5, 0, 15, 5, 0, 0)[3] == (6_000,)
    assert step_prices(1, layers=2, plan=ParallelPlan(pp=2)).decode(3).sends == ()


def test_sp_is_not_supported():
    plan = ParallelPlan(sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="idle"))
    assert not step_prices(plan=plan).supported
    assert step_prices().supported


class Slow(round_numbers.RoundCost):
    """A cost model that takes a second per key or pair."""

    def seconds(self, op: str, shape: Shape):
        """Return the device time of ``op`` in seconds."""
        found = super().seconds(op, shape)
        return found * 1e8 if op.startswith("attention") else found


def test_an_operator_that_takes_a_day_is_an_error_as_the_pricer_words_it():
    prices = step_prices(cost=Slow())
    assert prices.prompts(1, 1, 0, 86_399, 1, 1, 1)[2] == (86_399 * 10**9, 10**9)
    message = r"an operator \(attention_decode\) would take 8.65e\+04 s"
    with pytest.raises(InputError, match=message):
        prices.prompts(1, 1, 0, 86_450, 1, 1, 86_460)
    with pytest.raises(InputError, match=message):
        prices.decode(1).ns[0](86_460)


def test_an_engine_may_launch_decodes_in_a_graph_but_not_beside_prompts():
    engine = Engine(name="gaps", source="a test", launch_s=2e-9, graph_launch_s=1e-9, graph_max_tokens=4)
    prices = step_prices(engine=engine)
    assert [prices.decode(sequences).ns[0](7) for sequences in (4, 5)] == [71, 72]
    assert prices.prompts(1, 1, 0, 1, 1, 2, 7)[2] == (12, 72)


@pytest.mark.parametrize("first", [64, 100])
def test_the_second_value_in_a_range_brings_all_others_there(first: int) -> None:
    prices = step_prices()
    (of_tokens,) = [one.part for one in prices.prefill.parts if one.part.names == (("tokens",),)]
    prices.prompts(1, first, 0, 1, first, 0, 0)
    assert list(of_tokens.known) == [first]
    prices.prompts(1, 127, 0, 1, 127, 0, 0)
    assert sorted(of_tokens.known) == list(range(64, 128))
    assert prices.prompts(1, 65, 0, 10, 65, 0, 0)[0] == step_prices().prompts(1, 65, 0, 10, 65, 0, 0)[0]
