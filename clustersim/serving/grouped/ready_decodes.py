"""The sequences whose next step is a decode step and that no step carries now: whole groups, and loose ones.

Whoever is chosen comes first in order of admission. That is mostly the one group that waits, as it is; only where
members came or went so that it is not, everybody is brought up to date and sorted out anew.

What is not here: how many a step may take, and whether their K/V blocks are there (``serving.grouped.scheduler``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clustersim.serving.grouped.decode_group import DecodeGroup, by_place
from clustersim.serving.sequence import Sequence


class ReadyDecodes:
    """Those of one replica.

    Parameters
    ----------
    block_tokens : int
        Tokens per K/V block.
    windows : tuple of int
        Sliding windows of the model.

    Attributes
    ----------
    groups : list of DecodeGroup
        Groups that wait.
    loose : list of Sequence
        Those in no group yet.
    """

    def __init__(self, block_tokens: int, windows: tuple[int, ...]) -> None:
        self.new_group: Callable[[], DecodeGroup] = lambda: DecodeGroup(block_tokens, windows)
        self.groups: list[DecodeGroup] = []
        self.loose: list[Sequence] = []

    def first(self, share: int) -> DecodeGroup | None:
        """Return the first ``share`` sequences in order of admission as one group, which goes on waiting."""
        groups, loose = self.groups, self.loose
        if len(groups) == 1:
            group = groups[0]
            if group.count <= share:
                if not loose:
                    return group
                if group.count + len(loose) <= share:
                    return self._joined(group)
            if group.count == share and all(s.place > group.latest for s in loose):
                return group
        elif not groups:
            if not loose:
                return None
            if len(loose) <= share:
                return self._joined(self.form(()))
        ready = self.dissolve()
        self.loose.extend(ready[share:])
        return self.form(ready[:share])

    def form(self, members: Iterable[Sequence]) -> DecodeGroup:
        """Return a new group of these, which waits."""
        group = self.new_group()
        for sequence in members:
            group.join(sequence)
        self.groups.append(group)
        return group

    def _joined(self, group: DecodeGroup) -> DecodeGroup:
        """Let all that are loose join a group, and return it."""
        for sequence in self.loose:
            group.join(sequence)
        self.loose.clear()
        return group

    def dissolve(self) -> list[Sequence]:
        """Take everything apart and return all sequences, up to date, by place."""
        ready = self.loose
        self.loose = []
        for group in self.groups:
            members = group.refresh()
            fresh = [(sequence, sequence.last_step) for sequence in group.fresh]
            for sequence in members:
                sequence.last_step = group.last_step
            for sequence, last_step in fresh:  # this group has not carried it
                sequence.last_step = last_step
            ready.extend(members)
        self.groups = []
        ready.sort(key=by_place)
        return ready
