"""A timeline that was written and read again is the same one."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from clustersim.errors import InputError
from clustersim.plan.parallel import ParallelPlan
from clustersim.timeline.digest import digest_of
from clustersim.timeline.files import load_timeline, save_timeline, write_table
from clustersim.timeline.spans import SPAN_COLUMNS
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import TABLES, VECTORS
from clustersim.timeline.tokens import token_times
from tests.effort import is_long
from tests.round_numbers import deployment, two_leaves

ARRIVALS = [(0, 30, 4), (500, 9, 6), (1_000, 40, 2)]
CASES = {
    "jumps": deployment(ARRIVALS),
    "rejected": deployment([(0, 9_999, 1)]),
    "nothing": deployment([]),
    "sends that meet": deployment(
        ARRIVALS,
        plan=ParallelPlan(dp=2, pp=2, placement=(0, 2, 1, 3)),
        topology=two_leaves(2),
        layers=2,
    ),
    # All-reduces of stage 0 cross the link between the leaves both ways, where sends of another step meet them.
    "stretched": deployment(
        ARRIVALS,
        plan=ParallelPlan(pp=2, tp=2, placement=(0, 2, 1, 3)),
        topology=two_leaves(2),
        layers=2,
    ),
}


def read_table(path):
    table = pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


@pytest.fixture(params=CASES)
def saved(request, run, tmp_path):
    """A timeline, and the run directory that it was written into."""
    timeline = run(CASES[request.param]).timeline
    (tmp_path / "timeline").mkdir()
    save_timeline(timeline, tmp_path / "timeline")
    return timeline, tmp_path


def test_a_timeline_read_again_unfolds_to_the_same_spans(saved):
    written, folder = saved
    read = load_timeline(folder)
    assert (read.digest, read.num_spans, read.num_steps) == (written.digest, written.num_spans, written.num_steps)
    ours, theirs = read.unfold(), written.unfold()
    assert (ours.names, ours.ops) == (theirs.names, theirs.ops)
    for column in SPAN_COLUMNS:
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column


def test_a_timeline_read_again_has_the_same_steps_facts_and_tokens(saved):
    written, folder = saved
    read = load_timeline(folder)
    for table, columns in TABLES.items():
        for name, of in columns.items():
            assert np.array_equal(getattr(read, table)[name], getattr(written, table)[name]), (table, name)
            assert getattr(read, table)[name].dtype == of, (table, name)
    for name in VECTORS:
        assert np.array_equal(getattr(read, name), getattr(written, name)), name
    assert digest_of(read) == written.digest


def test_the_cases_have_what_their_names_say(run):
    assert len(run(CASES["jumps"]).timeline.varying)
    assert not len(run(CASES["sends that meet"]).timeline.irregular)
    assert len(run(CASES["sends that meet"]).timeline.transfers["at"])
    assert len(run(CASES["stretched"]).timeline.irregular)


def test_load_refuses_a_folder_without_a_timeline(tmp_path):
    with pytest.raises(InputError, match="holds no readable timeline"):
        load_timeline(tmp_path)


def test_load_refuses_a_timeline_of_another_format(run, tmp_path):
    folder = tmp_path / "timeline"
    folder.mkdir()
    save_timeline(run(CASES["jumps"]).timeline, folder)
    head = json.loads((folder / "templates.json").read_text())
    (folder / "templates.json").write_text(json.dumps(head | {"format": 1}))
    (folder / "chunks.parquet").unlink()  # format 1 had other files
    with pytest.raises(InputError, match="was written in format 1, this version reads 5; run the scenario again"):
        load_timeline(tmp_path)


def test_load_refuses_a_broken_file(run, tmp_path):
    folder = tmp_path / "timeline"
    folder.mkdir()
    save_timeline(run(CASES["jumps"]).timeline, folder)
    (folder / "facts.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"facts\.parquet: cannot be read as Parquet"):
        load_timeline(tmp_path)


def tampered(table, dice, turn):
    """Yield the table with one value changed, for each column; columns and runs take turns with the values."""
    for place, (column, values) in enumerate(table.items()):
        most = int(np.iinfo(values.dtype).max)
        every = (-1, 0, most, int(dice.integers(0, 50)))
        for value in (every if is_long() else (every[(turn + place) % 4],)) if len(values) else ():
            changed = values.copy()
            changed[dice.integers(len(values))] = value
            yield table | {column: changed}


def test_what_is_read_can_be_computed_with_whatever_a_value_was_changed_to(request, saved):
    _, folder = saved
    turn = list(CASES).index(request.node.callspec.params["saved"])
    dice = np.random.default_rng(3)
    refused = 0
    for name in (*TABLES, *VECTORS, "irregular"):
        file = folder / "timeline" / f"{name}.parquet"
        table = read_table(file)
        for changed in tampered(table, dice, turn):
            write_table(file, changed)
            try:
                read = load_timeline(folder)
            except InputError:
                refused += 1
            else:
                digest_of(read)
                if max(read.chunks["request"].max(initial=0), read.decodes["request"].max(initial=0)) < 60:
                    token_times(read, 60)
        write_table(file, table)
    assert refused or not len(load_timeline(folder).facts["kind"])


def test_a_table_keeps_numbers_words_and_what_is_absent(tmp_path):
    words = np.array(["a", None], object)
    write_table(tmp_path / "t.parquet", {"n": np.array([2**60, -1]), "word": words})
    found = read_table(tmp_path / "t.parquet")
    assert found["n"].tolist() == [2**60, -1]
    assert found["word"].tolist() == ["a", None]


def test_load_refuses_a_pass_that_says_twice_what_an_operator_lost(run, tmp_path):
    (tmp_path / "timeline").mkdir()
    timeline = run(CASES["stretched"]).timeline
    lost = [found for found in timeline.irregular if isinstance(found, Stretch) and len(found.pairs) > 1]
    assert lost
    save_timeline(timeline, tmp_path / "timeline")
    assert load_timeline(tmp_path)
    file = tmp_path / "timeline" / "irregular.parquet"
    values = read_table(file)["time_ns"].copy()
    first = next(at for at in range(len(values)) if values[at : at + lost[0].pairs.size].tobytes() == lost[0].packed)
    values[first + 2] = values[first]
    write_table(file, {"time_ns": values})
    with pytest.raises(InputError, match="expected -1, or times of one pass of its template"):
        load_timeline(tmp_path)
