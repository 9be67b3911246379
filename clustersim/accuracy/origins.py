"""How the constants behind predictions were found: what each file says of its fits, and which figures share its source.

Constants of kernels and collectives are fitted to tables of kernels and collectives, never to a serving figure. Those
of engines are read in programs, assumed, or taken from serving runs; whether figures of a family come from the same
publication can be seen in both sources (``owner/repository@commit``), and such a family is no prediction of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim import catalog
from clustersim.accuracy.held_out import PUBLISHED, is_in_sample
from clustersim.accuracy.result import Result
from clustersim.accuracy.score import family_order
from clustersim.accuracy.systems import ROUTING_FROM
from clustersim.scenario.document import read_document
from clustersim.values import dataclass

_SECTIONS: Final = ("kernels", "collectives")
_FIT: Final = re.compile(r"error\s+median\s+([\d.]+)\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where some constants are from.

    Parameters
    ----------
    constants : str
        Which: the file, and the section of it.
    found_by : str
        How.
    source : str
        What the file names.
    fit : str
        Median errors of its fits, from the least to the largest; empty where nothing was fitted.
    families : tuple of str
        Whose figures were published with what the constants come from.
    """

    constants: str
    found_by: str
    source: str
    fit: str
    families: tuple[str, ...]


def origins(results: Sequence[Result]) -> tuple[Origin, ...]:
    """Return where the constants of all devices and engines, and of the routing to experts, are from."""
    return (*_devices(results), *_engines(results), _routing())


def _routing() -> Origin:
    return Origin(
        constants="routing to experts",
        found_by="chosen among exponents of Zipf's law",
        source="How tokens visit experts is in no row: by Zipf's law, its exponent 1 (clustersim/accuracy/systems.py).",
        fit="",
        families=(ROUTING_FROM,),
    )


def _devices(results: Sequence[Result]) -> Iterator[Origin]:
    found = {(one.family, name.partition("@")[0]) for one in results for name in PUBLISHED.findall(one.source)}
    origins_of_figures = sorted(found, key=lambda pair: (family_order(pair[0]), pair[1]))
    for name in catalog.names("topologies/devices"):
        data = read_document(catalog.path_of("topologies/devices", name)).data
        for section in _SECTIONS:
            texts = list(_sources(data.get(section) or {}))
            errors = sorted(float(error) for text in texts for error in _FIT.findall(" ".join(text.split())))
            if errors:
                told = " ".join(" ".join(texts).split())
                shared = [(family, where) for family, where in origins_of_figures if re.search(rf"\b{where}\b", told)]
                yield Origin(
                    constants=f"{section} of {name}",
                    found_by=f"fitted to measured {section}, {len(errors)} groups",
                    source=_names(texts, (where for _, where in shared)),
                    fit=f"{errors[0]:g} to {errors[-1]:g} %",
                    families=tuple(dict.fromkeys(family for family, _ in shared)),
                )


def _engines(results: Sequence[Result]) -> Iterator[Origin]:
    origins_of_figures = sorted({(result.family, result.source) for result in results})
    for name in catalog.names("scenarios/engines"):
        told = read_document(catalog.path_of("scenarios/engines", name)).data.get("source", "")
        shared = [family for family, source in origins_of_figures if is_in_sample(name, family, source)]
        yield Origin(
            constants=f"engine {name}",
            found_by="host times of steps and requests",
            source=" ".join(str(told).split()),
            fit="",
            families=tuple(dict.fromkeys(shared)),
        )


def _sources(section: Any) -> Iterator[str]:
    """Yield every text under a key ``source``."""
    if isinstance(section, Mapping):
        for key, value in section.items():
            if key == "source" and isinstance(value, str):
                yield value
            else:
                yield from _sources(value)


def _names(texts: Sequence[str], repositories: Iterable[str]) -> str:
    """Return the publications that texts name, and the repositories that they name without a commit."""
    found = dict.fromkeys(name for text in texts for name in PUBLISHED.findall(text))
    named = {name.partition("@")[0] for name in found}
    found |= dict.fromkeys(where for where in repositories if where not in named)
    return ", ".join(found) or "see the file"
