"""The digest is a function of what happened: not of how it was folded, numbered or ordered, and of all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pass_templates import pair

from clustersim.timeline.digest import digest_of, in_order
from clustersim.timeline.layout import Layout
from clustersim.timeline.passes import BLOCK_STEPS
from clustersim.timeline.record import Durations, Recorder
from clustersim.timeline.tables import CHUNK_COLUMNS, DECODE_COLUMNS, FACT_COLUMNS

ROW = np.array([100, 30])


def recorder() -> Recorder:
    return Recorder([pair(), pair(kind="mixed")])


def digest(recorded: Recorder) -> str:
    return digest_of(recorded.tables(Layout.of_one(sp=1, tp=2, stages=2)))


def one_by_one(recorded, replica, count, first_step=0):
    """Passes of 101, 102, … ns of GEMM, one row each."""
    start = 0
    for step in range(first_step, first_step + count):
        gemm = 101 + step
        recorded.run(replica, 0, 0, step, np.array([start]), Durations.of_one(np.array([gemm, 30])))
        recorded.step(replica, step, 1, 0, 1, start, start + gemm + 30, 1, 0, 1, 5, 0, 1, 2, 9)
        start += gemm + 30


def as_a_run(recorded, replica, count, first_step=0, *, number=7):
    """The same passes in one row; what the row holds in place of what varies does not count."""
    varying = 101 + np.arange(first_step, first_step + count)
    ends = np.cumsum(varying + 30)
    starts = np.concatenate(([0], ends[:-1]))
    durations = Durations(row=np.array([number, 30]), columns=(0,), varying=varying[:, None])
    recorded.run(replica, 0, 0, first_step, starts, durations)
    recorded.step(replica, first_step, count, 0, 1, 0, int(ends[-1]), 1, 0, 1, 5, 0, 1, 2, 9)


def test_it_does_not_depend_on_how_steps_are_folded():
    one, other = recorder(), recorder()
    one_by_one(one, 0, 9)
    as_a_run(other, 0, 9)
    assert digest(one) == digest(other)


def test_it_does_not_depend_on_whether_starts_are_stored():
    one, other = recorder(), recorder()
    as_a_run(one, 0, 3)
    as_a_run(other, 0, 3)
    stored, found = one.tables(Layout.of_one(sp=1, tp=2, stages=2)), other.tables(Layout.of_one(sp=1, tp=2, stages=2))
    assert stored.passes["starts_at"].tolist() == [-1]
    explicit = replace(found, passes={**found.passes, "starts_at": np.array([1])}, starts=np.array([-5, 0, 131, 263]))
    assert digest_of(stored) == digest_of(explicit)
    late = replace(explicit, starts=np.array([-5, 0, 132, 263]))
    assert digest_of(stored) != digest_of(late)


def test_it_does_not_depend_on_the_sizes_of_blocks():
    count = BLOCK_STEPS + 5
    one, other = recorder(), recorder()
    as_a_run(one, 0, count)
    as_a_run(one, 1, 3)
    as_a_run(other, 1, 3)
    half = count // 2
    as_a_run(other, 0, count)
    whole = other.tables(Layout.of_one(sp=1, tp=2, stages=2))
    parts = {name: np.repeat(values, np.where(whole.passes["steps"] == count, 2, 1)) for name, values in
             whole.passes.items()}  # fmt: skip
    long = np.flatnonzero(parts["steps"] == count)
    parts["steps"][long] = half, count - half
    parts["first_step"][long[1]] += half
    parts["varying_at"][long[1]] += half
    parts["start_ns"][long[1]] += int((131 + np.arange(half)).sum())
    assert digest(one) == digest_of(replace(whole, passes=parts))


def test_it_does_not_depend_on_how_rows_are_numbered():
    one, other = recorder(), recorder()
    other.row(1, ROW)
    other.row(0, np.array([1, 2]), (1,))
    for recorded in (one, other):
        as_a_run(recorded, 0, 4)
    assert digest(one) == digest(other)


def test_it_does_not_depend_on_what_stands_in_place_of_what_varies():
    one, other = recorder(), recorder()
    as_a_run(one, 0, 4)
    as_a_run(other, 0, 4, number=0)
    assert digest(one) == digest(other)


def everything(order=1):
    """Two replicas with something in every table, recorded in one order or the other."""
    recorded = recorder()
    for replica in (0, 1)[::order]:
        for step in (0, 1)[::order]:
            one_by_one(recorded, replica, 2, first_step=3 * step)
            recorded.run(replica, 0, 1, 3 * step + 2, np.array([500 * step]), Durations.of_one(ROW))
            recorded.step(replica, 3 * step + 2, 1, -1, 2, 0, 130, 1, 0, 1, 5, 0, 1, 2, 9)
            recorded.nodes(replica, 1, 0, step, 9, ROW, np.array([9, 9, 109]), np.array([109, 109, 200 + step]))
            recorded.transfer(replica, 0, step, np.array([5, 5]), np.array([6, 6]), np.array([8, 8]))
        rows = [(0, 1, 4, 0), (1, 2, 8, 1), (1, 3, 2, 0)]
        for step, request, count, sampled in rows[::order]:
            recorded.chunk(replica, step, request, 0, count, sampled=bool(sampled))
        recorded.decodes.extend(np.array([(replica, 0, 1, 0, 3), (replica, 0, 2, 1, 2)][::order]))
        facts = [(0, 2, 1, 4, 1), (9, 3, 1, 4, 0), (9, 2, 1, 5, 2), (9, 2, 2, 4, 3)]
        recorded.replica_facts(replica, facts[::order])
        recorded.arrival(0, 0, replica, replica, 4)
    return recorded


def test_it_does_not_depend_on_the_order_of_the_record():
    assert digest(everything()) == digest(everything(order=-1))


def changed(tables, name, column, row, by=1):
    table = {key: values.copy() for key, values in getattr(tables, name).items()}
    table[column][row] += by
    return replace(tables, **{name: table})


CHANGES = [
    *(("passes", name) for name in ("replica", "stage", "first_step", "start_ns", "template")),
    *(("transfers", name) for name in ("replica", "stage", "step")),
    *(("steps", name) for name in ("replica", "step", "count", "slot", "kind")),
    *(("chunks", name) for name in CHUNK_COLUMNS),
    *(("decodes", name) for name in DECODE_COLUMNS),
    *(("facts", name) for name in FACT_COLUMNS),
]


@pytest.mark.parametrize(("table", "column"), CHANGES, ids=[".".join(change) for change in CHANGES])
def test_it_changes_with_every_value_of_the_tables(table, column):
    tables = everything().tables(Layout.of_one(sp=1, tp=2, stages=2))
    found = {digest_of(tables)}
    for row in (0, 1):
        found.add(digest_of(changed(tables, table, column, row)))
    assert len(found) == 3


@pytest.mark.parametrize("vector", ["row_values", "transfer_times"])
def test_it_changes_with_every_duration_and_transfer(vector):
    tables = everything().tables(Layout.of_one(sp=1, tp=2, stages=2))
    values = getattr(tables, vector)
    found = {digest_of(tables)}
    for place in range(len(values)):
        other = values.copy()
        other[place] += 1
        found.add(digest_of(replace(tables, **{vector: other})))
    assert len(found) == len(values) + 1


def test_it_changes_with_what_varies():
    one, other = recorder(), recorder()
    as_a_run(one, 0, 4)
    as_a_run(other, 0, 4)
    tables = other.tables(Layout.of_one(sp=1, tp=2, stages=2))
    assert digest(one) != digest_of(replace(tables, varying=tables.varying + np.array([0, 0, 0, 1])))


def test_it_changes_with_the_times_of_a_stretched_pass():
    found = set()
    for gemm, end in ((150, 180), (150, 190), (150, 191), (151, 190)):
        recorded = recorder()
        starts = np.array([50, 50, gemm])
        recorded.nodes(0, 0, 0, 0, 50, ROW, starts, np.array([gemm, gemm, end]))
        found.add(digest(recorded))
    assert len(found) == 4


def test_it_tells_what_operators_are_called():
    one = Recorder([pair()])
    other = Recorder([pair(symbols=(("down", "gemm", "ffn"), ("sum", "all_reduce", "ffn")))])
    assert digest(one) != digest(other)


def test_a_request_preempted_and_admitted_at_one_instant_is_not_one_that_stays():
    one, other = recorder(), recorder()
    one.replica_facts(0, [(0, 2, 1, 4, 1), (9, 3, 1, 1, 0), (9, 2, 1, 5, 2)])
    other.replica_facts(0, [(0, 2, 1, 4, 1)])
    assert digest(one) != digest(other)


def test_blocks_in_use_tell_in_which_order_requests_of_one_instant_took_turns():
    one, other = recorder(), recorder()
    one.replica_facts(0, [(9, 4, 1, 4, 5), (9, 4, 2, 4, 2)])
    other.replica_facts(0, [(9, 4, 2, 4, 4), (9, 4, 1, 4, 2)])
    assert digest(one) != digest(other)


@pytest.mark.parametrize("spread", [1, 1 << 28, 1 << 33, 1 << 61])  # all columns in one number, some, one, none
@pytest.mark.parametrize("in_runs", [False, True])
def test_rows_are_put_in_order_by_all_columns(spread, in_runs):
    rows = np.random.default_rng(3).integers(-2, 2, (5, 400)) * spread
    rows[0, ::2] = 0
    if in_runs:
        rows[1].sort()
    table = dict(zip("abcde", rows, strict=True))
    if spread == 1 << 28:
        table["c"] = np.where(rows[2] < 0, np.iinfo(np.int32).min, np.iinfo(np.int32).max).astype(np.int32)
    found = in_order(table, tuple(table))
    assert sorted(zip(*(values.tolist() for values in table.values()), strict=True)) == list(
        zip(*(values[found].tolist() for values in table.values()), strict=True)
    )
