"""How a command ends: what it raised as text on stderr, and an exit status.

0 done and legal · 1 illegal, an ``expect`` that failed, or targets that nothing reaches · 2 unusable input, or files
and memory that the machine does not give · 3 not checkable: nothing is wrong, and not all that should be looked at
could be · 70 a defect of clustersim · 130 interrupted · 141 the reader of stdout went away · 129, 143 asked to end by
SIGHUP, SIGTERM.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

import click

from clustersim.cli.signals import unwinding
from clustersim.errors import (
    BrokenLawError,
    ClustersimError,
    IllegalDecisionError,
    IllegalPlanError,
    InputError,
    Problem,
    TerminatedError,
    UnreachedError,
)
from clustersim.inputs import line_of

ILLEGAL: Final = 1
UNREACHED: Final = 1
UNUSABLE_INPUT: Final = 2
NOT_CHECKABLE: Final = 3
STATUS: Final[Mapping[str, int]] = {"legal": 0, "illegal": ILLEGAL, "not_checkable": NOT_CHECKABLE}
"""Verdict → exit status."""
DEFECT: Final = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
TOLD: Final = (129, INTERRUPTED, 143)
"""Told to end, by SIGHUP, SIGINT and SIGTERM."""
BROKEN_PIPE: Final = 141  # 128 + SIGPIPE

_MOST_PROBLEMS: Final = 40
_WIDEST_LINE: Final = 100


@contextmanager
def exit_status() -> Iterator[None]:
    """Turn what the body raises into text on stderr and an exit status."""
    if sys.stdout is None:  # closed by the caller (>&-): what is printed goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long-lived as the program)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that can't show → or ≤ gets their escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with unwinding():
            try:
                yield
            except click.exceptions.Exit:  # so do --help and --version
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except BrokenPipeError:
        drop_stdout()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich leaves with 1, which means "illegal" here
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        raise
    except KeyboardInterrupt as asked:
        click.echo("\n".join(["", *_notes(asked), "clustersim: interrupted"]), err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except TerminatedError as asked:
        click.echo("\n".join([*_notes(asked), "clustersim: asked to end"]), err=True)
        raise click.exceptions.Exit(asked.status) from None
    except InputError as error:
        click.echo(problems_text(error.problems), err=True)
        raise click.exceptions.Exit(UNREACHED if isinstance(error, UnreachedError) else UNUSABLE_INPUT) from None
    except (IllegalPlanError, IllegalDecisionError) as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(ILLEGAL) from None
    except OSError as error:
        if os.environ.get("CLUSTERSIM_TRACEBACK") == "1":
            traceback.print_exc()
        what = f"{error.filename}: " if error.filename is not None else ""
        click.echo(f"clustersim: {what}{error.strerror or error}", err=True)
        raise click.exceptions.Exit(UNUSABLE_INPUT) from None
    except MemoryError:
        click.echo("clustersim: out of memory; simulate fewer requests, fewer ranks or a smaller model", err=True)
        raise click.exceptions.Exit(UNUSABLE_INPUT) from None
    except Exception as error:
        if isinstance(error, ClustersimError) and not isinstance(error, BrokenLawError):
            click.echo(f"clustersim: {error}", err=True)
            raise click.exceptions.Exit(UNUSABLE_INPUT) from None
        if os.environ.get("CLUSTERSIM_TRACEBACK") == "1":
            traceback.print_exc()
        click.echo(_defect_text(error), err=True)
        raise click.exceptions.Exit(DEFECT) from None


def _notes(error: BaseException) -> list[str]:
    """Return what an error was told on its way, such as what was kept."""
    return getattr(error, "__notes__", [])


def problems_text(problems: Sequence[Problem], texts: Mapping[str, str] | None = None) -> str:
    """Return one line per problem, with the line of the file and a caret where the file can be read.

    ``texts`` are the contents of what is called a file in the problems and is none.

    ::

        bad.yaml:3:7: plan.tp: must be at least 1 (found 0)
           |   tp: 0
           |       ^
    """
    lines: list[str] = []
    for problem in problems[:_MOST_PROBLEMS]:
        lines.append(str(problem))
        lines.extend(_excerpt(problem, texts or {}))
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"… and {len(problems) - _MOST_PROBLEMS} more")
    return "\n".join(lines)


def _excerpt(problem: Problem, texts: Mapping[str, str]) -> list[str]:
    if problem.file is None or problem.line is None or not problem.quotes:
        return []
    given = texts.get(problem.file)
    if given is None:
        text = line_of(problem.file, problem.line)
    else:
        text = next(islice(io.StringIO(given), problem.line - 1, None), None)
    if text is None:
        return []
    text = text.rstrip("\n").replace("\t", " ")
    if problem.column is None:
        return [f"   | {text[:_WIDEST_LINE]}"]
    first = max(0, problem.column - 1 - _WIDEST_LINE // 2) if len(text) > _WIDEST_LINE else 0
    return [
        f"   | {text[first : first + _WIDEST_LINE]}",
        f"   | {' ' * (problem.column - 1 - first)}^",
    ]


def _defect_text(error: Exception) -> str:
    story = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "clustersim" in frame.filename]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return (
        f"clustersim: {story}{where}\n"
        "This is a defect of clustersim, not of your input. Please report it with the command and the\n"
        "scenario; CLUSTERSIM_TRACEBACK=1 shows the whole story."
    )


def leave(status: int) -> None:
    """End this process, which has tidied up: nobody waits for threads, or for what is called at exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def drop_stdout() -> None:
    """Point stdout at nothing: more goes there, and the interpreter does not complain when it flushes at exit."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
