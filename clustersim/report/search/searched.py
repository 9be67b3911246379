"""What the figures of a search are drawn from: a line for each plan, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan and what became of it.

    Parameters
    ----------
    words : str
    devices : int
    usd_per_hour : float or None
    fate : str
        ``best``, ``tie``, ``simulated``, ``screened``, ``open``, ``pruned`` or ``failed``.
    why : str
        Why it is not the best.
    bound : float or None
        What is proven to be the most that it reaches, in the objective's unit; None where nothing is.
    reached : float or None
        What it reaches.
    requests_per_s : float or None
        Its capacity.
    numbers : mapping
        Of the run at its capacity, by dotted key; empty where there was none.
    tokens_per_device, tokens_per_user : float or None
        Output tokens per second: of each device, and of a user in the mean over tokens.
    on_front : bool
        Whether one of its runs is on it.
    stands_for : int
        Legal plans that it stands for, itself included.
    at_length : bool or None
        Whether what it reaches was found in runs as long as those that decide; None where it reaches nothing.
    command : str
        What simulates it.
    launches_for : str or None
        What starts it, in words; None where nobody asked.
    """

    words: str
    devices: int
    usd_per_hour: float | None
    fate: str
    why: str
    bound: float | None
    reached: float | None
    requests_per_s: float | None
    numbers: Mapping[str, float]
    tokens_per_device: float | None
    tokens_per_user: float | None
    on_front: bool
    stands_for: int
    at_length: bool | None
    command: str
    launches_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search, as plain data.

    Parameters
    ----------
    name : str
    unit : str
        Of the objective.
    subtitle : str
    plans : sequence of Plan
        The best first.
    front : sequence of (float, float, str)
        Tokens per second of a device and of a user, of the runs that none beats in both, and what each is in words.
    certificate : sequence of str
        What the answer rests on, a sentence each.
    at : str
        At which rate figures are: its capacity, or that of the scenario.
    is_fixed : bool
        Whether all plans have the same requests, at one rate.
    """

    name: str
    unit: str
    subtitle: str
    plans: Sequence[Plan]
    front: Sequence[tuple[float, float, str]]
    certificate: Sequence[str]
    at: str = "its capacity"
    is_fixed: bool = False
