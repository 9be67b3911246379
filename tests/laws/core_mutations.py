"""Ways to break the core: each replaces a piece of one function, wherever it is called, for as long as a test runs."""

from __future__ import annotations

from typing import Final

from clustersim.core import (
    clock,
    custom,
    flows,
    group_prices,
    groups,
    outages,
    passes,
    prices,
    queue,
    routing,
    scheduler,
    stages,
    steps,
)
from clustersim.graph import longest_path
from clustersim.graph.prices.step_table import Part
from clustersim.replay.replica_log import ReplicaLog
from tests.laws.mutations import Mutation

MUTATIONS: Final[dict[str, Mutation]] = {
    # queue, events
    "the queue is last in, first out": Mutation(
        queue, "comes_before", "mine.request < theirs", "mine.request > theirs"
    ),
    "a rank counts the other way": Mutation(queue, "comes_before", "mine.rank < theirs", "mine.rank > theirs"),
    "patience counts for nothing": Mutation(
        queue, "comes_before", "mine.then < theirs.then", "mine.then > theirs.then"
    ),
    # scheduler
    "a victim keeps its tokens": Mutation(scheduler, "preempt", "seq.computed = seq.decodes = 0", "seq.decodes = 0"),
    "the next one behind gives way, not the last": Mutation(scheduler, "last_behind", "return other", "found = other"),
    "the lowest rank gives way": Mutation(
        scheduler, "last_behind", "comes_before(s, found, other)", "comes_before(s, other, found)"
    ),
    "a block too few is taken for enough": Mutation(
        scheduler, "grow", "missing > free_of(s, r, seq.owner)", "missing > free_of(s, r, seq.owner) + 1"
    ),
    "who lacks blocks takes none": Mutation(scheduler, "lend", "rep.free -= blocks", "pass"),
    "decodes take more than their share": Mutation(
        scheduler, "choose_decodes", "+ rep.stages - 1) // rep.stages", "+ rep.stages - 1) // 1"
    ),
    "decodes overlap though they may not": Mutation(scheduler, "choose_decodes", "rep.overlap == 0", "rep.overlap < 0"),
    "who lacks a block keeps its place in the step": Mutation(
        scheduler, "choose_decodes", "if ranked == 0:", "if True:"
    ),
    "keys are counted without the new one": Mutation(
        scheduler, "choose_decodes", "computed + 1\n        left", "computed\n        left"
    ),
    "no prompt gives up its own": Mutation(scheduler, "choose_begun", "is_last(s, r, one)", "False"),
    "others are admitted after somebody gave way": Mutation(scheduler, "admit", " and rep.evicted == 0", ""),
    "one too many runs": Mutation(scheduler, "admit", "rep.running < places", "rep.running < places - 1"),
    "a prompt is cut though whole ones come": Mutation(scheduler, "admit", "if rep.chunked == 0 and", "if False and"),
    "a long prompt waits for ever": Mutation(
        scheduler, "admit", "need > rep.max_tokens", "need > 2 * rep.max_tokens + 9"
    ),
    "blocks of a first chunk are enough": Mutation(
        scheduler, "admit", "blocks if rep.first_chunk else", "blocks if True else"
    ),
    "a first chunk is never enough": Mutation(
        scheduler, "admit", "blocks if rep.first_chunk else", "blocks if False else"
    ),
    "room is kept for nobody": Mutation(scheduler, "enter", "promise(s, r, one, most_blocks(rep, seq))", "pass"),
    "room is kept for a token more": Mutation(scheduler, "most_blocks", "max(seq.output - 1, 0)", "seq.output"),
    "anybody joins a static batch": Mutation(scheduler, "admit", "seq.batch != rep.batch", "False"),
    "a static batch has a member more than blocks": Mutation(
        scheduler, "make_up_batch", "left -= most", "left -= 0 * most"
    ),
    "long prompts are not limited": Mutation(scheduler, "choose_prompts", "min(budget, rep.longest)", "budget"),
    "a step goes on after somebody gave way": Mutation(
        scheduler, "schedule", "rep.chunks + rep.evicted + rep.copies", "rep.chunks + rep.copies"
    ),
    # steps
    "blocks of a run are not taken": Mutation(steps, "advance_decodes", "rep.free -= more", "pass"),
    "a run is not cut": Mutation(steps, "cut", "flight.steps = flight.limit = ended + 1", "return"),
    "what a run has taken is forgotten": Mutation(steps, "taken_of_owner", "computed + ended + 1", "computed + 1"),
    "a run jumps over the step that lacks a block": Mutation(steps, "blocks_last", "if free < 0:", "if free < -1:"),
    "a run jumps over a window that is full": Mutation(
        steps, "horizon_of", "min(steps, rep.near_steps)", "min(steps, 1 << 40)"
    ),
    "a run begins with the second block": Mutation(
        steps, "blocks_last", "size - within if within > 0 else 0", "size - within - 1"
    ),
    "the slot used last is taken": Mutation(
        steps, "open_episodes", "slots[other] < slots[slot]", "slots[other] > slots[slot]"
    ),
    "a stage takes two micro-batches at a time": Mutation(steps, "pass_stages", "at = max(at, free_at[stage])", "pass"),
    "a boundary sends two at a time": Mutation(
        steps, "pass_stages", "max(leaves, sent_at[stage * ranks + rank])", "leaves"
    ),
    "the first stage takes the next one late": Mutation(steps, "arm", "s.clock[0].now < s.free_at[r][0]", "False"),
    "more micro-batches than stages": Mutation(steps, "decide", "rep.flying == rep.stages or", "False or"),
    "a chunk samples nothing": Mutation(steps, "compute_chunk", "sampled = 1", "sampled = 0"),
    "who was given up in a step stays": Mutation(steps, "land", "if rep.leaving > 0:", "if rep.leaving > 99:"),
    "decodes see beyond the window": Mutation(steps, "add_up_near", "keys += min(seen, window)", "keys += seen"),
    "the step in flight has happened at the horizon": Mutation(
        steps, "stop", "if end > clock.horizon:", "if end > clock.horizon + 7000:"
    ),
    "who leaves gives no load back": Mutation(
        steps, "free_sequence", "-(s.sequences[one].prompt + s.sequences[one].output)", "0"
    ),
    # clock
    "a queue takes one more": Mutation(
        clock,
        "arrive",
        "s.replicas[r].queue_limit <= s.replicas[r].waiting",
        "s.replicas[r].queue_limit < s.replicas[r].waiting",
    ),
    "arrivals do not end runs": Mutation(clock, "join_queue", "if is_run(s, r) and", "if False and"),
    "who was admitted is timed out": Mutation(clock, "depart", "kind == TIMEOUT and seq.admitted", "False"),
    "deadlines do not end runs": Mutation(steps, "decide_anew", "if is_run(s, r):", "if False:"),
    "who is in a step is given up at once": Mutation(clock, "depart", "elif seq.busy:", "elif False:"),
    "a closed loop has a client more": Mutation(clock, "arrive", "clock.freed > 0 if", "clock.freed >= 0 if"),
    # routing, prices, record
    "the heavier of two is taken": Mutation(
        routing, "route", "s.replicas[more].outstanding <", "s.replicas[more].outstanding >"
    ),
    "stages that cost otherwise cost the same": Mutation(
        prices, "price_decodes", "p.decode_ns[kind][count]", "p.decode_ns[0][count]"
    ),
    # swapping and outages
    "what is in host memory outlives a failure": Mutation(outages, "fail", "lose_copies(s, r)", "pass"),
    "blocks of who leaves for the host are lost with the replica": Mutation(
        outages,
        "lose_copies",
        "-(blocks_of(rep, seq.computed) if seq.away == LEAVING else seq.blocks)",
        "-seq.blocks",
    ),
    "who gives up on the way to the host is computed anew after a failure": Mutation(
        outages, "lose_copies", "if seq.leaving:", "if seq.leaving > 1:"
    ),
    "copies of a replica that is back wait for those before its failure": Mutation(
        outages, "lose_copies", "s.copies_end[r][place] = 0", "pass"
    ),
    # links that are shared
    "what a pass takes is known of other steps": Mutation(passes, "lacks_class", "return True", "return False"),
    "nobody hears of a send on its links": Mutation(passes, "tell", "stage.foreign += count", "pass"),
    "a pass goes on as a whole though a send comes": Mutation(passes, "tell", "count > 0 and", "count > 9 and"),
    "a collective begins anew as it is met": Mutation(
        passes, "step", "get_on(s, n, r, i, enters)", "get_on(s, n, r, i, now)"
    ),
    "a send begins anew as it is shown": Mutation(
        stages, "go_on_transfer", ".enters, path.left)", ".enters * 0 + s.clock[0].now, path.left)"
    ),
    "a quiet send meets nothing": Mutation(passes, "meets", "return ns > 0 and end - ns < ends", "return False"),
    "a pass that begins meets no quiet send": Mutation(
        passes, "begin_pass", ".quiet and meets", ".quiet > 1 and meets"
    ),
    "a pass catches up what a collective lost": Mutation(stages, "end_collective", "stage.late += lost", "pass"),
    "what a collective lost is not told": Mutation(stages, "end_collective", "if lost != 0:", "if lost > 1 << 40:"),
    "a stage waits for one rank": Mutation(stages, "end_send", "arrived = min(", "arrived = max("),
    "what waits to be sent is forgotten": Mutation(
        stages, "end_send", "if sender.begun < n.stages[r][i].ended:", "if False:"
    ),
    "sends of a failed replica go on": Mutation(passes, "abandon", "if sender.busy:", "if sender.busy > 1:"),
    "passes of a failed replica go on": Mutation(
        passes, "abandon", "stage.version = (stage.version + 1) & VERSIONS", "pass"
    ),
    "durations of an earlier pass count": Mutation(
        passes,
        "begin_pass",
        "stage.late = stage.at = stage.known = stage.layer = 0",
        "stage.late = stage.at = stage.layer = 0",
    ),
    "what has left a link is shared with": Mutation(flows, "leave", "link.users -= 1", "pass"),
    "who stays on a link does not notice": Mutation(flows, "leave", "touch_link(n, place.link)", "pass"),
    "who shares has done nothing before": Mutation(
        flows, "set_rate", "path.left - path.rate * (now - path.since)", "path.left"
    ),
    "all offers are made at once": Mutation(flows, "share_component", "kept += 1", "kept += 0"),
    # groups
    "who waits without being admitted decides nothing else for as long as all go on": Mutation(
        groups, "describe_all", "rep.waiting + rep.running + rep.away > 0", "False"
    ),
    "every step with prompts is mixed": Mutation(
        groups, "describe_all", "(MIXED if decodes > 0 else PREFILL)", "MIXED"
    ),
    "only the first one of a group goes on": Mutation(
        groups, "extend_all", "flight.steps, flight.limit, flight.end", "other.steps, other.limit, other.end"
    ),
    "who swaps in is not asked again": Mutation(groups, "choose", "while rep.again", "if rep.again"),
    "a step ends for the first one of a group": Mutation(
        steps, "land_all", "range(first, first + s.replicas[r].group_size)", "range(first, first + 1)"
    ),
    "who is left at the horizon looks at its own flight": Mutation(
        steps, "stop", "s.flights[first][0], s.pending[first]", "s.flights[r][0], s.pending[r]"
    ),
    # prices of groups
    "who has nothing to run brings a decode": Mutation(group_prices, "count_whole", "bits == 2  #", "False  #"),
    "who has nothing to run attends to nothing": Mutation(
        group_prices, "count_whole", "prompt, prompt, 1 - prompt)", "0, 0, 0)"
    ),
    "the largest captured step is not captured": Mutation(
        group_prices, "count_whole", "most <= group.graph_most", "most < group.graph_most"
    ),
    "a group's contexts are not attended to": Mutation(
        group_prices, "put_attended", "= keys, pairs, attended", "= keys, pairs, 1"
    ),
    "of two cuts as good the second is taken": Mutation(group_prices, "cut_of", "apart < best", "apart <= best"),
    "prompts are split from as many tokens on as decodes": Mutation(
        group_prices, "cut_of", "group.prefill_tokens if", "group.decode_tokens if"
    ),
    "a half's decodes do not attend to themselves": Mutation(
        group_prices, "count_half", "attended += start + 1", "attended += start"
    ),
    "a half's decodes attend beyond their window": Mutation(
        group_prices, "count_half", "min(start + 1, window)", "start + 1"
    ),
    "a half's windows grow when they are full": Mutation(
        group_prices, "count_half", "start + 1 < window", "start + 1 <= window"
    ),
    "a step is split that one replica can't split": Mutation(group_prices, "count_halves", "return 0", "continue"),
    "halves of prompts are mixed": Mutation(
        group_prices, "kind_of", "OF_PREFILL if bits == 2 else OF_MIXED", "OF_MIXED"
    ),
    "the replica with most tokens has those of all": Mutation(
        group_prices, "add_up_tokens", "most = max(most, tokens)", "most = total"
    ),
    "captured graphs of groups are not padded": Mutation(group_prices, "count_group", "if group.pads", "if False"),
    "each half of a captured graph has all of its tokens": Mutation(
        group_prices, "pad", "most // 2, most - most // 2", "most, most"
    ),
    "a captured graph has no halves": Mutation(group_prices, "count_group", "GRAPH_OF_HALVES if", "0 if"),
    "contexts of a group do not grow": Mutation(group_prices, "add_steps", "steps * p.sums[2 * slot]\n", "0\n"),
    "windows of a group do not grow": Mutation(group_prices, "add_steps", "steps * p.sums[2 * slot + 1]", "0"),
    "who goes on begins anew": Mutation(group_prices, "price_group", "if steps > 0", "if False"),
    # owners
    "blocks of another SP rank are given up": Mutation(
        scheduler, "last_behind", " and seq.owner == s.sequences[one].owner", ""
    ),
    "who comes last on another SP rank gives up nothing": Mutation(
        scheduler, "is_last", "if s.sequences[other].owner == s.sequences[one].owner:", "if True:"
    ),
    "who lacked blocks lacks them for ever": Mutation(
        scheduler, "choose_prompts", "s.owners[rep.first_owner + owner].lacks = 0", "pass"
    ),
    # a user's own scheduler
    "who decodes takes a block of no SP rank": Mutation(custom, "decode", "lend(s, r, one, 1)", "seq.blocks += 1"),
    "who is admitted goes to the first SP rank": Mutation(
        custom, "admit_chosen", "owner_with_most(s, r, seq.request, known) if", "0 if"
    ),
    # prices and logs
    "an SP rank waits for nobody": Mutation(longest_path, "walk", "if end > start", "if False"),
    "nobody says who keeps a sequence": Mutation(
        ReplicaLog, "kept", "self._kept.extend((request, time, owner))", "pass"
    ),
    "values near one cost what it costs": Mutation(
        Part, "_price", "for key in each", "for key in [each[0]] * len(each)"
    ),
}
