"""Whether the core runs as it stands or compiled, for as long as a test asks for it: no result depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal
from unittest import mock

Storage = Literal["interpreted", "compiled"]
BOTH: Final[tuple[Storage, ...]] = ("interpreted", "compiled")


@contextmanager
def core(storage: Storage) -> Iterator[None]:
    """Let the core be compiled or not, whatever the work; in tests other functions of numba are Python."""
    import numba

    with (
        mock.patch("clustersim.replay.by_core.is_interpreted", return_value=storage == "interpreted"),
        mock.patch.object(numba.config, "DISABLE_JIT", 0),
    ):
        yield
