"""Nanoseconds of events, added up by cause and request: up to its first token, and after."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.simulation.causes.labels import HOST
from clustersim.timeline.step_parts import Label, scaled

Groups = tuple[Int64Array, Int64Array, Int64Array]
"""The first of each run of events of one request and side (1: after), that side, and the request."""


class Sums:
    """What was added up.

    Parameters
    ----------
    labels : tuple of (name, kind)
    count : int
        Numbers of requests are below.

    Attributes
    ----------
    ns : int64 array of shape (2, labels, count)
    """

    def __init__(self, labels: tuple[Label, ...], count: int) -> None:
        self._at = {label: number for number, label in enumerate(labels)}
        self._touched = {0}
        self.ns = np.zeros((2, len(labels), count), np.int64)

    def add(self, label: Label, ns: Int64Array, groups: Groups) -> None:
        """Add nanoseconds of some events, which ascend by request and side."""
        at = self._at[label]
        self._touched.add(at)
        firsts, side, request = groups
        self.ns[side, at, request] += ns if len(firsts) == len(ns) else np.add.reduceat(ns, firsts)

    def packed(self) -> tuple[list[int], Int64Array]:
        """Return the labels that have any, the first one included, and what they have, in place."""
        kept = sorted(self._touched)
        for number, at in enumerate(kept):
            if number < at:
                self.ns[:, number] = self.ns[:, at]
        return kept, self.ns[:, : len(kept)]


def groups_of(request: Int64Array, answered: Int64Array) -> Groups:
    """Return the groups of events, by their requests and whether these had their first token."""
    group = request * 2 + answered
    firsts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    return (firsts, group[firsts] & 1, group[firsts] >> 1) if len(group) else (group, group, group)


def without(labels: tuple[Label, ...], parts: Int64Array, most: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Take time that went to others' prompts out of all parts but host time; return what is left, and that time."""
    device = np.flatnonzero([label[1] != "host" and label != HOST for label in labels])
    others = np.minimum(most, parts[:, device].sum(axis=1))
    some = np.flatnonzero(others)
    if not len(some):
        return parts, others
    found = parts.copy()
    on_device = parts[np.ix_(some, device)]
    found[np.ix_(some, device)] = scaled(on_device, on_device.sum(axis=1) - others[some])
    return found, others
