"""What is told when a user's own scheduler decides nothing although it could, and nothing else can happen."""

from __future__ import annotations

from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.serving.view import SchedulerView
from clustersim.units import plural
from clustersim.values import dataclass

_SHOWN: Final = 4
"""Sequences of each kind that are told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Whose decision it is that nothing goes on, in which file, and what that one was shown."""

    who: str
    file: str
    view: SchedulerView


def user_stall_error(unfinished: int, replica: int, blocks: int, found: Stall) -> InputError:
    """Return the error that tells what the view of a user's scheduler offers when it has chosen nothing.

    Parameters
    ----------
    unfinished : int
        Requests that have not ended.
    replica, blocks : int
        Its replica, and K/V blocks of that.
    found : Stall
    """
    view = found.view
    lines = [
        f"{found.who} chose nothing at {view.now_ns / 1e6:.6f} ms, when nothing else could happen, but "
        f"{plural(unfinished, 'request is', 'requests are')} unfinished; its view offered on replica {replica}:",
        f"{sum(view.free_blocks)} of {blocks} K/V blocks free, at most {view.max_batch_tokens} tokens "
        f"a step and {view.max_batch_requests} running",
    ]
    for state, sequences in (("running", view.running), ("waiting", view.waiting)):
        lines.extend(
            f"request {sequence.request}, {state}: {sequence.to_compute} tokens to compute"
            + (", a decode" if sequence.decodes else "")
            for sequence in sequences[:_SHOWN]
        )
        if len(sequences) > _SHOWN:
            lines.append(f"and {len(sequences) - _SHOWN} more {state}")
    return InputError(Problem(file=found.file, message="\n  ".join(lines)))
