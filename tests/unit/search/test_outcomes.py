"""Calls on any executor: each is made, whoever dies; one that kills its worker each time takes no other with it."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from clustersim.errors import InputError
from clustersim.search.executors import Executors, Here, opened
from clustersim.search.outcomes import Lost, outcomes
from tests.unit.search.calls import square, square_after_a_kill, square_of_even


def needs(kind: str) -> pytest.MarkDecorator:
    library = {"dask": "distributed", "ray": "ray"}[kind]
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed: clustersim[{kind}]")


EVERY = ["local", pytest.param("dask", marks=needs("dask")), pytest.param("ray", marks=needs("ray"))]


def calls(count: int, *more: Any) -> Any:
    return ((number, (number, *more)) for number in range(count))


@pytest.mark.filterwarnings("ignore")  # of Dask and Ray, on their ends
@pytest.mark.parametrize("executor", EVERY)
def test_calls_of_a_killed_worker_are_made_again(executor: str, tmp_path: Path) -> None:
    with opened(executor, 2) as executors:
        found = list(outcomes(executors, square_after_a_kill, calls(12, str(tmp_path), (3,), 1)))
    assert sorted(found) == [(number, number * number) for number in range(12)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_call_that_kills_each_worker_is_lost_and_no_other(tmp_path: Path) -> None:
    with opened("local", 2) as executors:
        found = dict(outcomes(executors, square_after_a_kill, calls(8, str(tmp_path), (2,), 99)))
    assert found.pop(2) == Lost(reason="the process that simulated it was killed, 3 times")
    assert found == {number: number * number for number in range(8) if number != 2}
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_call_raises_is_told_and_taken_for_no_death(workers: int) -> None:
    with opened("local", workers) as executors:
        with pytest.raises(InputError, match="3 is odd"):
            list(outcomes(executors, square_of_even, iter([(0, (3,))])))
        found = dict(outcomes(executors, square_of_even, iter([(0, (4,)), (1, (6,))])))
    assert found.pop(0).reason.endswith("(ZeroDivisionError: of four)")
    assert found == {1: 36}


def test_one_worker_calls_here_and_hands_out_one_call_at_a_time() -> None:
    drawn: list[int] = []

    def told() -> Any:
        for number in range(3):
            drawn.append(number)
            yield number, (number,)

    with opened("local", 1) as executors:
        for number, found in outcomes(executors, square, told()):
            assert found == number * number
            assert len(drawn) <= number + 2


class Gone(Executor):
    """A cluster that went away."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_a_cluster_that_went_away_is_told() -> None:
    executors = Executors(workers=2, pool=lambda: nullcontext(Gone()))
    with pytest.raises(InputError, match="the cluster went away; what is finished is kept"):
        list(outcomes(executors, square, calls(3)))


class Counting(Here):
    """A cluster that makes calls here, and counts what is handed out."""

    def __init__(self) -> None:
        self.handed: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.handed.append(len(args[1]))
        return super().submit(fn, *args, **kwargs)


def test_a_cluster_gets_short_calls_in_bundles_that_grow_and_what_one_raises_is_its_own() -> None:
    cluster, alone = Counting(), Counting()
    far = Executors(workers=2, pool=lambda: nullcontext(cluster), bundles=True)
    assert sorted(outcomes(far, square, calls(100))) == [(number, number * number) for number in range(100)]
    assert cluster.handed[:2] == [1, 1]
    assert all(size <= 2 * max(before) for before, size in accumulated(cluster.handed))
    assert len(cluster.handed) < 20
    list(outcomes(Executors(workers=2, pool=lambda: nullcontext(alone)), square, calls(9)))
    assert alone.handed == [1] * 9
    even = [2 * number for number in range(40)]  # 4 is a defect
    found = dict(outcomes(far, square_of_even, iter([(number, (number,)) for number in even])))
    assert found.pop(4).reason.endswith("(ZeroDivisionError: of four)")
    assert found == {number: number * number for number in even if number != 4}
    told = outcomes(far, square_of_even, iter([(number, (number,)) for number in [*even[3:], 71, 80]]))
    assert sorted(number for number, _ in islice(told, len(even) - 3)) == even[3:]
    with pytest.raises(InputError, match="71 is odd"):
        list(told)


def accumulated(sizes: list[int]) -> list[tuple[list[int], int]]:
    return [(sizes[:at], sizes[at]) for at in range(1, len(sizes))]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dsk", "did you mean 'dask'"),
        ("local:2", "no executor 'local:2'"),
        ("dask:nowhere", "cannot read the address 'nowhere'; expected host and port"),
        ("ray:tcp://127.0.0.1:99999", "cannot read the address"),
        ("dask:tcp://127.0.0.1:1", "nothing answers at tcp://127.0.0.1:1"),
        ("ray:127.0.0.1:1", "nothing answers at 127.0.0.1:1"),
    ],
)
def test_what_is_no_executor_is_refused(text: str, told: str) -> None:
    if text.startswith(("dask:", "ray:")) and find_spec({"d": "distributed", "r": "ray"}[text[0]]) is None:
        pytest.skip("not installed")
    with pytest.raises(InputError, match=told), opened(text, 2):
        pass


@pytest.mark.parametrize(("kind", "library"), [("dask", "distributed"), ("ray", "ray")])
def test_a_library_that_is_not_installed_is_told_with_its_extra(kind, library, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = rf"{library} is not installed; pip install 'clustersim\[{kind}\]'"
    with pytest.raises(InputError, match=told), opened(kind, 2):
        pass
