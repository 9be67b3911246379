"""A class in a user's own Python file: found, made with its options, and asked with errors placed in that file."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from clustersim.errors import InputError, Problem, did_you_mean

Answer = TypeVar("Answer")
_LONGEST: Final = 200


def shown(value: object) -> str:
    """Return what a user's code answered as text; also what is too long, or can't be shown."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that can't be shown>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


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
    """

    path: str
    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{Path(self.path).name}:{self.name}"

    def made(self) -> Any:
        """Return a fresh object of the class.

        Raises
        ------
        InputError
            When the file can't be run, has no such class, or the class no such method or other options.
        """
        module = self._module()
        found = getattr(module, self.name, None)
        if not inspect.isclass(found):
            own = [key for key, value in vars(module).items() if inspect.isclass(value)]
            raise InputError(Problem(file=self.path, message=f"no class {self.name!r}{did_you_mean(self.name, own)}"))
        if not callable(getattr(found, self.method, None)):
            raise InputError(Problem(file=self.path, message=f"class {self.name} has no method {self.method}"))
        try:
            inspect.signature(found).bind(**self.options)
        except (TypeError, ValueError) as error:
            raise InputError(Problem(file=self.path, message=f"{self.name} can't be made: {error}")) from None
        return self.asked(lambda: found(**self.options), "__init__")

    def asked(self, ask: Callable[[], Answer], method: str = "") -> Answer:
        """Call into the user's code; what it raises becomes an error placed in the file.

        That is everything but Ctrl-C: code that is asked for a decision may not end the program, either.

        Raises
        ------
        InputError
            With the line of the file that raised.
        """
        try:
            return ask()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._problem(f"{self.name}.{method or self.method} raised", error) from error

    def _problem(self, what: str, error: BaseException) -> InputError:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.path]
        told = next(line for line in traceback.format_exception_only(error) if not line.startswith(" ")).strip()
        return InputError(Problem(file=self.path, line=lines[-1] if lines else None, message=f"{what} {told}"))

    def _module(self) -> ModuleType:
        spec = spec_from_file_location(f"clustersim_user_{Path(self.path).stem}", self.path)
        if spec is None or spec.loader is None:
            raise InputError(Problem(file=self.path, message="is not a Python file; expected one that ends in .py"))
        module = module_from_spec(spec)
        sys.modules[module.__name__] = module  # dataclasses look their module up there
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise InputError(Problem(file=self.path, line=error.lineno, message=f"{error.msg}")) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._problem("can't be run:", error) from error
        return module
