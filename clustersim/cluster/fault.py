"""What breaks, and when: devices and links that fail or get slower at an instant, and come back at another one."""

from __future__ import annotations

from dataclasses import field

from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Devices or links that fail, or are slower than they should be, in [at, until).

    Parameters
    ----------
    at_ns : int
    until_ns : int or None
        None: for good.
    devices, links : tuple of int
        One of the two is empty.
    slowdown : float or None
        How many times as long kernels take on the devices; None: they fail.
    share : float
        What is left of the capacity of the links; 0: they fail.
    loses : bool
        Whether what a failed device served is lost; otherwise it is computed anew elsewhere.
    name : str
        What fails, in words: ``device n0.g3``, ``node n0``, ``link a to b``.
    """

    at_ns: int
    until_ns: int | None = None
    devices: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    slowdown: float | None = None
    share: float = 0.0
    loses: bool = False
    name: str = field(default="something", compare=False)

    @property
    def fails(self) -> bool:
        """Whether nothing of it works meanwhile."""
        return self.slowdown is None and self.share == 0.0

    def covers(self, now: int) -> bool:
        """Return whether it is so at an instant."""
        return self.at_ns <= now and (self.until_ns is None or now < self.until_ns)
