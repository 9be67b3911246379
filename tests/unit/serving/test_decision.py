"""The numbers of a decision that the step graph is a function of."""

from __future__ import annotations

from clustersim.graph.batch import Chunk
from clustersim.serving.decision import Decision, batch_of
from clustersim.serving.sequence import Sequence


def sequence(request, computed, owner=0, prompt=50, generated=0):
    return Sequence(
        request=request, prompt_tokens=prompt, output_tokens=9, computed=computed, generated=generated, owner=owner
    )


def test_decodes_are_counted_with_their_keys_by_owner():
    decision = Decision(decodes=(sequence(0, 5), sequence(1, 20, owner=1), sequence(2, 7, owner=1)), prefills=())
    batch = batch_of(decision, 3, ())
    # A decode attends what is cached and itself.
    assert batch.decode_sequences == (1, 2, 0)
    assert batch.decode_keys == (6, 21 + 8, 0)
    assert batch.kind == "decode"


def test_windowed_layers_attend_no_more_than_their_window():
    decision = Decision(decodes=(sequence(0, 5), sequence(1, 20), sequence(2, 7, owner=1)), prefills=())
    assert batch_of(decision, 2, (8, 16)).windowed_keys == {8: (6 + 8, 8), 16: (6 + 16, 8)}


def test_prefills_are_chunks_behind_what_is_cached():
    decision = Decision(decodes=(sequence(0, 5),), prefills=((sequence(1, 12, owner=1), 30),))
    batch = batch_of(decision, 2, ())
    assert batch.chunks == (Chunk(request=1, start=12, count=30, owner=1),)
    assert batch.kind == "mixed"
