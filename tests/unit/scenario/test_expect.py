"""``expect``: what is read, what holds, and what is said when it does not."""

from __future__ import annotations

import pytest

from clustersim.scenario.expect import expectation, failed_expectations

SUMMARY = {
    "legal": True,
    "requests": {"finished": 500},
    "ttft_ms": {"p99": 1500.0, "mean": None},
    "timeline_digest": "abc",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("legal", True),
        ("finished", 500),
        ("requests.finished", "== 500"),
        ("ttft_ms.p99", "< 2000"),
        ("ttft_ms.p99", "<= 1500"),
        ("ttft_ms.p99", ">=1.5e3"),
        ("ttft_ms.p99", "1500 .. 1500"),
        ("timeline_digest", "abc"),
    ],
)
def test_expectation_holds(key: str, value: object) -> None:
    assert expectation(key, value).check(SUMMARY) == []


@pytest.mark.parametrize(
    ("key", "value", "failure"),
    [
        ("legal", False, "legal is true; expected false"),
        ("finished", 499, "requests.finished is 500; expected 499"),
        ("ttft_ms.p99", "< 1500", "ttft_ms.p99 is 1500; expected < 1500"),
        ("ttft_ms.p99", "10 .. 20", "ttft_ms.p99 is 1500; expected 10 .. 20"),
        ("ttft_ms.mean", "> 0", "ttft_ms.mean has no value; expected > 0"),
        ("makespan_s", 1, "makespan_s has no value; expected 1"),
    ],
)
def test_expectation_says_what_it_found(key: str, value: object, failure: str) -> None:
    assert expectation(key, value).check(SUMMARY) == [failure]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("finishd", 1, "a summary has no 'finishd'; did you mean 'finished'?"),
        ("ttft_ms.p98", 1, "did you mean 'ttft_ms.p9"),
        ("legal", "yes", "expected true or false, but found the text 'yes'"),
        ("steps", True, "expected a number, a comparison"),
        ("steps", "about 3", "expected a number, a comparison"),
        ("steps", "< x", "expected a number, a comparison"),
        ("steps", "< .nan", "expected a number, a comparison"),
        ("steps", "5 .. 2", "holds no number; write the smaller end first"),
        ("timeline_digest", 3, "expected text, but found the number 3"),
    ],
)
def test_expectation_refuses(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        expectation(key, value)
    assert message in str(caught.value)


def test_failed_expectations_keep_their_order() -> None:
    expectations = [expectation("steps", 1), expectation("legal", True), expectation("finished", 1)]
    assert failed_expectations(expectations, SUMMARY) == [
        "steps has no value; expected 1",
        "requests.finished is 500; expected 1",
    ]
