"""Options that several commands have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from clustersim import inputs
from clustersim.clock import to_ns
from clustersim.errors import InputError, Problem, TerminatedError, did_you_mean
from clustersim.files import Kind, refuse_unwritable
from clustersim.units import UnitError, parse, whole_number

if TYPE_CHECKING:
    from clustersim.scenario.scenario import Scenario

_LONGEST_S: Final = 2.0**33  # 272 years: int64 nanoseconds hold it
GRAPH_SUFFIXES: Final = (".json", ".dot", ".gv", ".graphml")
TABLE_SUFFIXES: Final = (".csv", ".parquet")

Command = TypeVar("Command", bound=Callable[..., Any])

allow_code: Final = click.option(
    "--allow-code", is_flag=True, help="Run Python that a scenario names: its own scheduler, its own router."
)
"""Where it is left out, the environment decides (``CLUSTERSIM_ALLOW_CODE=1``)."""


def quantity(text: str, dimension: str, option: str, example: str = "") -> float:
    """Return a quantity with its unit, in the base unit of its dimension; messages show an example of it.

    Raises
    ------
    InputError
    """
    try:
        return parse(text, dimension, example)
    except UnitError as error:
        raise InputError(Problem(path=option, message=str(error))) from None


def instant(text: str, option: str) -> int:
    """Return an instant of a run in ns; what lies outside of any makes no difference.

    Raises
    ------
    InputError
    """
    return to_ns(max(-_LONGEST_S, min(quantity(text, "time", option, "12 s"), _LONGEST_S)))


def price(text: str, option: str, example: str) -> float:
    """Return a price, in USD/h, of more than nothing.

    Raises
    ------
    InputError
    """
    found = quantity(text, "price", option, example)
    if found <= 0.0:
        raise InputError(Problem(path=option, message=f"found {text!r}; expected more than nothing"))
    return found


class Choice(click.Choice[str]):
    """One of some words; the nearest one is named where it is none of them."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Return what is wrong with a value."""
        hint = did_you_mean(str(value), [str(choice) for choice in self.choices])
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + (hint if "did you mean" in hint else "")


class Written(click.Path):
    """A name of something that a command writes; where nothing can be written is refused before anything is done."""

    def __init__(self, kind: Kind = "file") -> None:
        super().__init__(path_type=Path)
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a value as a path."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        refuse_unwritable(path, "" if param is None else max(param.opts, key=len), self._kind)
        return path


script: Final = click.option(
    "--script", type=Choice(["inside", "beside"]), default="inside", show_default=True,
    help="Where plotly's script is: in the page, or once in the folder of the run directory for all of its runs.",
)  # fmt: skip


def _within(kind: click.IntRange | click.FloatRange, noun: str) -> str:
    least = "" if kind.min is None else f" {'above' if kind.min_open else 'from'} {kind.min:,}"
    most = "" if kind.max is None else f" {'and up ' if kind.min_open else ''}to {kind.max:,}"
    return f"a {noun}{least}{most}"


def _in_digits(value: Any) -> Any:
    """Return a value; Python reads digits of any script, and scenarios those from 0 to 9 alone."""
    return value if not isinstance(value, str) or value.isascii() else ""


class Whole(click.IntRange):
    """A whole number within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a value as a number."""
        try:
            return super().convert(_in_digits(value), param, ctx)
        except click.BadParameter:
            meant = whole_number(value)
            hint = f"; did you mean {meant}?" if meant is not None and str(meant) != value else ""
            self.fail(f"expected {_within(self, 'whole number')}, but found {value!r}{hint}", param, ctx)


class Number(click.FloatRange):
    """A number within limits; ``nan`` is none, and a share in per cent leads to the number that is meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a value as a number."""
        found = self._read(value)
        if found is None:
            meant = self._read(_of_hundred(str(value))) if self.max is not None and self.max <= 1 else None
            hint = "" if meant is None else f"; did you mean {meant:g}?"
            self.fail(f"expected {_within(self, 'number')}, but found {value!r}{hint}", param, ctx)
        return found

    def _read(self, value: Any) -> float | None:
        try:
            found = super().convert(_in_digits(value), None, None)
        except click.BadParameter:
            return None
        return None if math.isnan(found) else found


def _of_hundred(text: str) -> str:
    """Return a number of per cent as a share of 1."""
    try:
        return f"{float(_in_digits(text.rstrip('% '))) / 100.0:.12g}"
    except ValueError:
        return ""


def goals(command: Command) -> Command:
    """Add what is to be met: ``--targets`` and ``--share``."""
    for option in (
        click.option(
            "--share", type=Number(0, 1, min_open=True), default=0.9, show_default=True,
            help="Of all requests, that must meet every target; 0.99: those of p99.",
        ),
        click.option("--targets", metavar="NAME=TIME,…", help="'ttft=1 s, tpot=50 ms' [those of the scenario]."),
    ):  # fmt: skip
        command = option(command)
    return command


def target_changes(text: str | None) -> dict[str, str]:
    """Return targets such as ``ttft=1 s, tpot=50 ms`` as ``--set`` takes them, and what messages call that."""
    if text is None:
        return {}
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and value.strip() for name, _, value in pairs):
        raise click.BadParameter(
            f"expected NAME=TIME, such as 'ttft=1 s, tpot=50 ms', found {text!r}", param_hint="--targets"
        )
    return {"targets={" + ", ".join(f"{name.strip()}: {value.strip()}" for name, _, value in pairs) + "}": "--targets"}


def kept_and_command(folder: Path, command: str) -> str:
    """Return the last lines of a search: where its runs are kept, and what runs the best one."""
    return f"kept     {folder} (a second start goes on there)\ncommand  {command}"


def print_confidence(scenario: Scenario) -> None:
    """Say how far off figures of a scenario may be, where few like it were measured, and what they leave out."""
    from clustersim.scenario.confidence import confidence_of, confidence_words

    for what in scenario.left_out:
        click.echo(f"NOT SIMULATED: {what}.")
    if told := confidence_words(confidence_of(scenario)):
        click.echo(f"confidence  {told}")


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Read a time such as ``100 s``, in seconds; ``0`` is none in any unit."""
    try:
        found = 0.0 if value.strip() == "0" else parse(value, "time", "60 s")
    except UnitError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if found < 0.0:
        raise click.BadParameter(f"found {value!r}; expected a time of at least nothing", ctx, param)
    return found


def some_time(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Read a time such as ``100 s``, in seconds, of more than nothing."""
    found = duration(ctx, param, value)
    if found == 0.0:
        raise click.BadParameter(f"found {value!r}; expected more than nothing", ctx, param)
    if found > _LONGEST_S:
        raise click.BadParameter(f"found {value!r}; expected at most {_LONGEST_S:,.0f} s", ctx, param)
    return found


def rate(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a rate such as ``20/s``, per second; None where none is told."""
    if value is None:
        return None
    try:
        found = parse(value, "rate")
    except UnitError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if not 0.0 < found < math.inf:
        raise click.BadParameter(f"found {value!r}; expected more than nothing", ctx, param)
    return found


def most_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    """Read a time such as ``100 s``, in seconds; infinite for ``all``."""
    return math.inf if value in (None, "all") else duration(ctx, param, value or "")


def many_runs(command: Command) -> Command:
    """Add what all commands of many runs take: ``--set``, ``--executor``, ``--workers``, ``--out``, ``--json``, …."""
    command = _telling(command)
    for option in (
        click.option("--quiet", is_flag=True, help="Print nothing but problems."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
        allow_code,
        click.option("--out", type=Written("folder"), help="Where results go; a second start goes on there."),
        click.option("--workers", type=Whole(1, 4096), metavar="N", help="Runs at a time [cores]."),
        click.option("--executor", default="local", show_default=True, help="local, dask[:ADDRESS] or ray[:ADDRESS]."),
        click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value of all runs."),
    ):
        command = option(command)
    return command


def _telling(command: Command) -> Command:
    """Return a command that says, where it is interrupted, that nothing was kept, if nothing was."""

    @wraps(command)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (KeyboardInterrupt, TerminatedError) as error:
            if not hasattr(error, "__notes__"):
                error.add_note("nothing was kept: no run was finished")
            raise

    return cast(Command, told)


def refuse_graph(name: str) -> None:
    """Refuse a step graph, or a table, where a scenario is expected.

    Raises
    ------
    InputError
        With what takes it.
    """
    suffix = Path(name).suffix
    if suffix in TABLE_SUFFIXES:
        message = "is a table of what happened, for clustersim audit"
    elif suffix in GRAPH_SUFFIXES and (suffix != ".json" or _has_nodes(Path(name))):
        message = "is a step graph, for clustersim check"
    else:
        return
    message += "; expected a scenario, such as quickstart or NAME.yaml"
    raise InputError(Problem(file=name, message=message))


def _has_nodes(path: Path) -> bool:
    try:
        found = json.loads(inputs.read_text(path, most=inputs.TEXT_BYTES))
    except (InputError, ValueError, RecursionError):
        return False  # whoever reads it says what is wrong
    return isinstance(found, dict) and "nodes" in found
