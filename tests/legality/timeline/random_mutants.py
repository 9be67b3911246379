"""Random changes of one place of the source, and who notices: ``python -m tests.legality.timeline.random_mutants``.

An operator, a comparison, a constant, a branch or an argument is another one, or a call is left out; scenarios of every
kind that come by that function are run and audited. What changes the record of one and is called legal is printed: a
decision or a price that nobody works out a second time. (What is compiled to machine code is not looked at.)
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import json
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import clustersim
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.everything import ALL
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline import late_replicas, test_source_mutations
from tests.legality.timeline.source_mutations import differing, patched

PACKAGES: Final = ("serving", "replay", "collective", "cost")
APART: Final = ("serving/custom", "serving/user_class.py", "serving/view.py", "story", "stall")
"""Compiled, or of users' own code, or words."""
LIMIT_S: Final = 20
COMPARED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COUNTED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


class TooLongError(Exception):
    """A scenario does not end."""


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """A module in whose tree a part of a node, or an element of it, is to be another one."""

    module: ModuleType
    tree: ast.Module
    holder: ast.AST
    name: str
    at: int | None
    node: ast.AST
    other: ast.AST

    @property
    def codes(self) -> tuple[CodeType, CodeType]:
        """The code of the module without and with the change."""
        was = compile(self.tree, str(self.module.__file__), "exec")
        self._put(self.other)
        other = compile(ast.fix_missing_locations(copy.deepcopy(self.tree)), str(self.module.__file__), "exec")
        self._put(self.node)
        return was, other

    def _put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.holder, self.name, node)
        else:
            getattr(self.holder, self.name)[self.at] = node

    def __str__(self) -> str:
        line = getattr(self.node, "lineno", 0)
        return f"{self.module.__name__}:{line}: {ast.unparse(self.node)} -> {ast.unparse(self.other)}"


@dataclass(slots=True)
class Seen:
    """What became of a mutant: in how many scenarios it was what."""

    counts: Counter[str] = field(default_factory=Counter)
    legal: list[str] = field(default_factory=list)


def others(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a part of the source."""
    match node:
        case ast.Compare(left=left, ops=[one], comparators=right) if type(one) in COMPARED:
            yield ast.Compare(left=left, ops=[COMPARED[type(one)]()], comparators=right)
        case ast.BinOp(left=first, op=by, right=second) if type(by) in COUNTED:
            yield ast.BinOp(left=first, op=COUNTED[type(by)](), right=second)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value=value + 1), ast.Constant(value=value - 1))
        case ast.Constant(value=float(value)):
            yield ast.Constant(value=value * 1.5 + 0.5)
        case ast.BoolOp(op=ast.And(), values=values):
            yield from (ast.BoolOp(op=ast.Or(), values=values), *values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield from (ast.BoolOp(op=ast.And(), values=values), *values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=args, keywords=more):
            yield ast.Call(
                func=ast.Name(id="min" if name == "max" else "max", ctx=ast.Load()), args=args, keywords=more
            )
        case ast.Call(func=ast.Name(id="sorted" | "reversed"), args=[listed, *_]):
            yield ast.Call(func=ast.Name(id="list", ctx=ast.Load()), args=[listed], keywords=[])
        case ast.Call(func=func, args=[first, second, *rest], keywords=more):
            yield ast.Call(func=func, args=[second, first, *rest], keywords=more)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()


def mutants_of(module: ModuleType) -> Iterator[Mutant]:
    """Yield all mutants of the functions of a module."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if any(one in function.name for one in APART):
            continue
        for holder in (function, *(node for statement in function.body for node in ast.walk(statement))):
            for name, value in ast.iter_fields(holder):
                if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(holder, ast.Call):
                    continue
                for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(node, ast.AST):
                        yield from (Mutant(module, tree, holder, name, at, node, one) for one in others(node))


def modules(packages: tuple[str, ...]) -> list[ModuleType]:
    """Return the modules of some packages."""
    root = Path(str(clustersim.__file__)).parent
    files = [path.relative_to(root) for one in packages for path in sorted((root / one).rglob("*.py"))]
    named = [path for path in files if path.stem != "__init__" and not any(one in path.as_posix() for one in APART)]
    return [import_module(".".join(("clustersim", *path.with_suffix("").parts))) for path in named]


def scenarios(seed: int, each: int) -> dict[str, dict[str, Any]]:
    """Return scenarios of all kinds: those of other tests of changes, and some that are drawn."""
    found = {f"source: {name}": one for name, one in test_source_mutations.SCENARIOS.items()}
    found |= {f"late: {name}": one for name, one in late_replicas.SCENARIOS.items()}
    for name, drawn in ALL.items():
        kept: list[dict[str, Any]] = []

        @hypothesis.seed(seed)
        @settings(
            max_examples=3 * each, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )  # fmt: skip
        @given(drawn)
        def draw(kept: list[dict[str, Any]], document: dict[str, Any]) -> None:
            kept.append(document)

        draw(kept)
        found |= {f"{name} {number}": one for number, one in enumerate(kept[-each:])}
    return found


def run(document: dict[str, Any]) -> RunResult:
    """Simulate a scenario; what takes far too long has gone wrong.

    Raises
    ------
    TooLongError
        When it takes longer than ``LIMIT_S``.
    """

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        return simulate(scenario_of(document))
    finally:
        signal.alarm(0)


def reached(documents: Mapping[str, dict[str, Any]]) -> tuple[dict[str, str], dict[tuple[str, str], set[str]]]:
    """Return the digest of each scenario, and which scenarios come by which functions (file and qualified name)."""
    digests, found = {}, defaultdict[tuple[str, str], set[str]](set)
    for name, document in documents.items():
        _forget()
        seen: set[CodeType] = set()
        sys.setprofile(lambda frame, event, _, seen=seen: seen.add(frame.f_code) if event == "call" else None)
        try:
            digests[name] = run(document).timeline.digest
        finally:
            sys.setprofile(None)
        for code in seen:
            found[code.co_filename, code.co_qualname].add(name)
    return digests, found


def _forget() -> None:
    """Forget what functions keep of what they were asked before."""
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper) and one.__module__.startswith("clustersim."):
            one.cache_clear()


def tried(
    mutant: Mutant,
    codes: tuple[CodeType, CodeType],
    documents: Mapping[str, dict[str, Any]],
    digests: Mapping[str, str],
) -> Seen:
    """Run and audit scenarios with a mutant."""
    seen = Seen()
    with pytest.MonkeyPatch.context() as patch:
        if not [one for one in differing(*codes) if patched(patch, mutant.module, one)]:
            return seen
        for name, document in documents.items():
            _forget()
            try:
                result = run(document)
                digest = result.timeline.digest
            except TooLongError:
                seen.counts["does not end"] += 1
                break
            except Exception:  # whatever a mistake leads to, a run that ends with it is noticed
                seen.counts["fails"] += 1
                continue
            if digest == digests[name]:
                seen.counts["changes nothing"] += 1
                continue
            try:
                verdict = audit_run(result).verdict
            except Exception:
                verdict = "fails in the audit"
            seen.counts[verdict] += 1
            seen.legal += [name] if verdict == "legal" else []
    _forget()
    return seen


def main() -> None:
    """Try mutants, and print what is called legal though it changes what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=6, help="scenarios that are drawn of each kind")
    parser.add_argument("--most", type=int, default=8, help="scenarios that each mutant is tried on")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    chosen = parser.parse_args()
    documents = scenarios(chosen.seed, chosen.each)
    digests, known = reached(documents)
    draw, counts = random.Random(chosen.seed), Counter[str]()
    every = [one for module in modules(tuple(chosen.packages)) for one in mutants_of(module)]
    draw.shuffle(every)
    print(f"{len(documents)} scenarios, {len(every):,} mutants", flush=True)
    for mutant in every:
        codes = mutant.codes
        names = {code.co_qualname for _, code in differing(*codes)}
        those = sorted({name for one in names for name in known[str(mutant.module.__file__), one]})
        if not those:
            counts["not reached"] += 1
            continue
        draw.shuffle(those)
        seen = tried(mutant, codes, {name: documents[name] for name in those[: chosen.most]}, digests)
        if not seen.counts:
            continue
        verdict = next(one for one in _WORST if seen.counts[one])
        counts[verdict] += 1
        if seen.legal:
            told = json.dumps(documents[seen.legal[0]])
            print(f"LEGAL {mutant}: {dict(seen.counts)} {seen.legal}, such as {told}", flush=True)
        if sum(number for one, number in counts.items() if one != "not reached") >= chosen.count:
            break
    print(dict(counts))


_WORST: Final = ("legal", "illegal", "not_checkable", "fails in the audit", "fails", "does not end", "changes nothing")


if __name__ == "__main__":
    main()
