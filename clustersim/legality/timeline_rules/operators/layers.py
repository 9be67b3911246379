"""PP-6: a step runs every layer that its stage has, each once, on every rank that computes."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import Finding, Rows, judged, merged
from clustersim.legality.timeline_rules.views.grouping import Groups, distinct, placed
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.sheet import COMPUTE, Sheet, of_structure

ONCE: Final = (
    "attention_norm", "qkv_proj", "q_b_proj", "kv_a_proj", "o_proj", "attention_add", "ffn_norm", "ffn_up", "ffn_act",
    "ffn_down", "ffn_add", "moe_norm", "gate", "moe_add", "attention_post_norm", "ffn_post_norm", "moe_post_norm",
)  # fmt: skip
"""Operators that a layer runs once; attention goes in rounds, writes are KV-3's, experts may run for other ranks."""

FIX: Final = "run every layer of a stage once in each of its steps"


@of_structure
def every_layer_once(sheet: Sheet) -> Finding:
    """Judge whether a rank runs, of each module, the layers that the other steps of its stage run, each once."""
    once = np.array([name in ONCE for name, _, _ in sheet.symbols], bool)
    if not once.any():
        return merged()
    rows = np.flatnonzero(once[sheet.symbol] & (sheet.layer >= 0) & (sheet.stream == COMPUTE))
    operators = Groups(sheet.site[rows] * len(sheet.symbols) + sheet.symbol[rows])
    repeated = judged(
        len(operators), operators.counts > 1, Rows(sheet, rows, operators.order, operators.firsts + 1),
        "runs {counts} times in this layer of one step", FIX, counts=operators.counts,
    )  # fmt: skip
    found = [repeated]
    for module in (rows[mine] for mine in _numbers(sheet, rows, 2)):
        found.append(_skipped(sheet, module))
        seats = _seats(sheet, module)
        found += (_partial(sheet, module, seats, mine) for mine in _numbers(sheet, module, 0))
    return merged(*found)


def _numbers(sheet: Sheet, rows: Int64Array, part: int) -> list[Int64Array]:
    """Return which rows are of each name (part 0), or of each module (part 2): a stage may hold the attention of a
    layer and not its FFN, or an MoE module."""
    words = [symbol[part] for symbol in sheet.symbols]
    names = {word: at for at, word in enumerate(dict.fromkeys(words))}
    number = np.array([names[word] for word in words], np.int64)[sheet.symbol[rows]]
    return [np.flatnonzero(number == at) for at in distinct(number).tolist()]


def _skipped(sheet: Sheet, rows: Int64Array) -> Finding:
    """Judge whether any step lacks a layer of this module; the last one before a horizon may be cut off."""
    layer, stage, place = sheet.layer[rows], sheet.holder[rows], sheet.place[rows]
    width = int(layer.max(initial=0)) + 2
    held = distinct(stage * width + layer)
    ran = distinct(place * width + layer)
    places = Groups(place)
    stages = stage[places.some]
    had = np.bincount(places.find(ran // width), minlength=len(places))
    wanted = np.searchsorted(held, (stages + 1) * width) - np.searchsorted(held, stages * width)

    def lacking(i: int) -> Int64Array:
        wants = held[held // width == stages[i]] % width
        return np.setdiff1d(wants, ran[ran // width == places.keys[i]] % width)

    broken = had < wanted
    if sheet.declared.horizon_ns is not None:
        held_by = _held_by(sheet, rows)
        latest = Groups(held_by)
        last = places.most(sheet.end[rows]) == latest.most(sheet.end[rows])[latest.find(held_by)][places.some]
        for i in np.flatnonzero(broken & last).tolist():
            broken[i] = bool(lacking(i)[0] < layer[place == places.keys[i]].max())
    return judged(
        len(places), broken, Rows(sheet, rows, places.some),
        "runs without layer {layer}, which other steps of its stage run", FIX, layer=lambda i: lacking(i)[0],
    )  # fmt: skip


def _held_by(sheet: Sheet, rows: Int64Array) -> Int64Array:
    """Return a number per row that is equal for the stage of one replica; of one rank, where nobody knows the stage."""
    most = int(sheet.holder.max(initial=0)) + 1
    held_by: Int64Array = sheet.replica[rows] * most + sheet.holder[rows]
    return held_by


def _seats(sheet: Sheet, module: Int64Array) -> tuple[Int64Array, ...]:
    """Return the first of the rows of each site, and for each row the numbers of its site, place, and layer."""
    width = int(sheet.layer[module].max(initial=0)) + 2
    others = (sheet.place[module], sheet.stage[module] * width + sheet.layer[module])
    return *placed(sheet.site[module]), *(placed(keys)[1] for keys in others)


def _partial(sheet: Sheet, module: Int64Array, seats: tuple[Int64Array, ...], mine: Int64Array) -> Finding:
    """Judge whether a rank runs a layer without an operator that it runs in other layers of that step, and that other
    steps or ranks run in this layer: whoever fuses operators, in some steps or in some layers, does so alike."""
    some, *numbers = seats
    site, place, layer = (_are_of(number, some, mine) for number in numbers)
    broken = ~site & place & layer
    if sheet.declared.horizon_ns is not None and broken.any():
        broken &= ~_cut_off(sheet, module)[some]
    name = sheet.name(int(module[mine[0]])) if len(mine) else ""
    return judged(
        0, broken, Rows(sheet, module, some),
        "runs its layer without {name}, which it runs in other layers of this step", FIX, name=name,
    )  # fmt: skip


def _are_of(number: Int64Array, some: Int64Array, mine: Int64Array) -> BoolArray:
    """Return which of some rows have a number that one of mine has."""
    has = np.zeros(len(number), bool)
    has[number[mine]] = True
    found: BoolArray = has[number[some]]
    return found


def _cut_off(sheet: Sheet, rows: Int64Array) -> BoolArray:
    """Return which rows are of the last layer of the last pass of a stage: a horizon may have cut it off."""
    held_by = _held_by(sheet, rows)
    stage = Groups(held_by)
    of = stage.find(held_by)
    began = sheet.pass_begins[rows]
    places = Groups(sheet.place[rows])
    deepest = places.most(sheet.layer[rows])[places.find(sheet.place[rows])]
    found: BoolArray = (began == stage.most(began)[of]) & (sheet.layer[rows] == deepest)
    return found
