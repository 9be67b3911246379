"""Named random streams: each name has its own, so adding a stream never changes the numbers of another."""

from __future__ import annotations

import zlib

import numpy as np


def named_stream(seed: np.random.SeedSequence, name: str) -> np.random.Generator:
    """Return the generator of the stream ``name`` under ``seed``.

    The child's key is the CRC-32 of the name: it depends neither on the order in which streams are asked for
    nor on the process (Python's ``hash`` does). ``seed`` is not changed (``seed.spawn`` would count).

    References
    ----------
    .. [1] numpy.random.SeedSequence, parameter ``spawn_key``.
    """
    key = (*seed.spawn_key, zlib.crc32(name.encode()))
    child = np.random.SeedSequence(seed.entropy, spawn_key=key, pool_size=seed.pool_size)
    return np.random.Generator(np.random.PCG64(child))
