"""Numbers that the core has in common with what reads its log."""

from __future__ import annotations

from typing import get_args

from clustersim.core import state as st
from clustersim.core.prices import COUNTS
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.counts import ALIASES
from clustersim.replay.replica_log import STEP_ROW
from clustersim.serving import decision
from clustersim.serving.config import RouterName
from clustersim.timeline import record


def test_facts_kinds_of_step_and_rows_are_those_of_the_record() -> None:
    for name in ("REJECTED", "ADMITTED", "PREEMPTED", "FINISHED", "REUSED", "CANCELLED"):
        assert getattr(st, name) == getattr(decision, name), name
    assert [STEP_KINDS[kind] for kind in (st.PREFILL, st.DECODE, st.MIXED)] == ["prefill", "decode", "mixed"]
    assert st.NOT_POOLED == record.NOT_POOLED
    assert st.ROW[: len(STEP_ROW)] == STEP_ROW
    assert len(ALIASES) == COUNTS
    assert set(st.ROUTERS) == set(get_args(RouterName))
