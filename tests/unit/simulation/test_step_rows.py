"""Rows of steps that are alike: a run is split where the queue or the K/V blocks change within it."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.replay.replay import replay
from clustersim.simulation.step_rows import StepRows
from tests.round_numbers import deployment, step_ends


def columns(rows, *names):
    return list(zip(*(np.asarray(rows[name]).tolist() for name in names), strict=True))


@pytest.fixture
def rows(run):
    def of(*arrivals, **serving):
        return StepRows(run(deployment(arrivals, **serving)).timeline, 4)

    return of


def test_blocks_are_taken_by_the_steps_whose_token_enters_one(rows):
    # Prompts of 2 and 3 tokens, 7 more each by decodes. Tokens 3 to 9 of one and 4 to 10 of the other are computed:
    # the first enters its second block with token 5, its third with 9, the other with its second and sixth decode.
    found = rows((0, 2, 8), (0, 3, 8))
    assert found.rows["count"].tolist() == [1, 7]
    ends = [0, *step_ends(replay(deployment([(0, 2, 8), (0, 3, 8)])).timeline)]
    assert columns(found.kv_rows, "start_ns", "end_ns", "kv_blocks_used") == [
        (0, ends[1], 2),
        (ends[1], ends[2], 2),
        (ends[2], ends[3], 3),
        (ends[3], ends[6], 4),
        (ends[6], ends[7], 5),
        (ends[7], ends[8], 6),
    ]


def test_who_arrives_behind_others_waits_from_the_next_step_on(rows):
    arrivals = [(0, 2, 10), (1, 2, 1)]  # decodes from the second step on: there is one place
    ends = step_ends(replay(deployment(arrivals, max_batch_requests=1)).timeline)
    found = rows(*arrivals, (int(ends[2]), 2, 1), (int(ends[4]) + 1, 2, 1), max_batch_requests=1).rows
    assert columns(found, "step", "count", "waiting")[:5] == [(0, 1, 0), (1, 2, 1), (3, 3, 2), (6, 4, 3), (10, 1, 2)]


def test_a_step_in_which_an_instant_lies_is_cut_out_and_so_are_those_asked_for(rows):
    found = rows((0, 2, 10))
    ends = [0, *step_ends(replay(deployment([(0, 2, 10)])).timeline)]
    edges = np.array([ends[3] + 1, ends[6]])
    assert columns(found.cut(edges), "step", "count") == [(0, 1), (1, 2), (3, 1), (4, 2), (6, 4)]
    cut = found.cut(edges[:0], (0, 7, 8))
    assert columns(cut, "step", "count") == [(0, 1), (1, 6), (7, 1), (8, 1), (9, 1)]
    assert (cut["start_ns"].tolist(), cut["end_ns"].tolist()) == (
        [ends[at] for at in (0, 1, 7, 8, 9)],
        [ends[at] for at in (1, 7, 8, 9, 10)],
    )


def test_nothing_is_split_where_every_step_has_a_row(rows):
    found = rows((0, 2, 8), mode="full")
    assert found.rows["count"].tolist() == [1] * 8
    assert found.cut(np.array([1, 2, 30_000]))["start_ns"] is found.rows["start_ns"]
