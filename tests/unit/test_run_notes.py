"""What a run says of how its numbers were made."""

from __future__ import annotations

from clustersim.scenario.load import load
from tests.audit import simulated

# Mistral 7B has 32,768 positions. The last token is never fed back, so it needs none.
BASE = ("plan={tp: 8}", "model=mistral-7b", "targets={}", "expect={}")


def notes(prompt_tokens: int, output_tokens: int) -> tuple[str, ...]:
    lengths = f"prompt_tokens: {prompt_tokens}, output_tokens: {output_tokens}"
    workload = f"workload={{arrivals: all_at_once, {lengths}, requests: 2}}"
    return simulated(load("quickstart", (*BASE, workload))).notes


def test_requests_beyond_the_context_window_are_noted() -> None:
    assert notes(32_767, 3) == (
        "2 requests are longer than the context window of 32,768 tokens, and served all the same.",
    )


def test_requests_that_just_fit_the_context_window_are_not_noted() -> None:
    assert notes(32_767, 2) == ()
