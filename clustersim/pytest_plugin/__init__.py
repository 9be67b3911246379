"""The pytest plugin: scenarios with an ``expect`` are tests, and fixtures simulate, check and compare with goldens.

It is loaded wherever clustersim is installed, so it imports nothing of clustersim before a test needs it.

``pytest scenarios/``
    Every YAML file with ``model``, ``expect`` and another key of a scenario is a test: what it expects must hold.
    A scheduler or router of a scenario's own is Python code, and runs only with ``--allow-code``, with
    ``clustersim_allow_code = true`` in the settings of the project's pytest, or with ``CLUSTERSIM_ALLOW_CODE=1``.
``simulate(scenario, **{"plan.tp": 4})``
    A path (relative to the test's file, or to the working directory) or the name of a scenario that ships; keywords
    are the paths of ``--set``. The result has ``summary``, ``requests``, ``timeline`` and ``legal``.
``assert_legal(result)``
    Checks the plan and what was recorded; raises AssertionError with every broken rule, where, and how it shows.
``golden_timeline(result)``
    Compares with the timeline that is stored beside the test; ``pytest --update-golden`` stores it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from clustersim.library.result import Result
    from clustersim.pytest_plugin.golden import GoldenTimeline
    from clustersim.pytest_plugin.scenario_file import ScenarioFile
    from clustersim.simulation.simulate import RunResult

UPDATE: Final = "--update-golden"
ALLOW_CODE: Final = "--allow-code"
ALLOW_CODE_INI: Final = "clustersim_allow_code"
_ALLOWED: Final = "run Python that scenarios name: their own schedulers and routers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take a setting of the project: whether its scenarios may bring code."""
    parser.addini(ALLOW_CODE_INI, type="bool", default=False, help=_ALLOWED)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None]:
    """Offer ``--update-golden`` and ``--allow-code``, unless the project has an option of that name itself."""
    yield
    missing = object()
    golden = "rewrite goldens with what comes out now; each test that rewrites one fails"
    for name, words in ((UPDATE, golden), (ALLOW_CODE, _ALLOWED)):
        if early_config.getoption(name, default=missing) is missing:
            parser.getgroup("clustersim").addoption(name, action="store_true", default=False, help=words)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Take YAML files that are scenarios with an ``expect``."""
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    from clustersim.pytest_plugin.scenario_file import ScenarioFile, is_test

    if not is_test(file_path, named=parent.session.isinitpath(file_path)):
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """Return ``simulate(scenario, **overrides)``; an illegal plan is checked and not simulated."""
    from clustersim.pytest_plugin.scenario_file import allows_code
    from clustersim.pytest_plugin.simulated import simulated

    def run(scenario: str | Path, **overrides: Any) -> Result:
        return simulated(scenario, overrides, beside=request.path.parent, allow_code=allows_code(request.config))

    return run


@pytest.fixture
def assert_legal() -> Callable[[Result | RunResult], None]:
    """Return ``assert_legal(result)``; see :func:`clustersim.pytest_plugin.simulated.check_legal`."""
    from clustersim.pytest_plugin.simulated import check_legal

    return check_legal


@pytest.fixture
def golden_timeline(request: pytest.FixtureRequest) -> GoldenTimeline:
    """Return ``golden_timeline(result, name="")``; see :class:`clustersim.pytest_plugin.golden.GoldenTimeline`."""
    from clustersim.pytest_plugin.golden import GoldenTimeline

    update = bool(request.config.getoption(UPDATE, default=False))
    return GoldenTimeline(test_file=request.path, test_name=request.node.name, update=update)
