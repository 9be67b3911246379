"""What a dashboard shows: the figures, their order and options, checked before anything is drawn.

The layout is the parsed mapping of a file such as ``dashboards/overview.yaml``; this module reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.report.metrics.latencies import LATENCIES
from clustersim.values import dataclass

Check = Callable[[Any], tuple[Any, str | None]]
"""From what was written to (the value, None), or to (None, what is wrong with it)."""
Known = Mapping[str, Mapping[str, tuple[Any, Check]]]
"""Figure → option → (default, check)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure of a dashboard; ``options`` holds every option that the figure knows, resolved."""

    figure: str
    title: str
    caption: str
    width: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A dashboard: a title and its panels in order."""

    title: str
    panels: tuple[Panel, ...]

    def first(self, figure: str) -> Panel | None:
        """Return the first panel of that figure, or None."""
        return next((panel for panel in self.panels if panel.figure == figure), None)


def read_layout(layout: Mapping[str, Any], known_figures: Known | None = None) -> Layout:
    """Check a dashboard's mapping and fill in defaults.

    Parameters
    ----------
    layout : mapping
        ``{"title": str, "figures": [{"figure": name, option: value, …}, …]}``.
    known_figures : mapping, optional
        The figures that there are; by default those of a run, :data:`FIGURES`.

    Raises
    ------
    InputError
        With every unknown figure or option (and its nearest valid choice) and every value that does not fit.
    """
    known = ("title", "figures")
    problems = [_unknown("", "key", str(key), known) for key in layout if key not in known]
    figures = layout.get("figures")
    if not isinstance(figures, list) or not figures:
        message = f"expected a list of figures, such as [{{figure: headline}}], but found {figures!r}"
        raise InputError([*problems, Problem(path="figures", message=message)])
    title, wrong = _text(layout.get("title", "Overview"))
    if wrong:
        problems.append(Problem(path="title", message=wrong))
    there = FIGURES if known_figures is None else known_figures
    if foreign := _of_another_page(figures, there):
        raise InputError([*problems, foreign])
    panels = [_read_panel(item, f"figures[{index}]", problems, there) for index, item in enumerate(figures)]
    if problems:
        raise InputError(problems)
    return Layout(title=title, panels=tuple(panel for panel in panels if panel is not None))


def _of_another_page(figures: Sequence[Any], there: Known) -> Problem | None:
    """Return that no figure of a layout is one of this page; None where some is, or there is one alone."""
    names = [str(item["figure"]) for item in figures if isinstance(item, Mapping) and "figure" in item]
    if len(names) < 2 or set(names) & set(there):
        return None
    message = f"is of another page: this one has {', '.join(sorted(there))}, and it lists {', '.join(names)}"
    return Problem(path="figures", message=message)


def _read_panel(item: Any, path: str, problems: list[Problem], there: Known) -> Panel | None:
    if not isinstance(item, Mapping) or "figure" not in item:
        problems.append(Problem(path=path, message=f"expected {{figure: NAME, …}}, but found {item!r}"))
        return None
    name = str(item["figure"])
    if name not in there:
        problems.append(_unknown(path, "figure", name, tuple(there)))
        return None
    known = {**_COMMON, **there[name]}
    values = {option: default for option, (default, _) in known.items()}
    for option, written in item.items():
        if option == "figure":
            continue
        if option not in known:
            problems.append(_unknown(path, "option", str(option), tuple(known), f" of {name}"))
            continue
        values[option], wrong = known[option][1](written)
        if wrong:
            problems.append(Problem(path=f"{path}.{option}", message=wrong))
    common = {option: values.pop(option) for option in _COMMON}
    return Panel(figure=name, **common, options=values)


def _unknown(path: str, what: str, found: str, known: tuple[str, ...], where: str = "") -> Problem:
    return Problem(path=path, message=f"unknown {what} {found!r}{where}{did_you_mean(found, known)}")


def _text(value: Any) -> tuple[Any, str | None]:
    return (value, None) if isinstance(value, str) else (None, f"expected a text, but found {value!r}")


def up_to(most: int) -> Check:
    def check(value: Any) -> tuple[Any, str | None]:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value, None
        return None, f"expected a whole number from 1 to {most:,}, but found {value!r}"

    return check


PIXELS: Final = up_to(10_000)
_POINTS: Final = up_to(100_000)  # a page of more is no longer drawn in seconds


def one_of(*choices: str) -> Check:
    def check(value: Any) -> tuple[Any, str | None]:
        if value in choices:
            return value, None
        return None, f"expected one of {', '.join(choices)}, but found {value!r}"

    return check


def some_of(*choices: str) -> Check:
    def check(value: Any) -> tuple[Any, str | None]:
        if isinstance(value, list) and value and all(word in choices for word in value):
            return tuple(value), None
        return None, f"expected a list of some of {', '.join(choices)}, but found {value!r}"

    return check


_COMMON: Final[Mapping[str, tuple[Any, Check]]] = {
    "title": ("", _text),
    "caption": ("", _text),
    "width": ("full", one_of("full", "half")),
}
"""Options of every figure: option → (default, check); an empty title or caption stands for the own one."""

FIGURES: Final[Known] = {
    "headline": {},
    "causes": {"height": (380, PIXELS)},
    "device_lanes": {"height": (720, PIXELS)},
    "link_lanes": {"height": (520, PIXELS)},
    "topology": {"height": (480, PIXELS)},
    "request_rows": {"height": (520, PIXELS), "rows": (24, up_to(1000))},
    "utilisation": {"height": (300, PIXELS)},
    "batch": {"height": (460, PIXELS), "bins": (1000, _POINTS)},
    "kv_cache": {"height": (300, PIXELS), "bins": (1000, _POINTS)},
    "latencies": {
        "height": (560, PIXELS),
        "metrics": (tuple(LATENCIES), some_of(*LATENCIES)),
        "scale": ("auto", one_of("auto", "linear", "log")),
    },
    "requests": {"height": (760, PIXELS), "bins": (300, _POINTS), "max_points": (4000, _POINTS)},
}
"""Figure → option → (default, check)."""
