"""What a legality rule is, what breaks one, and what a check concludes: plain data for every level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from clustersim.values import dataclass

Level = Literal["P", "G", "T", "X"]
"""The plan alone, the step graph, the recorded timeline, the execution of the graph."""

LEVELS: Final[tuple[Level, ...]] = get_args(Level)

Answer = Literal["legal", "illegal", "not_checkable"]

Change = tuple[tuple[str, Any], ...]
"""Dotted path of a scenario → value as it is written there, such as ``(("plan.tp.degree", 4),)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition that a legal deployment meets.

    Parameters
    ----------
    id : str
        Family and number, such as ``KV-4``.
    levels : tuple of Level
        Where it is checked, independently at each.
    statement, why : str
        What must hold; what goes wrong where it does not.
    source : str
        Document and section that it is taken from.
    example : str
        A change that must be caught.
    """

    id: str
    levels: tuple[Level, ...]
    statement: str
    why: str
    source: str
    example: str

    def as_json(self) -> dict[str, Any]:
        """Return the rule as the contract of ``rules --json`` has it."""
        document, _, section = self.source.partition(": ")
        return {
            "id": self.id,
            "level": " ".join(self.levels),
            "levels": list(self.levels),
            "statement": self.statement,
            "why": self.why,
            "source": self.source,
            "document": document,
            "section": section,
            "catches": self.example,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One place where a rule is broken.

    Parameters
    ----------
    rule, level : str
        Which rule, found at which level.
    where : str
        The offending value, such as ``plan.tp``; at the other levels the rank, step or node.
    message, fix : str
        What is wrong; what would be legal.
    change : Change
        The fix for a machine: applied, it leaves the rule unbroken at this place. Empty where no single change of
        the scenario would do.
    node : int or None
        Of a graph in a file, which of the nodes there, counted from 0.
    """

    rule: str
    level: Level
    where: str
    message: str
    fix: str
    change: Change = ()
    node: int | None = None

    def as_json(self) -> dict[str, str]:
        """Return the violation as the contract of ``check --json`` has it."""
        names = ("rule", "level", "where", "message", "fix")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """How much a rule found to look at, at one level; 0 means that it can't say anything.

    ``lacks`` names, in words, what the record can't tell of the rule, or what would make it checkable. ``relevant``
    says whether it must have looked at something, since the declared plan makes it relevant; None: nobody asked
    (:mod:`clustersim.legality.relevance`).
    """

    id: str
    level: Level
    looked_at: int
    lacks: tuple[str, ...] = ()
    relevant: bool | None = None

    @property
    def is_missed(self) -> bool:
        """Whether it should have looked at something and could not."""
        return bool(self.relevant) and not self.looked_at

    def as_json(self) -> dict[str, Any]:
        """Return it as the contract of ``check --json`` has it."""
        found: dict[str, Any] = {"id": self.id, "level": self.level, "looked_at": self.looked_at}
        return found if self.relevant is None else {**found, "relevant": self.relevant, "lacks": list(self.lacks)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdict:
    """Every violation, and what each rule looked at."""

    violations: tuple[Violation, ...]
    rules: tuple[LookedAt, ...]

    def __repr__(self) -> str:
        broken = ", ".join(dict.fromkeys(one.rule for one in self.violations))
        looked = sum(bool(one.looked_at) for one in self.rules)
        words = (
            f"{len(self.violations):,} against {broken}" if broken else f"{looked} of {len(self.rules)} rules looked"
        )
        return f"<Verdict {self.verdict.replace('_', ' ')}: {words}>"

    @property
    def verdict(self) -> Answer:
        """``illegal`` with any violation; ``not_checkable`` when a relevant rule, or each rule, looked at nothing."""
        if self.violations:
            return "illegal"
        if any(rule.is_missed for rule in self.rules):
            return "not_checkable"
        return "legal" if any(rule.looked_at for rule in self.rules) else "not_checkable"

    @property
    def needs(self) -> dict[str, list[str]]:
        """Where nothing is illegal: what would make relevant rules checkable that looked at nothing → these rules."""
        found: dict[str, list[str]] = {}
        for rule in self.rules if not self.violations else ():
            for words in rule.lacks if rule.is_missed else ():
                found.setdefault(words, []).append(rule.id)
        return found

    def of(self, rule: str, level: Level = "P") -> Answer:
        """Return what one rule answers at one level."""
        if any((found.rule, found.level) == (rule, level) for found in self.violations):
            return "illegal"
        looked = any((entry.id, entry.level) == (rule, level) and entry.looked_at for entry in self.rules)
        return "legal" if looked else "not_checkable"

    @property
    def levels(self) -> dict[Level, Answer]:
        """Level → what its rules answer together, of the levels that were asked."""
        asked = {rule.level for rule in self.rules}
        return {level: self.of_level(level).verdict for level in LEVELS if level in asked}

    def of_level(self, level: Level) -> Verdict:
        """Return what the rules found at one level."""
        return Verdict(
            violations=tuple(found for found in self.violations if found.level == level),
            rules=tuple(entry for entry in self.rules if entry.level == level),
        )

    def as_json(self) -> dict[str, Any]:
        """Return ``{verdict, levels, violations, rules}``, the contract of ``check --json``."""
        return {
            "verdict": self.verdict,
            "levels": dict(self.levels),
            "violations": [violation.as_json() for violation in self.violations],
            "rules": [rule.as_json() for rule in self.rules],
        }


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdicts of several levels as one."""
    found = tuple(verdicts)
    return Verdict(
        violations=tuple(violation for verdict in found for violation in verdict.violations),
        rules=tuple(rule for verdict in found for rule in verdict.rules),
    )
