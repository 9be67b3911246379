"""The nearest legal scenario: what must change, why, and the file that is written.

The text of the user is kept but for the values that change. Of the references to files only those are rewritten that
would lead nowhere from the folder of the new file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.errors import InputError, Problem
from clustersim.files import refuse_unwritable, written_whole
from clustersim.legality.deployment import counted
from clustersim.legality.repair.nearest import MOST_EXAMINED, Asked
from clustersim.legality.rulebook import RULES
from clustersim.scenario.document import Document, KeyPath, parse_json, parse_yaml, read_text, shown
from clustersim.scenario.load import build_scenario
from clustersim.scenario.lookup import find_scenario, is_path
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.scenario.text.edit import edited
from clustersim.scenario.text.flow import flow
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.repair.proposals import Proposal, Proposals
from clustersim.values import dataclass

_POOLS: Final[tuple[KeyPath, ...]] = ((), ("prefill",), ("decode",))
_REFERENCES: Final[tuple[KeyPath, ...]] = (
    ("topology",), ("topology", "name"), ("topology", "device"), ("model",), ("model", "name"),
    ("serving", "engine"), ("serving", "engine", "name"), ("workload", "trace"), ("workload", "trace", "path"),
    ("workload", "prompt_tokens", "empirical", "trace"), ("workload", "output_tokens", "empirical", "trace"),
    ("cost", "table"), *(("plan", *pool, "ep", "routing", "file") for pool in _POOLS),
)  # fmt: skip
"""Where a scenario may name a file."""
_CLASSES: Final[tuple[KeyPath, ...]] = tuple(
    ("serving", *pool, key) for pool in _POOLS for key in ("scheduler", "router")
)
"""Where a scenario may name a class in a file of its own: ``FILE.py:NAME``."""
_ALWAYS_FILES: Final = ("trace", "path", "table", "file")
"""Keys whose value is no name of ours."""
SUFFIXES: Final = (".yaml", ".yml")
_STATEMENTS: Final = {rule.id: rule.statement for rule in RULES}
_UNSET: Final[Mapping[str, Any]] = {"plan.stages": "balanced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One changed field: what it was and is, and the rule that asked for it.

    Parameters
    ----------
    path : str
        As ``--set`` has it.
    old, new : object
        Plain data; None where nothing was said.
    rule, message, statement : str
        The rule, what it finds when all is changed but this, and what it says.
    """

    path: str
    old: Any
    new: Any
    rule: str
    message: str
    statement: str

    def as_json(self) -> dict[str, Any]:
        """Return the change as ``check --fix --json`` has it."""
        names = ("path", "old", "new", "rule", "message", "statement")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        old = "not said" if self.old is None else flow(self.old)
        return f"{self.path.removesuffix('.degree')}: {old} → {flow(self.new)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One of the legal scenarios nearby.

    Parameters
    ----------
    changes : tuple of FieldChange
    distance : float
        See :mod:`clustersim.legality.repair.distance`.
    why : str
        What of the plan is kept, and what is not.
    simulates : bool
        Whether ``run`` would simulate it.
    """

    changes: tuple[FieldChange, ...]
    distance: float
    why: str
    simulates: bool

    def as_json(self) -> dict[str, Any]:
        """Return the alternative as ``check --json`` has it."""
        changes = [{name: getattr(one, name) for name in ("path", "old", "new", "rule")} for one in self.changes]
        return {
            "changes": changes, "distance": self.distance, "why": self.why, "legal": True, "simulates": self.simulates,
        }  # fmt: skip

    def __str__(self) -> str:
        return ", ".join(map(str, self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The nearest legal scenario, or why there is none.

    Parameters
    ----------
    changes : tuple of FieldChange or None
        None where nothing near is legal; empty where nothing had to change.
    reason : str or None
        Why nothing is.
    alternatives : tuple of Alternative
        What is legal nearby, the nearest (which the changes are) first.
    examined, tried, proven : int
        Candidates that the search judged by the rules of plans; of those that passed, how many were made a scenario and
        checked as one; and how many of these were legal.
    """

    changes: tuple[FieldChange, ...] | None
    reason: str | None = None
    alternatives: tuple[Alternative, ...] = ()
    examined: int = 0
    tried: int = 0
    proven: int = 0


def fix_scenario(scenario: Scenario, *, alternatives: int = 1) -> Fix:
    """Search for the nearest legal scenarios.

    Parameters
    ----------
    scenario : Scenario
    alternatives : int
        How many to look for at most. Each is checked by :func:`clustersim.simulation.legality.check_scenario` before
        it is offered.
    """
    if not check_scenario(scenario).violations:
        return Fix(changes=())
    proposals = Proposals(scenario)
    found = tuple(_alternative(scenario, one) for one in islice(proposals.each(), alternatives))
    counts = {name: getattr(proposals, name) for name in ("examined", "tried", "proven")}
    if found:
        return Fix(changes=found[0].changes, alternatives=found, **counts)
    gave_up = f" among the {counted(MOST_EXAMINED, 'candidate')} looked at" if proposals.search.gave_up else ""
    what = "of the plans or limits of the pools makes both" if scenario.hands_over else "of plan or limits makes it"
    left = "; ".join(proposals.search.left() or (one.message for one in check_scenario(scenario).violations))
    return Fix(changes=None, reason=f"no change {what} legal{gave_up}: {left}", **counts)


def instead_of(scenario: Scenario, alternatives: int) -> tuple[Alternative, ...]:
    """Return what can be written instead of a plan that is legal, and that no step graphs can be expanded for."""
    return tuple(_alternative(scenario, one) for one in islice(Proposals(scenario).each(), alternatives))


def _alternative(scenario: Scenario, proposal: Proposal) -> Alternative:
    return Alternative(
        changes=tuple(_field_change(scenario, asked) for asked in proposal.changes),
        distance=proposal.distance,
        why=proposal.why,
        simulates=proposal.simulates,
    )


def _field_change(scenario: Scenario, asked: Asked) -> FieldChange:
    old: Any = scenario.document
    for part in asked.path.split("."):
        old = old.get(part) if isinstance(old, Mapping) else None
    return FieldChange(
        path=asked.path,
        old=_UNSET.get(asked.path) if old is None else old,
        new=asked.value,
        rule=asked.rule,
        message=asked.message,
        statement=_STATEMENTS[asked.rule],
    )


def default_target(name: str) -> Path:
    """Return where a fixed scenario goes: beside the scenario, or into the working directory for one that ships."""
    file = find_scenario(name)
    folder = Path() if _inside(file, catalog.data_root() / "scenarios") and not is_path(name) else file.parent
    return folder / f"{file.stem}.legal{file.suffix}"


def fixed_text(name: str, overrides: Sequence[str], fix: Fix, target: Path) -> str:
    """Return the text of a scenario with overrides and changes, as it must stand at ``target``.

    Raises
    ------
    InputError
        When it can't be loaded there.
    """
    file = find_scenario(name)
    text = read_text(file)
    document = _parsed(text, shown(file))
    changes = [_as_override(document, overrides, change) for change in fix.changes or ()]
    wanted = apply_overrides(document, [*overrides, *changes], SHORTHANDS)
    _relocate(wanted, file.parent, target.parent)
    found = edited(text, wanted.data, file.name)
    _check(found, target)
    return found


def _parsed(text: str, name: str) -> Document:
    return parse_json(text, name) if name.endswith(".json") else parse_yaml(text, name)


def _as_override(document: Document, overrides: Sequence[str], change: FieldChange) -> str:
    """Write a change as an override, in the short form where the scenario has that: ``tp: 6`` becomes ``tp: 4``."""
    path = change.path
    if path.endswith(".degree"):
        holder: Any = apply_overrides(document, overrides, SHORTHANDS).data
        for part in path.split(".")[:-1]:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            path = path.removesuffix(".degree")
    return f"{path}={flow(change.new)}"


def _relocate(document: Document, source: Path, target: Path) -> None:
    """Rewrite, in place, the references to files that are found from ``source`` and not from ``target``."""
    for path in (*_REFERENCES, *_CLASSES):
        holder: Any = document.data
        for part in path[:-1]:
            holder = holder.get(part) if isinstance(holder, dict) else None
        value = holder.get(path[-1]) if isinstance(holder, dict) else None
        if not isinstance(value, str) or not (is_path(value) or path[-1] in _ALWAYS_FILES or path in _CLASSES):
            continue
        value, colon, name = value.rpartition(":") if path in _CLASSES else (value, "", "")
        if not value:  # a scheduler or router of ours
            continue
        bases = [Path.cwd()] if document.mark(path).file.startswith("--set") else []
        file = next((base / value for base in (*bases, source, catalog.data_root()) if (base / value).is_file()), None)
        there = next((base / value for base in (target, catalog.data_root()) if (base / value).is_file()), None)
        if file is not None and (there is None or there.resolve() != file.resolve()):
            holder[path[-1]] = _reference(file.resolve(), target.resolve()) + colon + name


def _reference(file: Path, folder: Path) -> str:
    if _inside(file, catalog.data_root()):
        return file.relative_to(catalog.data_root().resolve()).as_posix()
    return Path(os.path.relpath(file, folder)).as_posix()


def _inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _check(text: str, target: Path) -> None:
    """Load what is about to be written, and check it once more."""
    document = _parsed(text, str(target))
    document.data.setdefault("name", target.stem)
    violations = check_scenario(build_scenario(document)).violations
    if violations:  # the same rules found nothing wrong before it was written down
        raise InputError(Problem(message=f"is still illegal: {violations[0].message}", file=shown(target)))


def refuse_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there already and may not be overwritten, or that can't be written.

    Raises
    ------
    InputError
        With what would do.
    """
    refuse_unwritable(target)
    message = None
    if target.suffix not in SUFFIXES:
        message = f"expected a name that ends in {' or '.join(SUFFIXES)}: what is written is a scenario in YAML"
    elif target.exists() and not overwrite:
        message = "is there already and is not overwritten; name it with --out to do so, or another file"
    if message is not None:
        raise InputError(Problem(message=message, file=shown(target)))


def write_whole(text: str, target: Path) -> None:
    """Write a file as a whole or not at all."""
    with written_whole(target) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
