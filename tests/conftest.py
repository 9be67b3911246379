"""Fixtures of all tests, in how many processes they run, and how much of what is random they try.

The option that rewrites regression goldens is that of ``clustersim.pytest_plugin``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest

from clustersim.cli.memory import keep_memory
from tests.cpu import SpentTime
from tests.effort import PLAIN, is_whole, set_factor

if TYPE_CHECKING:
    from clustersim.replay.replay import ReplayInput, ReplayResult

ALL_FILES: Final = 300
"""Files from which on a run is one of all tests."""
LONGEST: Final = {"azure-hour-fleet", "deepseek-v3-pools", "deepseek-v3-two-batch", "deepseek-v3-wide-ep"}
"""Scenarios that take as long as all others: a plain pytest of all files runs them shorter (``test_digests.py``)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what is tried at night."""
    told = (
        f"try N times as much of what is drawn at random (20 where N is left out, {PLAIN:.2f} without the option),"
        " and from 2 on all of what a sample stands for"
    )
    parser.getgroup("clustersim").addoption(
        "--long", nargs="?", type=int, default=PLAIN, const=20, metavar="N", help=told
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take the number of examples before any module of tests is loaded; compile modules once for all processes."""
    set_factor(config.getoption("--long"))
    config.pluginmanager.register(SpentTime())
    if config.option.markexpr != "benchmark":  # what is measured is what users have
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # functions that a search compiles, as Python
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # in processes of xdist: there is one per core already
    for finder in sys.meta_path:  # pytest rewrites asserts of whatever package brings a plugin: here, of 600 modules
        getattr(finder, "_must_rewrite", set()).discard("clustersim")
    if sys.dont_write_bytecode and hasattr(config, "cache"):  # not beside the sources, where nobody wants it
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.cache.mkdir("bytecode"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Load modules from the last on in every other process: each then finds half of them compiled by another one."""
    report = yield
    if isinstance(collector, pytest.Directory) and _number(collector.config) % 2 == 1:
        report.result.reverse()
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is run shorter elsewhere; put tests into one order in all processes, which xdist asks for."""
    if not is_whole() and len({item.path for item in items}) >= ALL_FILES:
        left = [item for item in items if item.path.suffix == ".yaml" and item.path.stem in LONGEST]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    if _number(config) >= 0:
        items.sort(key=lambda item: item.path)


def _number(config: pytest.Config) -> int:
    """Return the number of a process of xdist, from 0; below it where there are none."""
    return int(getattr(config, "workerinput", {}).get("workerid", "gw-2")[2:])


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what stays until the end: modules and thousands of tests."""
    gc.collect()
    gc.freeze()
    keep_memory()


@pytest.fixture
def run() -> Callable[[ReplayInput], ReplayResult]:
    """Replay and audit: no request, token or K/V block may be lost in any simulated test."""
    from tests.audit import replayed

    return replayed


@pytest.fixture
def oracle() -> Iterator[None]:
    """Let the oracle simulate, for tests that break its code."""
    from tests.oracle.run import by_oracle

    with by_oracle():
        yield


@pytest.fixture
def checked_figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each figure that is written into a page to plotly's own objects; there must be some."""
    from checked_figure import checked

    from clustersim.report.figures.figure import Figure

    seen, written = [], Figure.to_json

    def spied(figure: Figure) -> str:
        seen.append(checked(figure))
        return written(figure)

    monkeypatch.setattr(Figure, "to_json", spied)
    yield
    assert seen


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run all tests in a process per core; those that were named, are shown or are measured in this one."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    alone = named or config.option.capture == "no" or config.option.markexpr != "not benchmark"
    return 0 if alone else min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, 8)
