"""When a pass is done with a layer: what to call at the end of which operator, for each form in which a pass runs.

A layer is passed when its attention over prompts has ended on every rank of the stage: then its K/V entries are there
and have been read. Engines that move K/V layer by layer do so at this point (vLLM's ``save_kv_layer``, which follows
the attention of each layer).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from clustersim.graph.template import PassTemplate
from clustersim.replay.events.pass_program import EventProgram
from clustersim.replay.events.wiring import OnLayer


def chain_marks(template: PassTemplate, on_layer: OnLayer | None) -> list[tuple[int, Callable[[], None]]]:
    """Return the last instance of each layer's attention in a chain, in order, with what is to be called."""
    if on_layer is None:
        return []
    return [(instance, partial(on_layer, layer)) for instance, layer in template.passes_layers]


def event_marks(
    template: PassTemplate, program: EventProgram, on_layer: OnLayer | None
) -> dict[int, Callable[[], None]]:
    """Return what to call when an operator has ended: the last one of a layer's attention calls ``on_layer``."""
    found: dict[int, Callable[[], None]] = {}
    if on_layer is None:
        return found
    for layer, nodes in template.prompt_layers:
        operators = np.unique(program.node_of[nodes]).tolist()
        found |= dict.fromkeys(operators, _after(len(operators), partial(on_layer, layer)))
    return found


def _after(calls: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return what calls ``action`` when it has been called so many times itself."""
    left = calls

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            action()

    return count
