"""The options that say how much a command may take, and what it may where nothing is said."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from clustersim.limits import Asked
from clustersim.units import UnitError, parse

Command = TypeVar("Command", bound=Callable[..., Any])

_SHARE: Final = 0.9
"""Of the machine's memory: the rest is the system's (assumed)."""
LONGEST: Final = "1 h"
LONGEST_TOTAL: Final = "12 h"
LARGEST: Final = "1 GB"


def _quantity(dimension: str) -> Callable[[click.Context, click.Parameter, str | float], float]:
    """Return what reads a number with a unit, such as ``2 h`` or ``16 GiB``."""

    def read(ctx: click.Context, param: click.Parameter, value: str | float) -> float:
        if isinstance(value, float):
            return value
        try:
            found = parse(value, dimension, {"time": "10 min", "bytes": "16 GiB"}[dimension])
        except UnitError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        if not 0.0 < found < math.inf:
            raise click.BadParameter(f"found {value!r}; expected more than nothing", ctx, param)
        return Asked(found, value.strip())

    return read


def memory_and_time(command: Command) -> Command:
    """Add ``--max-memory`` and ``--max-time``; the command gets ``max_memory`` in bytes and ``max_time`` in seconds."""
    for option in (
        click.option(
            "--max-time", callback=_quantity("time"), default=LONGEST, show_default=True, metavar="TIME",
            help="Refuse beforehand what would roughly take longer.",
        ),
        click.option(
            "--max-memory", callback=_quantity("bytes"), default=_memory_bytes, type=click.UNPROCESSED, metavar="SIZE",
            help="Refuse beforehand what would roughly take more [what this machine has].",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def total_time(command: Command) -> Command:
    """Add ``--max-total``; the command gets ``max_total`` in seconds."""
    option = click.option(
        "--max-total", callback=_quantity("time"), default=LONGEST_TOTAL, show_default=True, metavar="TIME",
        help="Refuse beforehand what would roughly take longer in all.",
    )  # fmt: skip
    return option(command)


def largest_size(command: Command) -> Command:
    """Add ``--max-size``; the command gets ``max_size`` in bytes."""
    option = click.option(
        "--max-size", callback=_quantity("bytes"), default=LARGEST, show_default=True, metavar="SIZE",
        help="Refuse beforehand to write a larger file.",
    )  # fmt: skip
    return option(command)


def _memory_bytes() -> float:
    """Return what this process may use of the machine's memory: what is there, or what it was given of it."""
    found = [math.inf]
    with suppress(AttributeError, OSError, ValueError):
        found.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        found.append(float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        found.append(math.inf if most == resource.RLIM_INFINITY else float(most))
    return _SHARE * min(found)
