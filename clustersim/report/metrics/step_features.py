"""What every row of ``steps`` carried, as the features that amounts of work and payloads are linear forms of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.batch import Chunk, StepBatch, features_of
from clustersim.graph.blueprint import STEP_KINDS, Terms
from clustersim.memory import let_go
from clustersim.plan.parallel import SequencePlan
from clustersim.timeline.parts import MOST_ROWS
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepFeatures:
    """Steps of one kind of one replica.

    Parameters
    ----------
    first, counts : int64 arrays of shape (rows,)
        The number of the first step of each row, and steps that it stands for.
    features : mapping
        Name → float array of shape (rows, sp); see ``clustersim.graph.batch``. Attention's own are left out.
    """

    first: Int64Array
    counts: Int64Array
    features: Mapping[str, FloatArray]

    def amount(self, terms: Terms, s: int) -> FloatArray:
        """Evaluate a linear form of features at SP coordinate ``s``, by row."""
        total = np.zeros(len(self.counts))
        for feature, coefficient in terms:
            total += coefficient * self.features[feature][:, s]
        return total


def tells_features(sp: SequencePlan) -> bool:
    """Whether a timeline tells what each SP rank carried: not where SP ranks decode sequences of their own.

    Which rank keeps which sequence is not recorded.
    """
    return sp.degree == 1 or sp.decode == "idle"


def step_features(tables: Tables, sp: SequencePlan) -> Mapping[tuple[int, str], StepFeatures]:
    """Return what steps carried, by (replica, kind); worked out each time that it is asked for.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    sp : SequencePlan
        One of which :func:`tells_features`.
    """
    return _OfSteps(tables, sp)


class _OfSteps(Mapping[tuple[int, str], StepFeatures]):
    """What steps of each replica and kind carried; of all together these would be the most that a long run holds."""

    def __init__(self, tables: Tables, sp: SequencePlan) -> None:
        self._steps, self._sp = tables.steps, sp
        replica, kind = self._steps["replica"], self._steps["kind"]
        to = np.min_scalar_type((int(replica.max(initial=0)) + 1) * len(STEP_KINDS))
        self._rows = RowsOf(replica.astype(to) * to.type(len(STEP_KINDS)) + kind.astype(to))
        self._split = _split(tables, sp) if sp.degree > 1 else {}
        self._kept: dict[tuple[int, str], StepFeatures] = {}
        self._read = 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for group in self._rows.numbers.tolist():
            yield group // len(STEP_KINDS), STEP_KINDS[group % len(STEP_KINDS)]

    def __len__(self) -> int:
        return len(self._rows.numbers)

    def __getitem__(self, key: tuple[int, str]) -> StepFeatures:
        if key in self._kept:
            return self._kept[key]
        steps, (replica, kind) = self._steps, key
        rows = self._rows.of(replica * len(STEP_KINDS) + STEP_KINDS.index(kind))
        if not len(rows):
            raise KeyError(key)
        self._read += len(rows)
        if self._read > MOST_ROWS:
            self._read = 0
            let_go()
        columns = {name: steps[name][rows].astype(np.float64) for name in _COLUMNS}
        features = {name: values[:, None] for name, values in _whole(columns).items()}
        if self._sp.degree > 1:
            features = _of_rows(rows, columns["decode_tokens"], self._split, self._sp)
        first, counts = (steps[name][rows].astype(np.int64) for name in ("step", "count"))
        found = StepFeatures(first=first, counts=counts, features=features)
        if self._sp.degree > 1:  # these take long
            self._kept[key] = found
        return found


def lockstep_features(tables: Tables) -> dict[tuple[int, str], StepFeatures]:
    """Return what steps of replicas in lockstep carried, by (0, kind): a value per replica and row.

    Each replica has a row for every step, or run of steps, of the group. One without a request brought a dummy batch of
    one token: of a prompt where all others prefill, else one that decodes.
    """
    steps, members = tables.steps, tables.lockstep
    order = np.lexsort((steps["step"], steps["replica"])).reshape(members, -1)
    found = {}
    for kind in np.unique(steps["kind"]).tolist():
        rows = order[:, steps["kind"][order[0]] == kind].T
        new, decodes, sequences = (steps[name][rows].astype(np.float64) for name in _COLUMNS)
        idle = sequences == 0
        new[idle], decodes[idle], sequences[idle] = (1, 0, 1) if STEP_KINDS[kind] == "prefill" else (0, 1, 1)
        features = _whole({"prefill_tokens": new, "decode_tokens": decodes, "batch_requests": sequences})
        features["stage_tokens"] = np.repeat(features["tokens"].sum(axis=1, keepdims=True), members, axis=1)
        features["peak_tokens"] = np.repeat(features["tokens"].max(axis=1, keepdims=True), members, axis=1)
        first, counts = (steps[name][rows[:, 0]].astype(np.int64) for name in ("step", "count"))
        found[0, STEP_KINDS[kind]] = StepFeatures(first=first, counts=counts, features=features)
    return found


_COLUMNS = ("prefill_tokens", "decode_tokens", "batch_requests")


def _whole(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Features without SP, those of attention and of cached tokens left out."""
    new, decodes, sequences = (columns[name] for name in _COLUMNS)
    return {
        **dict.fromkeys(("tokens", "stage_tokens", "peak_tokens"), new + decodes),
        **dict.fromkeys(("prefill_tokens", "segment_tokens", "all_prefill_tokens"), new),
        **dict.fromkeys(("rows", "sequences"), sequences),
        "decode_sequences": decodes,
    }


def _split(tables: Tables, sp: SequencePlan) -> dict[int, tuple[Chunk, ...]]:
    """Return the prompt chunks of each row of ``steps`` that has some."""
    steps, chunks = tables.steps, tables.chunks
    most = int(max(steps["step"].max(initial=0), chunks["step"].max(initial=0))) + 1
    place, of = (table["replica"].astype(np.int64) * most + table["step"] for table in (steps, chunks))
    order = np.argsort(place, kind="stable")
    rows = order[np.searchsorted(place[order], of)]
    found: dict[int, list[Chunk]] = {}
    for row, request, start, count in zip(
        rows.tolist(), *(chunks[name].tolist() for name in ("request", "start", "count")), strict=True
    ):
        found.setdefault(row, []).append(Chunk(request=request, start=start, count=count))
    return {row: tuple(parts) for row, parts in found.items()}


def _of_rows(
    rows: Int64Array, decodes: FloatArray, split: Mapping[int, tuple[Chunk, ...]], sp: SequencePlan
) -> dict[str, FloatArray]:
    made = [
        features_of(StepBatch(chunks=split.get(row, ()), decode_sequences=(int(count),)), sp)
        for row, count in zip(rows.tolist(), decodes.tolist(), strict=True)
    ]
    return {name: np.array([features[name] for features in made]) for name in made[0]}
