"""A scenario as a test: collected by its keys, run whole, and failed with the places of what did not hold."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from clustersim.pytest_plugin import ALLOW_CODE, ALLOW_CODE_INI

if TYPE_CHECKING:
    from clustersim.errors import Problem
    from clustersim.scenario.scenario import Scenario

EXPECT: Final = "expect"
OTHERS: Final = ("model", "topology", "workload", "plan", "serving")
_KEY: Final = re.compile(rf"(?<![\w.-])[\"']?({'|'.join((EXPECT, *OTHERS))})[\"']?[ \t]*:")
_FIRST: Final = re.compile(r"^([ \t]*)(?!---|%)[^\s#]", re.MULTILINE)
_BRACE: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*|---[^\n]*|%[^\n]*)?\n)*[ \t]*\{")
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class FailedScenarioError(Exception):
    """What a scenario expects does not hold, or it can't be run; the message has a line per problem."""


def is_test(path: Path, *, named: bool = False) -> bool:
    """Whether a YAML file is a scenario with an ``expect``: a mapping with that and two more keys of a scenario.

    The first look is at the text alone. A scenario with mistakes in it is one too, also where it is no YAML or no
    UTF-8, so that they fail and are not overlooked; what is no scenario is never parsed. The resolved scenario in a
    run directory is a record, and a test only when its path was ``named``.
    """
    if not named and path.name == "scenario.yaml" and path.with_name("verdict.json").exists():
        return False
    from clustersim.errors import InputError
    from clustersim.inputs import DOCUMENT_BYTES, read_bytes

    try:
        raw = read_bytes(path, most=DOCUMENT_BYTES)
    except InputError:
        return False
    text = raw.decode("utf-16" if raw.startswith(_UTF16) else "utf-8-sig", errors="replace").replace("\r\n", "\n")
    return _is_scenario(_KEY.findall(text)) and _is_scenario(_top_keys(text))


def _is_scenario(keys: Iterable[str]) -> bool:
    found = set(keys)
    return EXPECT in found and len(found.intersection(OTHERS)) >= 2


def _top_keys(text: str) -> set[str]:
    """Return the keys of a document that is a mapping; where it can't be read, what look like its keys."""
    from clustersim.errors import InputError
    from clustersim.scenario.document import parse_yaml

    try:
        data = parse_yaml(text, "").data
    except InputError:
        return set(_KEY.findall(text)) if _BRACE.match(text) else _beginning_lines(text)
    return set(data) if isinstance(data, dict) else set()


def _beginning_lines(text: str) -> set[str]:
    """Return the keys at the beginning of lines that are indented like the first one."""
    first = _FIRST.search(text)
    indent = first[1] if first is not None else ""
    return {
        match[1]
        for line in text.splitlines()
        if (match := _KEY.match(line, len(indent))) and line[: len(indent)] == indent
    }


def allows_code(config: pytest.Config) -> bool | None:
    """Whether the project or the command line allows Python of scenarios to run; None: as the environment has it."""
    return bool(config.getini(ALLOW_CODE_INI)) or config.getoption(ALLOW_CODE, default=False) is True or None


class ScenarioFile(pytest.File):
    """A YAML file with a scenario; it holds one test, ``expect``."""

    def collect(self) -> Iterable[ScenarioItem]:
        """Yield the test."""
        yield ScenarioItem.from_parent(self, name="expect")


class ScenarioItem(pytest.Item):
    """Runs a scenario and compares its summary with what it expects."""

    def runtest(self) -> None:
        """Check, simulate, compare.

        Raises
        ------
        FailedScenarioError
            With every problem of the file, every violation that is not expected, or every expectation that failed.
        """
        from clustersim.cli.status import problems_text
        from clustersim.errors import InputError

        try:
            problems = failures(self.path, allow_code=allows_code(self.config))
        except InputError as error:
            problems = error.problems
        if problems:
            raise FailedScenarioError(problems_text(problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the problems alone; a traceback only of what nobody foresaw."""
        if isinstance(excinfo.value, FailedScenarioError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the test is written."""
        return self.path, None, f"{self.path.name}: expect"


def failures(path: Path, *, allow_code: bool | None = None) -> Sequence[Problem]:
    """Run a scenario and return what of its ``expect`` does not hold, at its place in the file.

    What it records is audited, as ``clustersim run`` does. What is illegal before it runs is not simulated: it meets
    ``legal: false`` and nothing else.
    """
    from clustersim.errors import Problem
    from clustersim.pytest_plugin.simulated import simulated
    from clustersim.simulation.legality import problem

    result = simulated(path, {}, beside=path.parent, allow_code=allow_code)
    scenario, places = result.scenario, expectation_paths(result.scenario)
    found: list[Problem] = []
    for expectation in scenario.expect:
        found += [
            scenario.origin.problem(places.get(expectation.key, ("expect",)), message)
            for message in expectation.check(result.summary)
        ]
    foreseen = any(expectation.key == "legal" for expectation in scenario.expect) and not found
    for violation in result.verdict.violations:
        if foreseen and violation.level != "T":  # what was recorded is illegal: nobody can mean that
            continue
        if violation.level == "P":
            found.append(problem(scenario, violation))
        else:
            where = f"[{violation.rule}] {violation.where}: {violation.message}; {violation.fix}"
            found.append(Problem(message=where, file=scenario.origin.file))
    return found


def expectation_paths(scenario: Scenario) -> dict[str, tuple[str | int, ...]]:
    """Return where each expected key of the summary is written: ``requests.finished`` → ``("expect", "finished")``."""
    from clustersim.scenario.expect import SHORT_KEYS

    written = {".".join(map(str, path[1:])): path for path in scenario.origin.marks if path[:1] == ("expect",)}
    return {SHORT_KEYS.get(key, key): path for key, path in written.items()}
