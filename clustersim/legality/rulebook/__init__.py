"""Every rule of every level, in words: what must hold, why, where it is from, and what must be caught."""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Rule
from clustersim.legality.rulebook.cache import CACHE
from clustersim.legality.rulebook.data import DATA
from clustersim.legality.rulebook.expert import EXPERT
from clustersim.legality.rulebook.phases import PHASES
from clustersim.legality.rulebook.pipeline import PIPELINE
from clustersim.legality.rulebook.run import RUN
from clustersim.legality.rulebook.sequence import SEQUENCE
from clustersim.legality.rulebook.tensor import TENSOR

RULES: Final[tuple[Rule, ...]] = (*PHASES, *CACHE, *TENSOR, *SEQUENCE, *PIPELINE, *EXPERT, *DATA, *RUN)
"""All rules in the order of their families: PH, KV, TP, SP, PP, EP, DP, RUN."""
