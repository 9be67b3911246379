"""Which keys an attention operator reads, as a record and as a text."""

import pytest

from clustersim.graph.variant import PLAIN, Variant, read_variant


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("", PLAIN),
        ("@4096", Variant(window=4096)),
        ("#0", Variant(hop=0)),
        ("@128#3", Variant(window=128, hop=3)),
        ("@128*", Variant(window=128, by_heads=True)),
        ("@128*~2", Variant(window=128, by_heads=True, half=2)),
    ],
)
def test_text_and_record_are_the_same(text, variant):
    assert read_variant(text) == variant
    assert str(variant) == variant.text == text
    assert bool(variant) == bool(text)


@pytest.mark.parametrize("text", ["@", "4096", "#1@4", "*#1", "~", "@-1", "@4 ", "@" + "9" * 19])
def test_other_texts_are_none(text):
    assert read_variant(text) is None
