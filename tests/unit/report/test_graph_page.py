"""The picture of a step graph: what is folded, what is drawn, what it says."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest
from graph_models import DENSE, GQA, MIXTURE, priced, prompt

from clustersim.graph.batch import StepBatch
from clustersim.graph.prices.priced import start_times
from clustersim.model import Ffn, Layer
from clustersim.report.graph_page.drawing import canvas_of
from clustersim.report.graph_page.page import graph_page
from clustersim.report.graph_page.rows import Link, patterns, stages_of
from clustersim.report.graph_page.words import duration_words, everything, quantity, ranks_words, shape_words, took

DEVICES = [f"n0.g{rank}" for rank in range(32)]
DEEP = DENSE.__class__(name="deep", hidden=10, vocab=100, layers=(Layer(attention=GQA, ffn=Ffn(intermediate=12)),) * 5)


def page(found):
    return graph_page(found, title="t <1>", subtitle="s", devices=DEVICES)


def tips(html):
    return [unescape(text) for text in re.findall(r'data-tip="(.*?)"', html, re.DOTALL)]


def shape(found, name, at=0):
    """Return the shape of that name on the first stage."""
    drawn = [shape for section in stages_of(found)[0].sections for shape in section.shapes]
    return [shape for shape in drawn if shape.node.name == name][at]


@pytest.mark.parametrize(
    ("letters", "found"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("eabbbx", [(0, 1, 1), (1, 1, 1), (2, 1, 3), (5, 1, 1)]),
        ("sfsfsf", [(0, 2, 3)]),
        ("sssssfsssssf", [(0, 6, 2)]),
        ("aaab", [(0, 1, 3), (3, 1, 1)]),
        ("abba", [(0, 1, 1), (1, 1, 2), (3, 1, 1)]),
        ("abcabd", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1)]),
    ],
)
def test_patterns(letters, found):
    assert patterns([letter.encode() for letter in letters]) == found


def test_layers_that_are_the_same_are_folded():
    (stage,) = stages_of(priced(DEEP, prompt(4), tp=2))
    assert [(section.layers, section.like) for section in stage.sections] == [
        ((), ()),
        ((0,), ()),
        ((1, 2, 3, 4), (1,)),
        ((), ()),
    ]
    first, rest = stage.sections[1:3]
    assert rest.duration_ns == 4 * first.duration_ns
    assert sum(section.duration_ns for section in stage.sections) == stage.end_ns


def test_layers_that_take_turns_are_folded_as_a_pattern():
    one, two = Layer(attention=GQA, ffn=Ffn(intermediate=12)), Layer(attention=GQA, ffn=Ffn(intermediate=6))
    model = DENSE.__class__(name="turns", hidden=10, vocab=100, layers=(one, two) * 3)
    (stage,) = stages_of(priced(model, prompt(4)))
    assert [(section.layers, section.like) for section in stage.sections] == [
        ((), ()),
        ((0,), ()),
        ((1,), ()),
        ((2, 3, 4, 5), (1, 2)),
        ((), ()),
    ]
    assert "2 × the same 2" in page(priced(model, prompt(4)))


def test_a_layer_that_comes_back_is_folded():
    one, two = Layer(attention=GQA, ffn=Ffn(intermediate=12)), Layer(attention=GQA, ffn=Ffn(intermediate=6))
    model = DENSE.__class__(name="back", hidden=10, vocab=100, layers=(one, two, two, one))
    html = page(priced(model, prompt(4)))
    assert "<b>layer 3</b><span>the same as layer 0</span>" in html


def test_stages_follow_each_other():
    first, second = stages_of(priced(DEEP, prompt(4), pp=2))
    assert first.begin_ns == 0
    assert second.begin_ns == first.end_ns
    assert [section.layers for section in second.sections] == [(), (3,), (4,), ()]


def test_a_row_has_a_shape_per_sp_rank_and_one_for_what_joins_them():
    found = priced(DENSE, prompt(8), tp=2, sp={"degree": 2})
    assert [shape(found, "qkv_proj", at).s for at in (0, 1)] == [(0,), (1,)]
    gather = shape(found, "kv_all_gather")
    assert (gather.s, gather.groups) == ((0, 1), ((0, 2), (1, 3)))
    assert shape(found, "o_proj_all_reduce", 1).groups == ((2, 3),)


def test_links_are_edges_between_shapes_of_a_section():
    (stage,) = stages_of(priced(DENSE, prompt(4), tp=2))
    layer = stage.sections[1]
    at = {shape.node.name: n for n, shape in enumerate(layer.shapes)}
    assert {
        Link(source=None, target=at["attention_norm"], kind="data"),
        Link(source=None, target=at["attention_add"], kind="data"),
        Link(source=at["kv_write"], target=at["attention_prefill"], kind="kv"),
        Link(source=at["ffn_down_all_reduce"], target=at["ffn_add"], kind="data"),
        Link(source=at["ffn_add"], target=None, kind="data"),
    } <= set(layer.links)
    assert len(layer.links) == len(set(layer.links))


@pytest.mark.parametrize(
    ("model", "batch", "degrees", "name", "words"),
    [
        (DENSE, prompt(4), {}, "qkv_proj", "4 rows, 10 → 16"),
        (DENSE, prompt(1), {}, "qkv_proj", "1 row, 10 → 16"),
        (MIXTURE, prompt(4), {"tp": 2, "ep": 2}, "expert_up", "4 rows to 2 experts, 10 → 12"),
        (DENSE, prompt(4), {"tp": 2}, "attention_prefill", "4 queries, 2 heads on 1 K/V × 2"),
        (
            DENSE,
            StepBatch(decode_sequences=(3,), decode_keys=(30,)),
            {},
            "attention_decode",
            "3 sequences, 4 heads on 2 K/V × 2",
        ),
        (DENSE, prompt(4), {"tp": 2}, "o_proj_all_reduce", "80 B among ranks 0–1"),
        (DENSE, prompt(8), {"tp": 2, "sp": {"degree": 2}}, "kv_all_gather", "64 B in each of 2 groups of 2 ranks"),
        (DENSE, prompt(4), {}, "attention_norm", "160 B"),
        (DENSE, prompt(4), {}, "attention_add", "240 B, fused"),
        (DENSE, prompt(4), {"pp": 2, "tp": 2}, "send", "80 B per rank to stage 1"),
        (DENSE, prompt(4), {}, "schedule", "1 sequence"),
        (DENSE, prompt(4), {}, "kv_read", "what earlier steps cached"),
    ],
)
def test_words_for_the_size_of_an_operator(model, batch, degrees, name, words):
    found = priced(model, batch, **degrees)
    assert shape_words(shape(found, name), found) == words


def test_hover_says_everything():
    found = priced(DENSE, prompt(4), tp=2)
    product = shape(found, "ffn_up")
    start = int(start_times(found.graph, found.duration_ns)[product.nodes[0]])
    assert everything(product, found, start, DEVICES).splitlines() == [
        "ffn_up   (gemm)",
        "ffn, stage 0, layer 0",
        "ranks 0–1: n0.g0, n0.g1",
        "stream compute",
        "on one rank: 4 rows, 10 → 12",
        "amount 1 × tokens",
        "960 FLOP, 2 GFLOP/s",
        "416 B, 867 MB/s",
        f"takes 480 ns, from {took(start)} after the step begins",
    ]
    norm = everything(shape(found, "ffn_norm"), found, 0, DEVICES)
    assert "the same work on 2 ranks" in norm


def test_ranks_that_differ_have_a_range():
    found = priced(DENSE, prompt(4), tp=2)
    reduce = shape(found, "o_proj")
    assert duration_words(reduce, found) == "160 ns"
    found.duration_ns[reduce.nodes[1]] = 2000
    assert duration_words(reduce, found) == "160 ns – 2 us"


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_900, "1000 kB"), (1.5e15, "1.5 PB")]
)
def test_quantities(value, words):
    assert quantity(value, "B") == words


@pytest.mark.parametrize(
    ("ranks", "words"), [([3], "3"), ([0, 1], "0–1"), ([5, 0, 1, 2], "0–2, 5"), ([0, 2, 4], "0, 2, 4")]
)
def test_ranks(ranks, words):
    assert ranks_words(ranks) == words


class Tags(HTMLParser):
    """Checks that tags close in order, and counts them."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self):
        super().__init__()
        self.open, self.counts = [], {}

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "degrees",
    [
        {},
        {"tp": 4, "pp": 2},
        {"tp": 2, "ep": 2},
        {"tp": 4, "ep": 2},
        {"sp": {"degree": 2, "scheme": "ring"}, "tp": 2},
        {"sp": {"degree": 8, "scheme": "ring"}},
        {"sp": {"degree": 2, "decode": "dp"}, "ep": 2},
    ],
)
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_the_page_is_well_formed_and_asks_no_other_host(degrees, kind):
    batch = prompt(8) if kind == "prefill" else StepBatch(decode_sequences=(3,), decode_keys=(30,))
    found = priced(MIXTURE, batch, **degrees)
    html = page(found)
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.counts["section"] == degrees.get("pp", 1)
    assert "t &lt;1&gt;" in html
    assert "default-src 'none'" in html
    assert not re.search(r"(?:src|href)\s*=\s*\"(?!data:)", html)
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_every_operator_of_a_drawn_layer_is_on_the_page():
    found = priced(DENSE, prompt(4), tp=2, pp=2)
    html = page(found)
    told = {text.split("   ")[0] for text in tips(html)}
    assert {node.name for node in found.graph.symbols} <= told
    assert 'data-wire="send-0"' in html
    assert 'data-wire="recv-0"' in html


def test_many_sp_ranks_are_drawn_as_a_few():
    found = priced(DENSE, prompt(16), sp={"degree": 8})
    (stage,) = stages_of(found)
    assert canvas_of(stage.sections, 8, 1).bands == (0, 1, 2, 7)
    assert "SP ranks 3 to 6 are like their neighbours and not drawn" in page(found)


def test_shares_of_time_add_up():
    html = page(priced(DENSE, prompt(4), tp=2))
    shares = [float(width) for width in re.findall(r'<i class="[a-z]+" style="width:([\d.]+)%', html)]
    assert sum(shares) == pytest.approx(100, abs=0.1)


def test_the_legend_names_only_what_is_there():
    html = page(priced(DENSE, StepBatch(decode_sequences=(3,), decode_keys=(30,))))
    assert "matrix product" in html
    assert "end of prefill" not in html
    assert ">collective</li>" not in html
