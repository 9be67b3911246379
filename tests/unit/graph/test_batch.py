"""Features of a batch: small ones, counted on fingers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.graph.batch import Chunk, StepBatch, _split, features_of
from clustersim.plan.parallel import SequencePlan
from tests.effort import examples

ONE = SequencePlan()
CONTIGUOUS = SequencePlan(degree=2, scheme="ring", partition="contiguous", decode="idle")
ZIGZAG = SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp")


def prompt(count, start=0, owner=0):
    return Chunk(request=0, start=start, count=count, owner=owner)


def features(*chunks, sp=ONE, windows=(), **decodes):
    return features_of(StepBatch(chunks=chunks, **decodes), sp, windows)


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (StepBatch(chunks=(prompt(4),)), "prefill"),
        (StepBatch(decode_sequences=(3,), decode_keys=(30,)), "decode"),
        (StepBatch(chunks=(prompt(4),), decode_sequences=(0, 3), decode_keys=(0, 30)), "mixed"),
    ],
)
def test_the_kind_of_a_step_is_what_it_carries(batch, kind):
    assert batch.kind == kind
    assert (batch.prefill_tokens, batch.num_decodes) == (4 * bool(batch.chunks), 3 * (kind != "prefill"))


def test_a_mixed_step_on_one_rank():
    found = features(prompt(4), prompt(2, start=3), decode_sequences=(5,), decode_keys=(50,))
    assert found["tokens"] == found["stage_tokens"] == found["peak_tokens"] == (11.0,)
    assert found["prefill_tokens"] == found["all_prefill_tokens"] == found["segment_tokens"] == (6.0,)
    assert found["decode_sequences"] == (5.0,)
    assert found["decode_keys"] == (50.0,)
    assert found["sequences"] == found["rows"] == (7.0,)
    assert found["pairs"] == found["pairs*"] == found["pairs#0"] == (10.0 + 4 + 5,)
    assert found["prefill_keys"] == found["prefill_keys*"] == (4.0 + 5,)
    assert (found["context_tokens"], found["exposed_tokens"]) == ((3.0,), (9.0,))


def test_decode_has_no_pairs():
    found = features(decode_sequences=(5,), decode_keys=(50,))
    assert not [name for name in found if name.startswith(("pairs", "prefill_keys"))]
    assert found["exposed_tokens"] == (0.0,)


def test_contiguous_segments_attend_unevenly():
    found = features(prompt(4), sp=CONTIGUOUS)
    assert found["tokens"] == (2.0, 2.0)
    assert found["pairs"] == (3.0, 7.0)
    assert found["pairs*"] == (10.0, 10.0)
    assert found["prefill_keys"] == (2.0, 4.0)
    # in step 1 rank 0 holds the keys of rank 1, which lie ahead; rank 1 holds those of rank 0
    assert (found["pairs#0"], found["pairs#1"]) == ((3.0, 3.0), (0.0, 4.0))
    assert (found["prefill_keys#0"], found["prefill_keys#1"]) == ((2.0, 2.0), (0.0, 2.0))


def test_a_ring_hands_keys_to_the_next_rank():
    found = features(prompt(6), sp=replace(CONTIGUOUS, degree=3))
    # after one step rank 1 holds the keys of rank 0 and rank 2 those of rank 1; after two rank 2 holds those of rank 0
    assert [found[f"pairs#{step}"] for step in range(3)] == [(3.0, 3.0, 3.0), (0.0, 4.0, 4.0), (0.0, 0.0, 4.0)]


def test_zigzag_segments_attend_evenly():
    found = features(prompt(4), sp=ZIGZAG)
    assert found["pairs"] == (1.0 + 4, 2.0 + 3)
    assert found["rows"] == (1.0, 0.0)  # rank 0 has the last token


@pytest.mark.parametrize(("count", "rows"), [(1, (1.0, 0.0)), (2, (0.0, 1.0)), (5, (0.0, 1.0))])
def test_the_last_token_of_a_short_prompt_is_where_its_segment_is(count, rows):
    assert features(prompt(count), sp=CONTIGUOUS)["rows"] == rows


@pytest.mark.parametrize(("count", "rows"), [(1, (1.0, 0.0)), (2, (0.0, 1.0)), (3, (0.0, 1.0)), (4, (1.0, 0.0))])
def test_the_last_token_of_a_short_prompt_in_zigzag(count, rows):
    assert features(prompt(count), sp=ZIGZAG)["rows"] == rows


def test_cached_tokens_travel_from_their_owner():
    found = features(prompt(2, start=3, owner=1), sp=ZIGZAG)
    # each rank has one of tokens 3 and 4; the three cached ones are on rank 1
    assert found["pairs"] == (4.0, 5.0)
    assert (found["pairs#0"], found["pairs#1"]) == ((1.0, 4.0), (3.0, 1.0))
    assert found["ring_tokens"] == (1.0 + 3, 1.0 + 3)


def test_a_window_cuts_pairs_and_keys():
    found = features(prompt(4, start=6), windows=(3,))
    assert found["pairs@3"] == found["pairs@3*"] == (12.0,)
    assert found["prefill_keys@3"] == found["prefill_keys@3*"] == (6.0,)  # tokens 4 to 9
    assert found["pairs"] == (7.0 + 8 + 9 + 10,)


def test_windowed_decode_keys_are_those_of_the_batch():
    batch = {"decode_sequences": (2,), "decode_keys": (20,), "windowed_keys": {4: (8,)}}
    assert features(windows=(4,), **batch)["decode_keys@4"] == (8.0,)
    assert features(windows=(64,), **batch)["decode_keys@64"] == (20.0,)  # longer than any context


def test_ranks_without_sequences_have_none():
    found = features(sp=ZIGZAG, decode_sequences=(3,), decode_keys=(30,))
    assert (found["decode_sequences"], found["decode_keys"]) == ((3.0, 0.0), (30.0, 0.0))
    assert found["peak_tokens"] == (3.0, 3.0)


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=4),
    st.integers(0, 9),
    st.integers(0, 500),
    st.sampled_from([(), (8,), (8, 32)]),
)
def test_features_of_whole_prompts_are_those_of_split_ones_at_degree_one(
    chunks: list[tuple[int, int]], decodes: int, keys: int, windows: tuple[int, ...]
) -> None:
    batch = StepBatch(
        chunks=tuple(Chunk(request=i, start=a, count=n) for i, (a, n) in enumerate(chunks)),
        decode_sequences=(decodes,),
        decode_keys=(keys,),
        windowed_keys={window: (min(keys, window),) for window in windows},
    )
    assert features_of(batch, SequencePlan(), windows) == _split(batch, SequencePlan(), windows)
