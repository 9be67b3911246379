"""Every mutation that the rules name, at every level before a run, has a case: the list is written out here.

What is named at level T has its histories (``tests/legality/histories``), one folder for each rule.
"""

from __future__ import annotations

from typing import Final

import pytest
from graph_mutations import MUTATIONS
from plan_mutations import PLAN_RULE
from proof_mutations import PROOFS

from clustersim.legality.rulebook import RULES

Cases = dict[str, tuple[str, ...]]

CASES: Final[dict[str, dict[str, Cases]]] = {
    "PH-1": {
        "drop the boundary": {"G": ("the boundary is dropped", "the boundary is dropped under SP")},
        "start decode before the last chunk ends on the last stage": {
            "G": ("decode starts before the last chunk ends on the last stage",)
        },
    },
    "PH-2": {
        "a decode step with two tokens of one sequence": {
            "G": ("a decode step has two tokens of one sequence", "a sequence is in a decode step twice")
        },
    },
    "PH-3": {"overlap two steps of a sequence across stages": {"G": ("two steps overlap across stages",)}},
    "PH-5": {
        "drop one K/V dependency": {
            "G": ("a K/V dependency on the tokens of the step is dropped",),
            "X": ("a narrower window drops K/V dependencies",),
        },
        "add a forward one": {
            "G": ("attention sees tokens that come later: it has no causal mask",),
            "X": ("a token attends to the next one",),
        },
    },
    "KV-1": {
        "skip an index": {"G": ("an entry is skipped",)},
        "repeat an index": {"G": ("a write is done twice",)},
        "overwrite an index": {"G": ("an entry is written again by the next step",)},
    },
    "KV-2": {
        "read before write": {
            "G": ("a step reads before the one before it has written", "attention runs before the write in its rank's "
                  "program"),
            "X": ("attention reads before the write",),
        },
        "read before arrival": {
            "G": ("a step reads before K/V of other ranks has arrived",),
        },
    },
    "KV-4": {
        "an orphaned head": {"P": ("an orphaned head",), "G": ("a K/V head is orphaned",)},
        "an undeclared copy": {"P": ("an undeclared copy",), "G": ("K/V heads are copied without a word",)},
    },
    "KV-5": {
        "cross-read another sequence": {
            "G": ("a read of another sequence", "a read of another layer", "a read of another micro-batch")
        },
        "write into a shared block": {"G": ("a write into a shared block",)},
    },
    "KV-6": {"over-admit": {"P": ("a pool larger than what is left",)}},
    "TP-1": {
        "tp = 3 on 8 heads": {"P": ("tp 3 on 8 heads",)},
        "split softmax": {
            "P": ("a softmax that is split between two ranks", "an operator that is split along its softmax")
        },
    },
    "TP-2": {
        "drop an all-reduce": {"G": ("an all-reduce is dropped",), "X": ("an all-reduce is dropped",)},
        "swap sum and concat": {
            "G": ("a sum is swapped for a concatenation", "a concatenation is swapped for a sum"),
            "X": ("a sum is swapped for a concatenation", "a concatenation is swapped for a sum"),
        },
    },
    "TP-3": {
        "insert a collective inside": {"G": ("a collective is put before the activation",)},
        "move a collective inside": {"G": ("a collective is put behind the activation",)},
    },
    "TP-4": {
        "a collective between score and softmax under head split": {
            "G": ("a collective is put between projection and scores",
                  "a collective is put between decode's scores and their values")
        },
    },
    "TP-5": {
        "one rank missing": {"G": ("one rank is missing", "one rank of two is missing")},
        "two collectives reordered on one rank": {"G": ("two collectives are reordered on one rank",)},
    },
    "TP-7": {
        "an all-reduce whose members lie in two layers": {"G": ("an all-reduce joins two layers",)},
        "an all-reduce whose members lie in two steps": {"G": ("an all-reduce joins two steps",)},
    },
    "TP-8": {
        "any extra edge": {"G": ("an extra edge", "an edge from one rank to another without a collective")},
        "any missing edge": {"G": ("a missing edge on one rank", "a residual edge is missing")},
    },
    "TP-9": {
        "– (property)": {
            "P": ("heads in another order",),
            "G": ("TP splits the batch", "a rank computes half of its share", "a rank leaves out heads"),
            "X": ("a rank makes half of its features", "a rank projects half of its heads"),
        },
    },
    "SP-1": {
        "overlap": {"P": ("overlapping segments",), "G": ("two segments overlap",)},
        "gap": {"P": ("a gap between segments",), "G": ("there is a gap between segments",)},
    },
    "SP-2": {
        "drop one segment's K/V": {
            "G": ("one segment's K/V is left out of the gather", "the last shift of a ring is left out"),
            "X": ("one segment's K/V is not gathered", "a ring's last segment does not arrive"),
        },
    },
    "SP-3": {
        "SP op inside a decode step": {
            "G": ("a decode step gathers over SP ranks", "a decode beside a prompt gathers over SP ranks"),
        },
        "a plan silent about decode": {"P": ("silence about decode",)},
    },
    "SP-4": {"halve the bytes": {"G": ("half the bytes are gathered", "half the bytes are passed on")}},
    "SP-5": {
        "attend before the segment arrives": {"G": ("attention on a segment does not wait for its arrival",)},
        "a sync at the FFN": {"G": ("SP ranks synchronise at the FFN",)},
    },
    "SP-6": {"reshard between the two linears": {"G": ("tokens are resharded between the two linears",)}},
    "SP-7": {"– (property)": {"P": ("a segment that reaches into the next sequence",)}},
    "SP-8": {
        "decode reads a segment that was never moved": {
            "G": ("a segment is never moved to where decode reads it",), "X": ("segments are never moved",),
        },
    },
    "SP-9": {"divide the weights by sp": {"P": ("weights divided by sp",)}},
    "PP-1": {
        "reorder": {"P": ("modules in another order",)},
        "leave out": {"P": ("a module left out",)},
        "place twice": {"P": ("a module placed twice",)},
    },
    "PP-2": {
        "start before arrival": {"G": ("a stage starts before its input arrives",)},
        "wrong payload": {"G": ("the payload is not tokens × hidden × bytes",)},
    },
    "PP-4": {"duplicate a sequence": {"G": ("a sequence is in two micro-batches",)}},
    "PP-5": {"cross the order of two sends": {"G": ("two sends are crossed",)}},
    "PP-6": {"swap two layers": {"G": ("two layers are swapped",)}},
    "EP-1": {
        "ep on a dense model": {"P": ("EP on a dense model",)},
        "an expert nowhere": {"P": ("an expert nowhere",)},
    },
    "EP-2": {
        "lose one token": {"G": ("a token is lost",), "X": ("a token is lost",)},
        "duplicate one token": {"G": ("a token is combined twice",), "X": ("a token is duplicated",)},
        "misroute one token": {"G": ("a token is sent to the wrong rank",), "X": ("a token is misrouted",)},
    },
    "EP-3": {"reseed by rank": {"X": ("the router looks at its rank",)}},
    "EP-4": {
        "expert before dispatch": {"G": ("an expert runs before the dispatch",)},
        "combine in the next step": {"G": ("the combine is in the next step",)},
    },
    "EP-5": {"feed experts from the previous step": {"G": ("experts are fed from the step before",)}},
    "EP-6": {
        "two ranks with different maps": {
            "P": ("two ranks with different maps of experts",), "G": ("two ranks have different maps of experts",),
        },
    },
    "EP-7": {"– (property)": {"G": ("expert ranks meet inside attention",)}},
    "EP-8": {
        "each rank alone in a group of one": {
            "P": ("each rank dispatches by itself",), "G": ("each rank dispatches alone",),
        },
        "two halves of the group": {
            "P": ("two halves of the ranks dispatch",), "G": ("two halves of the group dispatch apart",),
        },
        "another group for the combine": {
            "P": ("the combine has another group",), "G": ("the combine is taken by other groups than the dispatch",),
        },
    },
    "DP-1": {"half a replica": {"P": ("half a replica",)}},
    "DP-3": {"a K/V edge between replicas": {"G": ("a K/V edge goes from one replica to another",)}},
    "RUN-1": {"a cycle": {"G": ("there is a cycle",)}, "an orphan": {"G": ("there is an orphan",)}},
}  # fmt: skip
"""Rule → mutation as the rules name it → level → the cases."""

BEFORE_A_RUN: Final = ("P", "G", "X")
ONE_LEVEL: Final = {
    ("SP-3", "SP op inside a decode step"): "G",  # a plan has no operators
    ("SP-3", "a plan silent about decode"): "P",  # and a graph can't be silent
    ("KV-2", "read before arrival"): "G",  # a proof calls it SP-2, or SP-8 in decode: see the cases of these
}
"""Mutations that only one of their rule's levels can name."""

KNOWN: Final[dict[str, set[tuple[str, str]]]] = {
    "P": {(rule, name) for name, rule in PLAN_RULE.items()},
    "G": {(mutation.rule, mutation.what) for mutation in MUTATIONS},
    "X": {(rule, name) for name, (rule, _) in PROOFS.items()},
}


def test_every_rule_that_looks_before_a_run_is_in_the_list() -> None:
    assert list(CASES) == [rule.id for rule in RULES if set(rule.levels) & set(BEFORE_A_RUN)]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.id in CASES], ids=lambda rule: rule.id)
def test_every_mutation_has_a_case_at_every_level_of_its_rule(rule) -> None:  # type: ignore[no-untyped-def]
    levels = [level for level in BEFORE_A_RUN if level in rule.levels]
    for text, cases in CASES[rule.id].items():
        assert list(cases) == [ONE_LEVEL[rule.id, text]] if (rule.id, text) in ONE_LEVEL else levels
        assert all((rule.id, case) in KNOWN[level] for level, found in cases.items() for case in found)


def test_the_rulebook_gives_an_example_for_every_rule() -> None:
    assert [rule.id for rule in RULES if not rule.example] == []
