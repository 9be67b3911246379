"""PP-6 by operator: one that is not there in a layer of a step is found, and whoever fuses operators is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clustersim.legality.audit import check_history
from clustersim.simulation.foreign.history import read_history

Span = tuple[int, int, int, str]
"""Step, layer, rank and name."""

HEAD = "start_ns,end_ns,rank,stream,name,layer,step"
NAMES = ("attention_norm", "qkv_proj", "o_proj", "attention_post_norm", "ffn_up")
CUT = (1, 2)


def broken(folder: Path, keep: Callable[[Span], bool], *given: str) -> list[str]:
    """Audit two steps of three layers on two ranks, of which some operators were recorded."""
    lines, table = [HEAD], folder / "spans.csv"
    for place in range(2 * 3 * len(NAMES)):
        at, name = divmod(place, len(NAMES))
        step, layer = divmod(at, 3)
        lines += (
            f"{place * 10},{place * 10 + 10},{rank},compute,{NAMES[name]},{layer},{step}"
            for rank in range(2)
            if keep((step, layer, rank, NAMES[name]))
        )
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    verdict = check_history(read_history([table], ("tp=2", *given)))
    return [f"{one.rule}: {one.where}: {one.message}" for one in verdict.violations]


@pytest.mark.parametrize("given", [(), ("horizon_ns=300",)])
@pytest.mark.parametrize(
    "lost",
    [
        (0, 1, 0, "qkv_proj"),
        (0, 2, 1, "ffn_up"),
        (0, 0, 1, "o_proj"),
        (1, 1, 0, "attention_norm"),
        (1, 0, 0, "attention_post_norm"),
    ],
)
def test_operator_that_one_layer_lacks_is_found(tmp_path: Path, lost: Span, given: tuple[str, ...]) -> None:
    (message,) = broken(tmp_path, lambda span: span != lost, *given)
    step, layer, rank, name = lost
    assert message.startswith(f"PP-6: replica 0, stage 0, step {step}, layer {layer}, rank {rank}, ")
    assert message.endswith(f"runs its layer without {name}, which it runs in other layers of this step")


def test_operator_that_every_rank_lacks_in_one_step_is_found(tmp_path: Path) -> None:
    (message,) = broken(tmp_path, lambda span: (*span[:2], span[3]) != (0, 1, "o_proj"))
    assert message.endswith("(and so at 1 more place)")


@pytest.mark.parametrize(
    ("what", "keep"),
    [
        ("everything", lambda span: True),
        ("a step whose operators are fused", lambda span: span[0] != 1 or span[3] != "attention_norm"),
        ("a layer whose operators are fused", lambda span: span[1] != 0 or span[3] != "attention_norm"),
        ("a rank that records fewer operators", lambda span: span[2] != 1 or span[3] != "ffn_up"),
    ],
)
def test_who_fuses_operators_is_left_alone(tmp_path: Path, what: str, keep: Callable[[Span], bool]) -> None:
    assert not broken(tmp_path, keep), what


def test_horizon_cuts_the_last_layer_off(tmp_path: Path) -> None:
    def before(span: Span) -> bool:
        return span[:2] != CUT or span[3] in NAMES[:2]

    assert not broken(tmp_path, before, "horizon_ns=270")
    assert broken(tmp_path, before)
