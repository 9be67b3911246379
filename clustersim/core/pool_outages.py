"""What happens between two pools when a replica fails.

What is on its way from it has lost its K/V and is recomputed in the prefill pool; so is what decodes there, with the
tokens that it has got: that prefill samples the next one. What is on its way to it is sent again to another decode
replica, since the prefill replica still has it, or waits for one to come back.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.hand_overs import NOBODY, let_leave
from clustersim.core.kv_moves import drop_moves
from clustersim.core.passes import tell
from clustersim.core.pools import expect_no_more, give_back
from clustersim.core.progress import lend, promise
from clustersim.core.queue import displace
from clustersim.core.record import close_episode, note, note_reason
from clustersim.core.state import CANCELLED, LEFT_OUTPUT, PREEMPTED
from clustersim.core.steps import decide_anew, end_request, taken_by_run, weigh
from clustersim.core.transfers import cancel


def compute_anew(seq: Any, generated: int, output: int) -> None:
    """Let a prefill replica have to compute all tokens of a sequence so far, and sample the next one."""
    seq.generated, seq.output = generated, generated + 1
    seq.hands_over = 1 if seq.output < output else 0
    seq.computed = seq.decodes = seq.busy = seq.leaving = 0
    seq.first_step = -1


def return_to_prefill(s: Any, r: int, other: int) -> int:
    """Let a sequence go back to the prefill pool that waits at a decode replica; return its number there."""
    way, one = s.sequences[other], s.sequences[other].partner
    seq = s.sequences[one]
    close_episode(s, r, other)
    seq.copies, seq.replica = way.copies, r
    compute_anew(seq, way.generated, s.outputs[seq.request])
    s.sequence_of[seq.request] = one
    return one


def take_back(s: Any, p: Any, n: Any, h: Any, one: int) -> None:
    """Stop the moves of a sequence, so that it is on its way to nobody."""
    seq, other, r, owner = s.sequences[one], s.sequences[one].partner, s.sequences[one].target, h.hand_overs[0]
    way = s.sequences[other]
    if seq.reserved:
        for place in range(owner.sources):
            f = seq.source * owner.sources + place
            if drop_moves(h, f, one):
                path = owner.first_path + f
                was_on = n.paths[path].is_on
                cancel(n, path)
                if was_on:
                    tell(s, p, n, path, -1)
        rep = s.replicas[r]
        rep.receiving -= 1
        promise(s, r, other, -way.blocks)
        lend(s, r, other, -way.blocks)
        note(s, r, PREEMPTED, seq.request, way.generated, rep.blocks - rep.free + taken_by_run(s, p, r))
        weigh(s, r, -(way.prompt + way.output))
    elif r >= 0:
        expect_no_more(s, r, other)
    if r >= 0:
        decide_anew(s, p, r)
    seq.reserved = seq.missing = 0
    seq.target = NOBODY


def stop_transfer(s: Any, p: Any, n: Any, h: Any, r: int, one: int, why: int) -> None:
    """Stop what is on its way from or to a replica that fails; if it is lost there it is displaced."""
    seq, way = s.sequences[one], s.sequences[s.sequences[one].partner]
    take_back(s, p, n, h, one)
    if seq.source != r and way.leaving == 0:
        let_leave(s, one)
        return
    seq.is_on_way = 0
    if seq.sampled == 0:  # the step with its last chunk is under way
        seq.leaving = way.leaving
        s.replicas[seq.source].leaving += way.leaving
        decide_anew(s, p, seq.source)
    elif way.leaving:
        give_back(s, seq.source, one, CANCELLED, seq.generated)
        note_reason(s, seq.request, LEFT_OUTPUT, 0)
        end_request(s, one)
    else:
        give_back(s, r, one, PREEMPTED, seq.generated)
        compute_anew(seq, seq.generated, s.outputs[seq.request])
        displace(s.clock[0], seq, why)
    way.leaving = 0


def break_off(s: Any, p: Any, n: Any, h: Any, r: int, why: int) -> None:
    """Stop all that is on its way from or to a replica that is about to fail."""
    for request in range(s.clock[0].total):
        one = s.sequence_of[request]
        if one >= 0 and s.sequences[one].is_on_way and (s.sequences[one].source == r or s.sequences[one].target == r):
            stop_transfer(s, p, n, h, r, one, why)
    s.clock[0].unsettled = 1


def rouse(s: Any) -> None:
    """Let a decode replica be chosen for all that are on their way to nobody."""
    for request in range(s.clock[0].total):
        one = s.sequence_of[request]
        if one >= 0 and s.sequences[one].is_on_way and s.sequences[one].target == NOBODY:
            let_leave(s, one)
