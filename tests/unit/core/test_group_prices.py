"""What replicas bring to a step that they take together: counts, dummy batches, and where halves are cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clustersim.core.group_prices import OF_DECODE, OF_GRAPH, OF_MIXED, OF_PREFILL, count_group, cut_of

NOTHING = {"decodes": 0, "chunks": 0, "new": 0, "context": 0, "keys": 0, "pairs": 0, "attended": 0}
DECODES = NOTHING | {"decodes": 3, "attended": 30}
PROMPT = NOTHING | {"chunks": 1, "new": 5, "context": 2, "keys": 7, "pairs": 25}


def halves(decodes: int, taken: list[int], decode_tokens: int = 0, prefill_tokens: int = 0) -> int:
    """Return how many of some decodes and chunks of so many tokens are in the first half."""
    sequences = [SimpleNamespace(taken=0)] * decodes + [SimpleNamespace(taken=one) for one in taken]
    flight = SimpleNamespace(decodes=decodes, chunks=len(taken), new=sum(taken))
    group = SimpleNamespace(decode_tokens=decode_tokens, prefill_tokens=prefill_tokens)
    state = SimpleNamespace(flights=[[flight]], members=[range(len(sequences))], sequences=sequences)
    return cut_of(state, SimpleNamespace(groups=[group]), 0, 0)


@pytest.mark.parametrize(
    ("decodes", "taken", "cut"),
    [(1, [], 0), (2, [], 1), (3, [], 1), (8, [], 4), (0, [5, 1], 1), (1, [6, 7], 2), (3, [9], 3), (0, [9, 1, 1, 1], 1)],
)
def test_both_halves_have_as_equal_tokens_as_possible_and_no_sequence_is_divided(decodes, taken, cut):
    assert halves(decodes, taken) == cut


def test_steps_of_fewer_tokens_than_asked_for_are_not_split():
    assert [halves(4, [], decode_tokens=one, prefill_tokens=99) for one in (4, 5)] == [2, 0]
    assert [halves(4, [6], decode_tokens=99, prefill_tokens=one) for one in (10, 11)] == [4, 0]


def counted(*brought: dict[str, int], graph_most: int = 0) -> tuple[int, list[int]]:
    """Return the table and the counts of a step of these replicas, padded to multiples of four."""
    replicas = [SimpleNamespace(group_size=len(brought), window=0, near_growth=0, **one) for one in brought]
    group = SimpleNamespace(counts=9, first_pass=0, graph_most=graph_most, pads=1, first_padded=0, halves=0)
    prices = SimpleNamespace(
        groups=[group], counts=[0] * (9 * len(brought) + 2), sums=[0] * 8, padded=[-(-one // 4) * 4 for one in range(9)]
    )
    table = count_group(SimpleNamespace(replicas=replicas), prices, 0, 0)
    return table, prices.counts


def test_who_has_nothing_to_run_brings_a_token_of_what_the_others_run():
    # tokens, sequences, prompt tokens, decodes, context, that with prompt tokens, keys, pairs, keys of decodes
    assert counted(DECODES, NOTHING) == (OF_DECODE, [3, 3, 0, 3, 0, 0, 0, 0, 30, 1, 1, 0, 1, 0, 0, 0, 0, 1, 4, 3])
    assert counted(PROMPT, NOTHING) == (OF_PREFILL, [5, 1, 5, 0, 2, 7, 7, 25, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 6, 5])
    table, counts = counted(PROMPT, DECODES, NOTHING)
    assert (table, counts[18:27], counts[27:]) == (OF_MIXED, [1, 1, 0, 1, 0, 0, 0, 0, 1], [9, 5])


def test_all_are_padded_to_the_captured_graph_of_the_one_with_most_decodes():
    table, counts = counted(DECODES, NOTHING, graph_most=3)
    assert (table, counts[0], counts[9], counts[18:]) == (OF_GRAPH, 4, 4, [8, 4])
    assert counts[1:9] == [3, 0, 3, 0, 0, 0, 0, 30], "attention has what there is"
