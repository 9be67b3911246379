"""What the picture of a step graph says of an operator: its colour, its size in a few words, everything on hover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clustersim.graph.blueprint import COLLECTIVE_OPS, HOST_OPS, TRANSFER_OPS, Node
from clustersim.graph.prices.priced import NO_DURATION, PricedGraph
from clustersim.report.graph_page.rows import Shape

FAMILIES: Final = {
    "gemm": ("matrix product", "#dcecf7", "#0072B2", "#17384f", "#4aa3d8"),
    "attention": ("attention", "#d6f0e6", "#009E73", "#123f33", "#2fc49b"),
    "memory": ("element-wise, norm, copy", "#eef1f4", "#8a97a3", "#27323c", "#8a97a3"),
    "collective": ("collective", "#fde5d5", "#D55E00", "#4a2a16", "#ff8f4d"),
    "transfer": ("send, receive", "#f7e3ef", "#B5568F", "#43263a", "#d987b6"),
    "host": ("host: schedule, sample", "#fdf2cf", "#C98A00", "#40340f", "#e0ac33"),
    "structural": ("takes no time", "#ffffff", "#5b6b7b", "#182028", "#9fadba"),
}
"""Family of operators → (words, fill and line on a light page, fill and line on a dark one)."""


def family(node: Node) -> str:
    """Return the family that decides an operator's colour."""
    if node.op in COLLECTIVE_OPS:
        return "collective"
    if node.op in TRANSFER_OPS:
        return "transfer"
    if node.op in HOST_OPS:
        return "host"
    if node.is_structural:
        return "structural"
    return "gemm" if node.op in ("gemm", "grouped_gemm") else "attention" if node.op != "memory" else "memory"


def quantity(value: float, unit: str) -> str:
    """Write a quantity with a decimal prefix and three digits.

    Examples
    --------
    >>> quantity(16777216, "B"), quantity(4.2e12, "FLOP"), quantity(12, "B")
    ('16.8 MB', '4.2 TFLOP', '12 B')
    """
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return (
                f"{value / factor:.3g} {prefix}{unit}"
                if value / factor < 999.5
                else f"{value / factor:.0f} {prefix}{unit}"
            )
    return f"{value:.3g} {unit}"


def took(duration_ns: float) -> str:
    """Write nanoseconds with the unit that suits them: ``79.3 us``.

    Examples
    --------
    >>> took(79_312), took(3_100_000), took(250)
    ('79.3 us', '3.1 ms', '250 ns')
    """
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if duration_ns >= factor:
            return f"{duration_ns / factor:.3g} {unit}"
    return f"{duration_ns:.0f} ns"


def ranks_words(ranks: Sequence[int]) -> str:
    """Write ranks as runs: ``0–3, 8``.

    Examples
    --------
    >>> ranks_words([0, 1, 2, 3, 8])
    '0–3, 8'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def counted(number: float, noun: str) -> str:
    """Write a number with its noun, a plural where there is not one: ``1 row``, ``8 rows``."""
    text = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"


def shape_words(shape: Shape, priced: PricedGraph) -> str:
    """Say in a few words how large an operator is on one rank."""
    node, n = shape.node, shape.nodes[0]
    count = float(priced.amount[n])
    match node.op:
        case "gemm":
            return f"{counted(count, 'row')}, {node.k:,} → {node.n:,}"
        case "grouped_gemm":
            return f"{counted(count, 'row')} to {counted(node.experts, 'expert')}, {node.k:,} → {node.n:,}"
        case "attention_prefill":
            return f"{counted(count, 'query').replace('querys', 'queries')}, {_heads(node)}"
        case "attention_decode":
            return f"{counted(count, 'sequence')}, {_heads(node)}"
        case "schedule" | "sample":
            return counted(count, "sequence")
        case "kv_read":
            return "what earlier steps cached"
        case "boundary":
            return "the prompt is complete: decode may follow"
        case "memory":
            return quantity(count, "B") + (", fused" if node.fused or node.included else "")
        case "send" | "recv":
            other = f"to stage {shape.stage + 1}" if node.op == "send" else f"from stage {shape.stage - 1}"
            return f"{quantity(count, 'B')} {'per rank ' if len(shape.groups) > 1 else ''}{other}"
        case _:
            return f"{quantity(count, 'B')} {_among(shape)}"


def _heads(node: Node) -> str:
    kv = "one latent" if node.shared_kv else f"{node.kv_heads} K/V"
    return f"{node.heads} heads on {kv} × {node.qk_dim}"


def _among(shape: Shape) -> str:
    first = shape.groups[0]
    if len(shape.groups) == 1:
        return f"among ranks {ranks_words(first)}"
    return f"in each of {len(shape.groups)} groups of {len(first)} ranks"


def duration_words(shape: Shape, priced: PricedGraph) -> str:
    """Write how long the nodes of a shape take; a range where they differ; empty where they take no time."""
    durations = priced.duration_ns[list(shape.nodes)]
    least, most = int(durations.min()), int(durations.max())
    if least == NO_DURATION:
        return ""
    return took(least) if took(least) == took(most) else f"{took(least)} – {took(most)}"


def everything(shape: Shape, priced: PricedGraph, start_ns: int, devices: Sequence[str]) -> str:
    """Return all that is known of a shape, line by line."""
    node, n = shape.node, shape.nodes[0]
    ranks = sorted({rank for group in shape.groups for rank in group})
    where = f"stage {shape.stage}" + (f", layer {shape.layer}" if shape.layer >= 0 else "")
    lines = [f"{node.name}   ({node.op})", f"{node.module}, {where}"]
    lines.append(f"rank{'s' if len(ranks) > 1 else ''} {ranks_words(ranks)}: {_devices(ranks, devices)}")
    if len(shape.groups) > 1 and node.is_collective:
        lines.append("groups " + "  ".join("{" + ranks_words(group) + "}" for group in shape.groups[:8]))
    if shape.node.is_structural:
        return "\n".join([*lines, shape_words(shape, priced)])
    lines.append(f"stream {node.stream}" + (", inside its neighbour's kernel" if node.fused or node.included else ""))
    lines.append(f"on one rank: {shape_words(shape, priced)}")
    if node.copies > 1:
        lines.append(f"the same work on {node.copies} ranks")
    if node.amount:
        lines.append("amount " + " + ".join(f"{coefficient:,.6g} × {feature}" for feature, coefficient in node.amount))
    duration, flops, moved = int(priced.duration_ns[n]), float(priced.flops[n]), float(priced.bytes_moved[n])
    for value, unit in ((flops, "FLOP"), (moved, "B")):
        if value:
            rate = f", {quantity(value / duration * 1e9, f'{unit}/s')}" if duration > 0 else ""
            lines.append(f"{quantity(value, unit)}{rate}")
    if duration != NO_DURATION:
        lines.append(f"takes {duration_words(shape, priced)}, from {took(start_ns)} after the step begins")
    elif node.op == "recv":
        lines.append(f"ends with its send, {took(start_ns)} after the step begins")
    return "\n".join(lines)


def _devices(ranks: Sequence[int], devices: Sequence[str]) -> str:
    names = [devices[rank] for rank in ranks]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]}"
