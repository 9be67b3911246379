"""What a run says of how its numbers were made."""

from __future__ import annotations

import json
from pathlib import Path

from clustersim.scenario.load import load
from tests.audit import simulated

# Mistral 7B has 32,768 positions. The last token is never fed back, so it needs none.
BASE = ("plan={tp: 8}", "model=mistral-7b", "targets={}", "expect={}")


def notes(prompt_tokens: int, output_tokens: int, *more: str) -> tuple[str, ...]:
    lengths = f"prompt_tokens: {prompt_tokens}, output_tokens: {output_tokens}"
    workload = f"workload={{arrivals: all_at_once, {lengths}, requests: 2}}"
    return simulated(load("quickstart", (*BASE, workload, *more))).notes


def test_requests_beyond_the_context_window_are_noted_where_they_are_served() -> None:
    told = "2 requests are longer than the model's context window of 32,768 tokens, and served all the same"
    assert notes(32_767, 2, "serving.context_window=unlimited") == (f"{told}: serving.context_window is unlimited.",)
    assert notes(32_767, 2, "serving.context_window=40000") == (f"{told}: serving.context_window is 40,000.",)
    assert notes(32_767, 2) == ()  # they are rejected
    assert notes(32_767, 1, "serving.context_window=unlimited") == ()


def test_what_has_no_effect_is_noted() -> None:
    late, early = (f"faults=[{{device: n0.g3, at: {at}, until: 1000 s}}]" for at in ("500 s", "0.1 ms"))
    (told,) = notes(10, 2, late)
    assert told.startswith("device n0.g3 is not affected: the run ends at 0.0")
    assert told.endswith(" s, before 500 s (faults).")
    assert notes(10, 2, early) == ()
    told = "serving.order goes by priority, and all requests have the same (workload.priority): they go by arrival."
    by = "serving.order=priority"
    assert notes(10, 2, by) == notes(10, 2, by, "workload.priority={values: [3]}") == (told,)
    two = ("workload.priority={values: [0, 1]}", "workload.requests=20")
    assert notes(10, 2) == notes(10, 2, by, *two) == ()
    unasked = "requests have priorities (workload.priority), and no serving.order goes by them: all are served alike."
    assert notes(10, 2, *two) == notes(10, 2, "serving.order=shortest_prompt", *two) == (unasked,)
    shared = "workload.shared_prefixes={groups: 2, tokens: 1024}"
    alike = "workload.shared_prefixes has 1,024 tokens, and no prompt more than 10: all prompts of a group are alike."
    assert notes(10, 2, shared, "serving.prefix_caching=true") == (alike,)


def test_prefixes_that_a_trace_records_and_nothing_reuses_are_noted(tmp_path: Path) -> None:
    rows = [  # the second prompt begins as the first does: 1 of 4 blocks was there before
        {"timestamp": 0, "input_length": 1000, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 1000, "output_length": 2, "hash_ids": [1, 3]},
    ]
    file = tmp_path / "t.jsonl"
    note = (
        "25% of the prompts' blocks came before in this workload; serving.prefix_caching is off, so all are computed."
    )
    for requests, expected in ((2, (note,)), (1, ())):
        file.write_text("\n".join(map(json.dumps, rows[:requests])))
        found = simulated(
            load("quickstart", (*BASE, f"workload={{trace: {file}}}", "serving.prefix_caching=false"))
        ).notes
        assert found == expected
        swaps = ("serving.preemption=swap", f"workload={{trace: {file}}}")
        by_swap = "serving.preemption: swap leaves no serving.prefix_caching"
        noted = tuple(note.replace("serving.prefix_caching is off", by_swap) for note in expected)
        assert simulated(load("quickstart", (*BASE, *swaps))).notes == noted
    file.write_text("\n".join(map(json.dumps, rows)))
    assert (
        simulated(load("quickstart", (*BASE, f"workload={{trace: {file}}}", "serving.prefix_caching=true"))).notes == ()
    )
