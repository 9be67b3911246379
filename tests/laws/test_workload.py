"""Laws of requests and draws, on random examples."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clustersim
from clustersim.workload import (
    Constant,
    DrawnWorkload,
    Empirical,
    Fixed,
    Gamma,
    LogNormal,
    Poisson,
    Requests,
    Uniform,
    generate,
    named_stream,
    read_trace,
)

GAPS = st.lists(st.integers(0, 10**12), min_size=1, max_size=30)
SPEC = DrawnWorkload(
    arrivals=Poisson(rate_per_s=3.0),
    prompt_tokens=LogNormal(mean=500.0, cv=1.5),
    output_tokens=Uniform(low=1, high=9),
    requests=50,
)


@st.composite
def requests(draw):
    gaps = draw(GAPS)
    size = st.lists(st.integers(0, 10**5), min_size=len(gaps), max_size=len(gaps))
    rows = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=len(gaps), max_size=len(gaps))
    hashed = draw(st.booleans())
    return Requests(
        arrived_at_ns=np.cumsum([0, *gaps[1:]]),
        prompt_tokens=draw(size),
        output_tokens=draw(size),
        prefix_hashes=tuple(draw(rows)) if hashed else None,
        hash_block_tokens=16 if hashed else None,
        source="law",
    )


SCALES = st.fractions(Fraction(1, 1000), 1000, max_denominator=1000) | st.floats(1e-3, 1e3)


@given(requests(), SCALES)
def test_scaling_divides_each_instant_to_the_nearest_nanosecond(recorded, scale):
    rate_scale = float(scale)
    exact = [Fraction(t) / Fraction(repr(rate_scale)) for t in recorded.arrived_at_ns.tolist()]
    assert recorded.scaled(rate_scale).arrived_at_ns.tolist() == [round(t) for t in exact]


@given(requests(), st.sampled_from([1, 2, 4, 5, 8, 10, 100, 1000]))
def test_playing_slower_is_undone_by_playing_faster(recorded, factor):
    assert recorded.scaled(1 / factor).scaled(factor) == recorded


@given(requests(), st.lists(st.integers(1, 10**13), min_size=1, max_size=4, unique=True))
def test_windows_side_by_side_hold_every_request_once(recorded, cuts):
    edges = [0, *sorted(cuts), 10**14]
    kept = [recorded.window(start, end) for start, end in pairwise(edges)]
    assert np.concatenate([part.prompt_tokens for part in kept]).tolist() == recorded.prompt_tokens.tolist()
    assert all(part.arrived_at_ns[0] == 0 for part in kept if len(part))


@given(requests(), st.integers(1, 100))
def test_repetition_begins_with_the_original_and_keeps_its_rate(recorded, num_requests):
    repeated = recorded.repeat_to(num_requests)
    assert len(repeated) == num_requests
    shared = min(num_requests, len(recorded))
    assert repeated.take(shared).arrived_at_ns.tolist() == recorded.take(shared).arrived_at_ns.tolist()
    if len(recorded) > 1:
        gap_ns = recorded.span_ns / (len(recorded) - 1)
        whole = recorded.repeat_to(3 * len(recorded))
        assert whole.span_ns == pytest.approx(gap_ns * (len(whole) - 1), abs=2)


@given(requests(), st.integers(1, 4))
def test_repetition_keeps_which_blocks_are_shared_inside_and_shares_none_outside(recorded, copies):
    if recorded.prefix_hashes is None:
        assert recorded.repeat_to(copies * len(recorded)).prefix_hashes is None
        return
    rows = recorded.repeat_to(copies * len(recorded) + 1).take(copies * len(recorded)).prefix_hashes
    original = np.concatenate(recorded.prefix_hashes)
    repeated = np.concatenate(rows).reshape(copies, original.size)
    for copy in repeated:
        assert np.array_equal(np.equal.outer(copy, copy), np.equal.outer(original, original))
    assert np.unique(repeated).size == copies * np.unique(original).size


@given(requests())
def test_requests_that_are_written_are_read_back(tmp_path_factory, recorded):
    path = tmp_path_factory.mktemp("round") / "trace.csv"
    rows = zip(recorded.arrived_at_ns, recorded.prompt_tokens, recorded.output_tokens, strict=True)
    lines = [f"{t // 10**9}.{t % 10**9:09d},{prompt},{output}\n" for t, prompt, output in rows]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
    plain = replace(recorded, prefix_hashes=None, hash_block_tokens=None, source=str(path))
    assert read_trace(path) == plain


@given(st.integers(0, 2**128))
def test_same_seed_draws_the_same_and_is_not_used_up(entropy):
    seed = np.random.SeedSequence(entropy)
    assert generate(SPEC, seed) == generate(SPEC, seed) == generate(SPEC, np.random.SeedSequence(entropy))
    assert seed.n_children_spawned == 0


@given(st.integers(0, 1000))
def test_another_seed_draws_other_requests(entropy):
    mine, other = (generate(SPEC, np.random.SeedSequence(entropy + i)) for i in range(2))
    assert mine.arrived_at_ns.tolist() != other.arrived_at_ns.tolist()
    assert mine.prompt_tokens.tolist() != other.prompt_tokens.tolist()
    assert mine.output_tokens.tolist() != other.output_tokens.tolist()


@given(
    st.sampled_from(["arrivals", "prompt_tokens", "output_tokens"]),
    st.integers(0, 1000),
)
def test_changing_one_distribution_leaves_the_others_as_they_are(changed, entropy):
    seed = np.random.SeedSequence(entropy)
    other = Constant(rate_per_s=1.0) if changed == "arrivals" else Fixed(tokens=3)
    before, after = generate(SPEC, seed), generate(replace(SPEC, **{changed: other}), seed)
    column_of = {"arrivals": "arrived_at_ns"}
    for name in ("arrivals", "prompt_tokens", "output_tokens"):
        column = column_of.get(name, name)
        same = np.array_equal(getattr(before, column), getattr(after, column))
        assert same == (name != changed)


@given(
    st.sampled_from([Poisson(rate_per_s=3.0), Gamma(rate_per_s=3.0, cv=0.5), Constant(rate_per_s=3.0)]),
    st.sampled_from([Uniform(low=1, high=7), LogNormal(median=9.0, sigma=1.0), Empirical(values=(1, 2, 5))]),
    st.integers(1, 100),
)
def test_more_requests_are_the_same_ones_with_others_after_them(arrivals, lengths, num_requests):
    seed = np.random.SeedSequence(1)
    spec = DrawnWorkload(arrivals=arrivals, prompt_tokens=lengths, output_tokens=lengths, requests=100)
    few = generate(replace(spec, requests=num_requests), seed)
    assert generate(spec, seed).take(num_requests) == few


def test_streams_of_two_names_are_not_correlated():
    seed = np.random.SeedSequence(3)
    names = ("arrivals", "prompt_tokens", "output_tokens", "routing")
    columns = [named_stream(seed, name).normal(size=20_000) for name in names]
    off_diagonal = np.corrcoef(columns) - np.eye(len(names))
    # A correlation of independent columns is about normal with deviation 1/√n = 0.0071; asked: 5 of them.
    assert np.abs(off_diagonal).max() < 0.035


def test_draws_are_the_same_in_another_process_with_another_hash_seed():
    program = (
        "import hashlib, numpy as np\n"
        "from clustersim.workload import *\n"
        f"r = generate({SPEC!r}, np.random.SeedSequence(7))\n"
        "print(hashlib.sha256(b''.join(c.tobytes() for c in "
        "(r.arrived_at_ns, r.prompt_tokens, r.output_tokens))).hexdigest())\n"
    )
    here = generate(SPEC, np.random.SeedSequence(7))
    content = b"".join(c.tobytes() for c in (here.arrived_at_ns, here.prompt_tokens, here.output_tokens))
    root = str(Path(clustersim.__file__).parent.parent)
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": root}
        there = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert there.stdout.strip() == hashlib.sha256(content).hexdigest()
