"""Every mutation that the rule list names for level T has a history here that breaks that rule, and no other.

The texts are those of the project's list of legality rules. Of a rule that several levels check, a mutation that only
another level can see is named with that level; ``property`` marks rules that a law over random scenarios checks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim.legality.audit import TIMELINE_RULES, check_history
from tests.legality.timeline.notation import history_in

ILLEGAL = Path(__file__).parent.parent / "histories" / "illegal"

MUTATIONS: dict[str, dict[str, str]] = {
    "PH-1": {
        "drop the boundary": "no_boundary",
        "start decode before the last chunk ends on the last stage": "before_the_last_chunk_ends",
    },
    "PH-2": {"a decode step with two tokens of one sequence": "twice_in_a_step"},
    "PH-3": {"overlap two steps of a sequence across stages": "across_stages"},
    "PH-4": {"lose a step": "lost_step", "merge a step": "merged_steps"},
    "KV-1": {"skip an index": "skipped", "repeat an index": "repeated", "overwrite an index": "overwritten"},
    "KV-2": {"read before write": "read_before_write", "read before arrival": "read_before_arrival"},
    "KV-3": {"add zero": "zero", "add two": "two"},
    "KV-5": {"cross-read another sequence": "cross_read", "write into a shared block": "write_into_shared"},
    "KV-6": {"over-admit": "over_admitted"},
    "KV-7": {"leak a block": "leaked", "free twice": "freed_twice"},
    "TP-5": {"one rank missing": "rank_missing", "two collectives reordered on one rank": "reordered"},
    "TP-6": {"start a dependent early": "dependent_early"},
    "TP-7": {
        "an all-reduce whose members lie in two layers": "two_layers",
        "an all-reduce whose members lie in two steps": "two_steps",
    },
    "TP-9": {"property: sweep tp and batch": "other_steps"},
    "SP-2": {"drop one segment's K/V": "segment_dropped"},
    "SP-3": {"SP op inside a decode step": "in_a_decode_step", "a plan silent about decode": "level P"},
    "SP-5": {"attend before the segment arrives": "before_the_segment_arrives", "a sync at the FFN": "at_the_ffn"},
    "SP-8": {"decode reads a segment that was never moved": "never_moved"},
    "PP-2": {"start before arrival": "before_arrival", "wrong payload": "wrong_payload"},
    "PP-3": {"overlap": "two_decodes_in_flight"},
    "PP-4": {"duplicate a sequence": "in_two_micro_batches"},
    "PP-6": {"swap two layers": "swapped_layers"},
    "EP-2": {
        "lose one token": "lost", "duplicate one token": "duplicated", "misroute one token": "misrouted",
    },
    "EP-3": {"reseed by rank": "reseeded"},
    "EP-4": {
        "expert before dispatch": "expert_before_dispatch", "combine in the next step": "combined_in_the_next_step",
    },
    "EP-5": {"feed experts from the previous step": "fed_from_the_step_before"},
    "EP-8": {
        "each rank alone in a group of one": "each_alone", "two halves of the group": "halves",
        "another group for the combine": "another_group_combines",
    },
    "DP-2": {"migrate silently": "migrated"},
    "DP-3": {"a K/V edge between replicas": "kv_edge"},
    "DP-4": {"property": "other_tokens"},
    "RUN-2": {"early start": "early", "shortened op": "shortened"},
    "RUN-3": {"overlap": "overlap", "101 % of a link": "one_percent_more"},
    "RUN-4": {"lose a request": "lost"},
    "RUN-5": {"property": "other_digest"},
}  # fmt: skip
"""Rule → mutation of the list → history in ``tests/legality/histories/illegal/RULE``."""

CASES = [
    (rule, mutation, name)
    for rule, cases in MUTATIONS.items()
    for mutation, name in cases.items()
    if not name.startswith("level")
]


def test_every_rule_of_level_t_has_its_mutations() -> None:
    assert set(MUTATIONS) == set(TIMELINE_RULES)


@pytest.mark.parametrize(("rule", "mutation", "name"), CASES, ids=[f"{rule} {text}" for rule, text, _ in CASES])
def test_mutation_of_the_rule_list_breaks_its_rule_and_no_other(rule: str, mutation: str, name: str) -> None:
    del mutation
    verdict = check_history(history_in(ILLEGAL / rule / f"{name}.txt"))
    assert {found.rule for found in verdict.violations} == {rule}
