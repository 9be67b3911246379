"""A user's router and schedulers beside the core: in which order they are asked, and what they are shown."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from clustersim.compiled import Arrays, Objects
from clustersim.core import state as st
from clustersim.core.steps import ended_before, touch
from clustersim.errors import IllegalDecisionError
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.core_custom import fields_of, in_order
from clustersim.replay.replay import replay
from clustersim.serving.user_class import UserClass
from tests.round_numbers import deployment

HEAD = "from clustersim.serving.view import Choice\n\n\nclass Mine:\n"
RECORDER = """
    def __init__(self, seen):
        self.seen = seen

    def decide(self, view):
        self.seen.append((view.now_ns, len(view.waiting), len(view.running)))
        return Choice(tokens={one.request: one.to_compute for one in (*view.running, *view.waiting)}, again=True)

    def route(self, view):
        self.seen.append((view.now_ns, view.request, [one.waiting for one in view.replicas]))
        return view.request % len(view.replicas)
"""


def user(tmp_path, method, seen):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + RECORDER)
    return UserClass(path=str(path), name="Mine", method=method, options={"seen": seen}, allowed=True)


def asked(tmp_path, key, method, arrivals, **kwargs):
    """Return what a user's class saw by events and by the core, which must be the same."""
    by_mode = []
    for mode in ("full", "folded"):
        seen: list[object] = []
        replay(replace(deployment(arrivals, mode=mode, **{key: user(tmp_path, method, seen)}, **kwargs)))
        by_mode.append(seen)
    assert by_mode[0] == by_mode[1]
    return by_mode[0]


def sequences(storage):
    """Four sequences with (rank, then, request) of (1, 0, 0), (0, 9, 1), (0, 3, 2) and (0, 3, 3)."""
    found = storage.records(st.Sequence, 4)
    for number, (rank, then) in enumerate([(1, 0), (0, 9), (0, 3), (0, 3)]):
        for name, value in (("rank", rank), ("then", then), ("request", number)):
            if isinstance(storage, Arrays):
                found[name][number] = value
            else:
                setattr(found[number], name, value)
    return found


@pytest.mark.parametrize("storage", [Objects(), Arrays()], ids=["objects", "arrays"])
def test_those_that_wait_are_shown_in_their_order(storage):
    heap = storage.numbers(4)
    for place, number in enumerate((3, 0, 2, 1)):
        heap[place] = number
    found = in_order(sequences(storage), heap)
    assert [int(one) for one in found] == [2, 3, 1, 0]
    assert fields_of(sequences(storage), found, ("then", "rank")) in ([[3, 3, 9, 0], [0, 0, 0, 1]],
                                                                      [(3, 3, 9, 0), (0, 0, 0, 1)])  # fmt: skip


def test_replicas_decide_in_the_order_of_their_numbers_and_a_group_as_its_first_one():
    state = SimpleNamespace(
        clock=[SimpleNamespace(touched=0)],
        replicas=[SimpleNamespace(is_touched=0, group_first=first) for first in (0, 1, 2, 3, 4, 4, 4)],
        touched=[0] * 7,
    )
    for replica in (2, 6, 0, 2, 5, 3, 1, 0):
        touch(state, replica)
    assert state.touched[: state.clock[0].touched] == [0, 1, 2, 3, 4]


def test_a_choice_that_stands_is_not_asked_for_until_somebody_comes(tmp_path):
    # Prompts of 4 tokens take a step each time somebody comes; in between and behind that, decode steps are one run.
    seen = asked(tmp_path, "scheduler", "decide", [(0, 4, 9), (25_000, 4, 9)])
    assert [(waiting, running) for _, waiting, running in seen] == [(1, 0), (0, 1), (1, 1), (0, 2), (0, 1)]


def test_who_has_its_last_token_beside_a_prompt_is_not_shown_again(tmp_path):
    # Tokens of 0 take 6,610 ns each; its fourth and last one shares a step with the prompt of 1.
    seen = asked(tmp_path, "scheduler", "decide", [(0, 1, 4), (19_830, 1, 2)])
    assert [(waiting, running) for _, waiting, running in seen] == [(1, 0), (0, 1), (1, 1), (0, 1)]


def test_clients_of_a_closed_loop_are_all_routed_before_a_wait_is_over(tmp_path):
    # 2 and 3 give up at once, and so let 4 and 5 come; 5 is turned away, and lets 6 come while 4 still waits.
    arrivals = [(0, 4, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1), (0, 0, 1), (0, 4, 1)]
    seen = asked(
        tmp_path, "router", "route", arrivals, plan=ParallelPlan(), concurrency=2, queue_timeout_ns=0,
        max_batch_requests=1,
    )  # fmt: skip
    assert seen[-1] == (0, 6, [1])


@pytest.mark.parametrize("r", [0, 1])
def test_a_run_is_looked_at_from_where_it_was_and_that_of_a_group_is_its_first_ones(monkeypatch, r):
    took = [5, 7, 9, 4]
    monkeypatch.setattr("clustersim.core.steps.step_ns", lambda p, flight, pending, step: took[step])
    flight = SimpleNamespace(start=100, steps=4, ended=0, next_end=0)
    group = [SimpleNamespace(group_first=0)] * 2
    state = SimpleNamespace(flights=[[flight], [None]], pending=[None, None], replicas=group)
    # Steps end at 105, 112, 121 and 125.
    assert [ended_before(state, None, r, instant) for instant in (105, 106, 112, 122, 900)] == [
        (0, 105), (1, 112), (1, 112), (3, 125), (3, 125)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("{1: 1, 0: 4}", "4 tokens of request 0 need 1 more block, and 0 are free"),
        ("{0: 4, 1: 1}", "1 token of request 1 needs 1 more block, and 0 are free"),
    ],
)
@pytest.mark.parametrize("mode", ["full", "folded"])
def test_what_decodes_takes_its_block_first_where_it_is_named_first(tmp_path, last, message, mode):
    # Of three blocks of 4 tokens each holds one; the next tokens of both enter another one. 0 was admitted first.
    body = f"""
    plan = [{{0: 4, 1: 3}}, {{1: 1}}, {last}]

    def decide(self, view):
        return Choice(tokens=self.plan.pop(0))
"""
    path = tmp_path / "mine.py"
    path.write_text(HEAD + body)
    mine = UserClass(path=str(path), name="Mine", method="decide", allowed=True)
    with pytest.raises(IllegalDecisionError, match=message):
        replay(deployment([(0, 8, 1), (0, 3, 5)], scheduler=mine, kv_block_tokens=4, kv_blocks=3, mode=mode))
