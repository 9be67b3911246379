"""A class in a user's own Python file: found, made with its options, and asked with errors placed in that file.

Whoever wrote a scenario need not be who runs it: the file is run only where that one has said so. Without, its text
is looked at, and nothing of it runs.
"""

from __future__ import annotations

import ast
import inspect
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from clustersim import inputs
from clustersim.errors import InputError, Problem, TerminatedError, did_you_mean
from clustersim.values import dataclass

ALLOW_CODE: Final = "CLUSTERSIM_ALLOW_CODE"
"""Environment variable that, as ``1``, allows code of scenarios to run."""

_KINDS: Final = {"decide": "scheduler", "route": "router"}
Answer = TypeVar("Answer")
_LONGEST: Final = 200


def code_allowed(said: bool | None = None) -> bool:
    """Return whether Python that a scenario names may run: as was said, or else as the environment has it."""
    return os.environ.get(ALLOW_CODE) == "1" if said is None else said


def shown(value: object) -> str:
    """Return what a user's code answered as text; also what is too long, or can't be shown."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that can't be shown>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def whole_number(value: Any) -> int | None:
    """Return a whole number of a user's code as a plain one, also of NumPy's; None where it is none, or a bool."""
    kind = type(value)
    if issubclass(kind, int):  # a subclass may count and compare as it likes; what counts is its value
        return None if kind is bool else int.__int__(value)
    try:
        return operator.index(value)
    except TypeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserClass:
    """A class of a file.

    Parameters
    ----------
    path : str
        The file.
    name : str
        The class.
    method : str
        What it must be able to do, such as ``decide``.
    options : mapping
        Keyword arguments that it is made with.
    allowed : bool
        Whether whoever runs this agreed to run the file.
    """

    path: str
    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    allowed: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{Path(self.path).name}:{self.name}"

    @property
    def refusal(self) -> str:
        """What is said where the file may not run."""
        kind = _KINDS.get(self.method, self.method)
        return (
            f"a {kind} of one's own is Python code: it would run the file {self.path}, and class {self.name} of it, "
            f"with all that you may do; read it, and allow it with --allow-code ({ALLOW_CODE}=1, or "
            "load(…, allow_code=True))"
        )

    def seen(self) -> None:
        """Look for the class and its method in the text of the file, and run nothing.

        Raises
        ------
        InputError
            When the file is no Python, or can't have such a class.
        """
        tree = self._parsed()
        bound = _bound(tree)
        if bound is not None and self.name not in bound:
            raise self._without(self.name, [node.name for node in tree.body if isinstance(node, ast.ClassDef)])
        found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == self.name), None)
        if found is None or found.bases or found.keywords or found.decorator_list or (names := _bound(found)) is None:
            return  # only running it would tell
        message = "" if self.method in names else f"class {self.name} has no method {self.method}"
        if not message and (wrong := _unfit(found, self.options)):
            message = f"{self.name} can't be made: {wrong}"
        if message:
            raise InputError(Problem(file=self.path, line=found.lineno, message=message))

    def made(self) -> Any:
        """Return a fresh object of the class.

        Raises
        ------
        InputError
            When the file may not or can't be run, has no such class, or the class no such method or other options.
        """
        if not self.allowed:
            raise InputError(Problem(file=self.path, message=self.refusal))
        module = self._module()
        found = getattr(module, self.name, None)
        if not inspect.isclass(found):
            raise self._without(self.name, [key for key, value in vars(module).items() if inspect.isclass(value)])
        if not callable(getattr(found, self.method, None)):
            raise InputError(Problem(file=self.path, message=f"class {self.name} has no method {self.method}"))
        try:
            inspect.signature(found).bind(**self.options)
        except (TypeError, ValueError) as error:
            raise InputError(Problem(file=self.path, message=f"{self.name} can't be made: {error}")) from None
        return self.asked(lambda: found(**self.options), "__init__")

    def asked(self, ask: Callable[[], Answer], method: str = "") -> Answer:
        """Call into the user's code; what it raises becomes an error placed in the file.

        That is everything but Ctrl-C and SIGTERM: code that is asked for a decision may not end the program, either.

        Raises
        ------
        InputError
            With the line of the file that raised.
        """
        try:
            return ask()
        except (KeyboardInterrupt, TerminatedError):
            raise
        except BaseException as error:
            raise self._problem(f"{self.name}.{method or self.method} raised", error) from error

    def wrong_answer(self, now: int, message: str) -> InputError:
        """Return the error for an answer of another type than was asked for."""
        when = f"{self.name}.{self.method} at {now / 1e6:.6f} ms"
        return InputError(Problem(file=self.path, message=f"{when}: {message}"))

    def _problem(self, what: str, error: BaseException) -> InputError:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.path]
        told = next(line for line in traceback.format_exception_only(error) if not line.startswith(" ")).strip()
        return InputError(Problem(file=self.path, line=lines[-1] if lines else None, message=f"{what} {told}"))

    def _without(self, name: str, known: list[str]) -> InputError:
        return InputError(Problem(file=self.path, message=f"no class {name!r}{did_you_mean(name, known)}"))

    def _parsed(self) -> ast.Module:
        """Return the text of the file as a tree."""
        if not self.path.endswith(".py"):
            raise InputError(Problem(file=self.path, message="is not a Python file; expected one that ends in .py"))
        text = inputs.read_bytes(Path(self.path), most=inputs.CODE_BYTES)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(text, self.path)
        except SyntaxError as error:
            raise InputError(Problem(file=self.path, line=error.lineno, message=f"{error.msg}")) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(Problem(file=self.path, message=f"can't be read as Python: {error}")) from None

    def _module(self) -> ModuleType:
        """Run the file: its text as it stands there, never a compiled one beside it."""
        tree = self._parsed()
        module = ModuleType(f"clustersim_user_{Path(self.path).stem}")
        module.__file__ = self.path
        sys.modules[module.__name__] = module  # dataclasses look their module up there
        try:
            exec(compile(tree, self.path, "exec"), vars(module))
        except (KeyboardInterrupt, TerminatedError):
            raise
        except BaseException as error:
            raise self._problem("can't be run:", error) from error
        return module


def _bound(tree: ast.Module | ast.ClassDef) -> set[str] | None:
    """Return the names that a body may bind; None where only running it would tell."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias(name="*"):
                return None
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
            case ast.Call(func=ast.Name(id="exec" | "eval" | "globals" | "setattr" | "vars")):
                return None
    return found


def _unfit(found: ast.ClassDef, options: Mapping[str, Any]) -> str:
    """Return which options a class without bases can't be made with; nothing where only running it would tell."""
    made = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    odd = any(node.decorator_list or node.args.kwarg or node.args.posonlyargs for node in made)
    if odd or len(made) > 1 or (not made and {"__init__", "__new__"} & (_bound(found) or set())):
        return ""
    taken = [*made[0].args.args[1:], *made[0].args.kwonlyargs] if made else []
    names = [one.arg for one in taken]
    needed = names[: len(names) - len(made[0].args.kwonlyargs) - len(made[0].args.defaults)] if made else []
    return next(
        (f"it takes no option {name!r}{did_you_mean(name, names)}" for name in options if name not in names),
        next((f"it needs the option {name!r}" for name in needed if name not in options), ""),
    )
