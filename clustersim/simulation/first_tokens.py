"""When clients get the tokens that replicas sample, where one pool computes prompts and another one decodes.

``first_token`` of an engine says what the first one is that a client gets::

    prefill pool    ──prompt──┤sampled
    links                     └──K/V──┤received
    decode pool                       └──step──┤sampled
    prefill                   ▲ what the prefill pool sampled, at once
    transfer                          ▲ the same, from the decode pool, which has got it with the K/V
    decode                                     ▲ what the decode pool's first step samples

With ``decode`` nobody gets what the prefill pool sampled (vLLM's proxy asks it for one token, and throws that away), so
an answer of n tokens takes n steps of the decode pool; n − 1 with the others. Replicas are asked for a token more then
(:attr:`clustersim.replay.input.ReplayInput.of_replicas`), of one token, too. Simplified: steps of the decode pool keep
and attend to the token that was thrown away, one more than in vLLM, which computes the last token of the prompt again.

Whatever the prefill pool samples before the decode pool answers reaches the client then: also what it samples again
after a decode replica has failed. What ends an answer reaches the client from there at once, such as the one token of
who asks for no more, with ``transfer``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.engine import FirstToken
from clustersim.serving.decision import CANCELLED, FINISHED, RECEIVED
from clustersim.simulation.prefixes import first_of
from clustersim.timeline.steps import steps_of
from clustersim.timeline.tables import Tables
from clustersim.timeline.tokens import NOBODY, Delivery

_NONE: Final = -1


def delivery_of(tables: Tables, first_token: FirstToken, num_requests: int) -> Delivery | None:
    """Return when tokens reach clients; None where they do as they are sampled.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    first_token : str
        As the scenario has it (:attr:`clustersim.scenario.scenario.Scenario.first_token`).
    num_requests : int
    """
    if first_token == "prefill":
        return None
    kinds = RECEIVED, FINISHED, CANCELLED
    received, finished, cancelled = (first_of(tables.facts, (kind,), num_requests) for kind in kinds)
    finished = np.where(finished == _NONE, NOBODY, finished)
    if first_token == "decode":
        return Delivery(since_ns=np.minimum(_decoded(tables, num_requests), finished), discarded=1)
    never = (received == _NONE) | (received == cancelled)  # its client had left, and what came was let go at once
    return Delivery(since_ns=np.where(never, finished, received))


def _decoded(tables: Tables, num_requests: int) -> Int64Array:
    """Return when the first step of the decode pool that samples a token of each request ends."""
    steps, found = steps_of(tables), np.full(num_requests, NOBODY)
    chunks, decodes = tables.chunks, tables.decodes
    for table, step, some in ((chunks, "step", chunks["sampled"] > 0), (decodes, "first_step", True)):
        here = np.flatnonzero(some & (tables.layout.of_replica(table["replica"]) > 0))
        ends = steps.end_ns[steps.at(table["replica"][here], table[step][here])]
        np.minimum.at(found, table["request"][here], ends)
    return found
