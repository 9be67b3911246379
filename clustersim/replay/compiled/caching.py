"""Lanes that keep what is computed of prompts, as machine code: :mod:`clustersim.replay.compiled.kernel` with that.

By itself, so that other lanes do not wait for the compiler.
"""

from __future__ import annotations

from numba import njit

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import prefixes as px
from clustersim.replay.compiled.sources import source_of


def _kept(source):
    """Return what is called; the compiler keeps it under ``source``, which tells whose functions it has."""
    go_on = njit(**px.OPTIONS)(getattr(k.advance, "py_func", k.advance))

    @njit(**k.KEPT)
    def advance_caching(*everything):
        """Go on as :func:`kernel.advance` does."""
        _ = source
        return go_on(*everything)

    return advance_caching


advance_caching = _kept(source_of(k, px))
"""See :func:`_kept`; what was compiled with another kernel is not read again."""
