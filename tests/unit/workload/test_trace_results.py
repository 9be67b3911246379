"""Results of benchmarks and logs of services as traces: what failed, which keys say it, what instants count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clustersim.errors import InputError, Problem
from clustersim.workload import Requests, read_trace
from clustersim.workload.lengths import empirical_from_trace
from clustersim.workload.traces import json_text
from clustersim.workload.traces.plain_csv import NamedColumns

AIPERF = [
    {"metadata": {"request_start_ns": 1_761_000_000_000_000_000, "was_cancelled": False}, "error": None, "metrics": {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "output_sequence_length": {"value": 100, "unit": "tokens"}}},
    {"metadata": {"request_start_ns": 1_761_000_000_500_000_001, "was_cancelled": True},
     "metrics": {"error_isl": {"value": 7, "unit": "tokens"}}, "error": {"code": 499}},
]  # fmt: skip
BAILIAN = [
    {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 61.5,
        "input_length": 33,
        "output_length": 5,
        "hash_ids": [7, 8, 9],
    },
    {"chat_id": 2, "parent_chat_id": 1, "timestamp": 62, "input_length": 40, "output_length": 4, "hash_ids": [7, 8, 4]},
]
NAMED = {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length", "unit": "s"}


def of(tmp_path: Path, told: str | list[Any] | dict[str, Any], **options: Any) -> Requests:
    """Read a text, JSON lines of a list, or one object over many lines."""
    path = tmp_path / "trace.txt"
    lines = told if isinstance(told, str) else "\n".join(map(json.dumps, told))
    path.write_text(json.dumps(told, indent=1) if isinstance(told, dict) else lines, encoding="utf-8")
    return read_trace(path, **options)


def refused(tmp_path: Path, told: str | list[Any] | dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(InputError) as error:
        of(tmp_path, told, **options)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in error.value.problems]


def columns(requests: Requests) -> list[list[int]]:
    return [getattr(requests, name).tolist() for name in ("arrived_at_ns", "prompt_tokens", "output_tokens")]


@pytest.mark.parametrize(
    ("header", "good", "bad"),
    [
        ("success", "true", "False"), ("success", "1", "0"), ("Error", "", "timeout"), ("error", "None", "500"),
        ("error", "NaN", "x"),
    ],
)  # fmt: skip
def test_csv_says_which_requests_failed_and_their_lengths_may_be_empty(tmp_path, header, good, bad):
    text = f"arrival_s,prompt_tokens,output_tokens,{header}\n0,5,3,{good}\n1,6,2,{bad}\n2,,,{bad}\n"
    assert columns(of(tmp_path, text)) == [[0, 10**9, 2 * 10**9], [5, 6, 0], [3, 0, 0]]


def test_csv_of_pandas_writes_lengths_beside_empty_ones_with_a_point(tmp_path):
    told = "arrival_s,prompt_tokens,output_tokens,error\n0,512.0,64.0,\n1,,,timeout\n"
    assert columns(of(tmp_path, told))[1:] == [[512, 0], [64, 0]]
    assert "found '64.5'" in refused(tmp_path, told.replace("64.0", "64.5"))[0]


def test_csv_of_a_request_that_did_not_fail_has_lengths_and_says_true_or_false(tmp_path):
    head = "arrival_s,prompt_tokens,output_tokens,success\n"
    tokens = "expected a whole number of tokens from 0 to 2147483647"
    assert refused(tmp_path, head + "0,5,,1\n1,,2,1\n2,,,0\n") == [
        f"trace.txt:2:5: output_tokens: found ''; {tokens}", f"trace.txt:3:3: prompt_tokens: found ''; {tokens}",
    ]  # fmt: skip
    found = ["trace.txt:2:7: success: found 'maybe'; expected true or false"]
    assert refused(tmp_path, head + "0,5,2,maybe\n") == found
    (lacking,) = refused(tmp_path, head + "0,5,2,1\n", columns=NamedColumns(error="exception"))
    assert lacking.startswith("trace.txt:1: no column 'exception'")


def test_lengths_of_failed_requests_are_not_drawn(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,3\n1,6,0\n", encoding="utf-8")
    assert empirical_from_trace(path, "prompt_tokens").values == (5,)


def test_errors_of_a_result_of_vllm_are_failures_whatever_had_come(tmp_path):
    told = {"start_times": [1, 2, 3], "input_lens": [5, 6, 7], "output_lens": [8, 9, 0], "errors": ["", "Timeout", "x"]}
    assert columns(of(tmp_path, told))[2] == [8, 0, 0]
    (short,) = refused(tmp_path, told | {"errors": [""]})
    assert short.startswith(
        "trace.txt:2:2: start_times: found entries: start_times 3, input_lens 3, output_lens 3, errors 1"
    )
    (wrong,) = refused(tmp_path, told | {"input_lens": [5, -6, 7]})
    assert wrong.startswith("trace.txt:9:3: input_lens[1]: found -6; expected a whole number of tokens")
    (untimed,) = refused(tmp_path, {key: told[key] for key in told if key != "start_times"})
    assert "draw it with workload.arrivals" in untimed


def test_errors_of_a_result_of_vllm_are_a_list(tmp_path):
    told = {"start_times": [1.0, 2.0], "input_lens": [5, 6], "output_lens": [1, 2], "errors": "boom"}
    (problem,) = refused(tmp_path, told)
    assert problem.startswith('trace.txt:14:2: errors: found "boom"; expected a list')


def test_only_the_mistakes_that_are_shown_are_looked_up_in_a_file(tmp_path, monkeypatch):
    """With 3,000 of them it took two minutes."""
    looked_up = []
    monkeypatch.setattr(json_text, "placed", lambda *asked: looked_up.append(asked) or Problem(message="x"))
    results = (
        {"start_times": [1.0] * 99, "input_lens": [-1] * 99, "output_lens": [1] * 99},
        {"benchmarks": [{"requests": {"successful": [{"request_start_time": 1.0}] * 99}}]},
    )
    for told, count in zip(results, (99, 2 * 99), strict=True):
        looked_up.clear()
        assert refused(tmp_path, told)[-1] == f"trace.txt: and {count - 20} more problems"
        assert len(looked_up) == 20


def test_aiperf_says_nanoseconds_and_who_was_cancelled(tmp_path):
    assert columns(of(tmp_path, AIPERF)) == [[0, 500_000_001], [550, 7], [100, 0]]
    wrong = AIPERF[0] | {"metrics": {"input_sequence_length": {"value": 5}, "output_sequence_length": {"value": "x"}}}
    column = json.dumps(wrong).index('"value": "x"') + 1
    (told,) = refused(tmp_path, [wrong])
    assert told.startswith(f'trace.txt:1:{column}: metrics.output_sequence_length.value: found "x"; expected a whole')


def guidellm(*rates: float) -> dict[str, Any]:
    """A result with a benchmark of each rate: three requests, of which one succeeded."""
    sent = {"prompt_tokens": 5, "output_tokens": 3}
    lists = {
        "successful": [sent | {"request_start_time": 100.25}],
        "incomplete": [sent | {"request_start_time": 100.5}],
        "errored": [{"prompt_tokens": None, "output_tokens": None, "request_start_time": 100, "error": "x"}],
    }
    return {"benchmarks": [
        {"config": {"strategy": {"type_": "poisson", "rate": rate}}, "requests": lists} for rate in rates
    ]}  # fmt: skip


def test_guidellm_serves_what_was_successful(tmp_path):
    assert columns(of(tmp_path, guidellm(2.0))) == [[0, 250_000_000, 500_000_000], [0, 5, 5], [0, 3, 0]]
    assert columns(of(tmp_path, json.dumps(guidellm(2.0)))) == columns(of(tmp_path, guidellm(2.0)))


def test_guidellm_with_several_benchmarks_asks_which(tmp_path):
    listed = "expected the number of one: 1: poisson 2.0 (3 requests); 2: poisson 5.0 (3 requests)"
    assert refused(tmp_path, guidellm(2.0, 5.0)) == [f"benchmark: the file has 2 benchmarks; {listed}"]
    assert refused(tmp_path, guidellm(2.0, 5.0), benchmark=3) == [f"benchmark: found 3; {listed}"]
    assert len(of(tmp_path, guidellm(2.0, 5.0), benchmark=2)) == 3


def test_guidellm_names_a_wrong_length_by_line_and_column(tmp_path):
    told = guidellm(2.0)
    told["benchmarks"][0]["requests"]["incomplete"][0] = {
        "request_start_time": 1,
        "prompt_tokens": 5,
        "output_tokens": -1,
    }
    place = "benchmarks[0].requests.incomplete[0].output_tokens"
    assert refused(tmp_path, told)[0].startswith(f"trace.txt:22:7: {place}: found -1; expected a whole number")
    assert refused(tmp_path, {"benchmarks": [{"requests": {"successful": [], "errored": []}}]})[0].startswith(
        "trace.txt:4:4: benchmarks[0].requests: has no requests"
    )


@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: {"response": one}, lambda one: {"response": {"body": one}}]
)
@pytest.mark.parametrize(
    ("created", "prompt", "output"),
    [("created", "prompt_tokens", "completion_tokens"), ("created_at", "input_tokens", "output_tokens")],
)
def test_answers_of_openai_are_read_and_created_is_in_seconds(tmp_path, wrap, created, prompt, output):
    lines = [
        {created: 1_761_000_000, "usage": {prompt: 5, output: 3}, "error": None},
        {created: 1_761_000_002, "usage": None, "error": {"code": "server_error"}},
    ]
    assert columns(of(tmp_path, list(map(wrap, lines)))) == [[0, 2 * 10**9], [5, 0], [3, 0]]


def test_instants_of_json_lines_are_dates_or_say_what_they_count(tmp_path):
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    dates = [{"timestamp": f"2026-05-01T{time}", **usage} for time in ("10:00:00Z", "12:00:01.5+02:00")]
    assert columns(of(tmp_path, dates))[0] == [0, 1_500_000_000]
    (unsaid,) = refused(tmp_path, [{"timestamp": at, **usage} for at in (5, 6)])
    assert unsaid.startswith(
        "trace.txt:1:2: timestamp: does not say what its numbers count; add workload.trace.columns.u"
    )
    (short,) = refused(tmp_path, [{"timestamp": "2026-05-01T10:00Z", **usage}])
    assert 'found "2026-05-01T10:00Z"; expected a time such as' in short
    named = {"prompt_tokens": "usage.prompt_tokens", "output_tokens": "usage.completion_tokens"}
    lines = [{"at": {"start_ms": at}, **usage} for at in (5, 6.5)]
    assert columns(of(tmp_path, lines, columns=NamedColumns(arrival="at.start_ms", **named)))[0] == [0, 1_500_000]
    iso = NamedColumns(arrival="timestamp", unit="iso", **named)
    assert columns(of(tmp_path, dates, columns=iso))[0] == [0, 1_500_000_000]
    (mixed,) = refused(tmp_path, [dates[0], {**dates[1], "timestamp": "2026-05-01T12:00:01"}])
    assert mixed.startswith('trace.txt:2:2: timestamp: found "2026-05-01T12:00:01"; expected a time with an offset')


def test_json_lines_say_by_named_keys_which_requests_failed(tmp_path):
    lines = [{"t_s": 1, "r.in": 5, "r": {"out": 3}, "ok": True}, {"t_s": 2, "r.in": 6, "r": {"out": None}, "ok": False}]
    named = {"arrival": "t_s", "prompt_tokens": "r.in", "output_tokens": "r.out"}
    found = of(tmp_path, lines, columns=NamedColumns(**named, success="ok"))
    assert columns(found) == [[0, 10**9], [5, 6], [3, 0]]
    absent = NamedColumns(**named, success="okay", error="why")
    assert [one.split(";")[0] for one in refused(tmp_path, lines, columns=absent)] == [
        "trace.txt:1: no line has a key 'okay'", "trace.txt:1: no line has a key 'why'",
        "trace.txt:2:29: r.out: found null",
    ]  # fmt: skip
    (wrong,) = refused(tmp_path, lines[:1], columns=NamedColumns(**named | {"output_tokens": "r.outs"}))
    assert wrong == "trace.txt:1: no key 'r.outs'; rename 'r.out' if that is it"


def test_qwen_bailian_counts_seconds_and_blocks_of_16_tokens(tmp_path):
    found = of(tmp_path, BAILIAN)
    assert columns(found) == [[0, 500_000_000], [33, 40], [5, 4]]
    assert (found.hash_block_tokens, [row.tolist() for row in found.prefix_hashes]) == (16, [[7, 8, 9], [7, 8, 4]])
    failed = {"timestamp": 63, "error": "x", "chat_id": 3, "parent_chat_id": 0}
    assert [row.tolist() for row in of(tmp_path, [*BAILIAN, failed]).prefix_hashes] == [[7, 8, 9], [7, 8, 4], []]
    unanswered = {key: value for key, value in BAILIAN[0].items() if key != "hash_ids"} | {"output_length": 0}
    for first in (unanswered, failed | {"timestamp": 61, "hash_ids": None}):  # what comes first says nothing of others
        assert [row.tolist() for row in of(tmp_path, [first, *BAILIAN]).prefix_hashes] == [[], [7, 8, 9], [7, 8, 4]]


def test_too_few_hashes_for_all_long_prompts_are_those_of_larger_blocks(tmp_path):
    """With 8 tokens a hash half of the blocks would never be found again."""
    long = [BAILIAN[0], BAILIAN[1] | {"input_length": 80, "hash_ids": [1, 2, 3, 4, 5]}]
    (told,) = refused(tmp_path, long, block_tokens=8)
    assert told.startswith("trace.txt:1:97: hash_ids: found 3 hashes for 33 tokens in blocks of 8, and no long prompt")
    shared = BAILIAN[0] | {"input_length": 320}  # of some prompts only what they share may be hashed
    assert len(of(tmp_path, [shared, *long])) == 3


def test_hashes_are_read_where_keys_are_named(tmp_path):
    for named in (NAMED, NAMED | {"hash_ids": "hash_ids"}):
        assert of(tmp_path, BAILIAN, columns=NamedColumns(**named), block_tokens=16) == of(tmp_path, BAILIAN)
    (first, _) = refused(tmp_path, BAILIAN, columns=NamedColumns(**NAMED))
    assert "hash_ids: found 3 hashes; expected at most 1 for 33 tokens in blocks of 512" in first
    few = [BAILIAN[0] | {"input_length": 2100}]  # blocks of more tokens than 512, which nobody said
    assert "expected 4 or 5 for 2100 tokens" in refused(tmp_path, few, columns=NamedColumns(**NAMED))[0]


@pytest.mark.parametrize(
    ("told", "options", "expected"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", {"block_tokens": 16},
         "block_tokens: is for the trace formats mooncake, bailian, sharegpt; leave it out, or say which format"),
        (AIPERF, {"benchmark": 1}, "benchmark: is for the trace formats guidellm; leave it out, or say which format"),
        ([{key: value for key, value in BAILIAN[0].items() if key != "hash_ids"}], {"block_tokens": 16},
         "has no hashes of blocks; leave it out"),
        ("when,prompt_tokens,output_tokens\n0,1,1\n", {"columns": NamedColumns(arrival="when", unit="s", hash_ids="h")},
         "trace.txt:1: workload.trace.columns.hash_ids is read from JSON lines only"),
    ],
)  # fmt: skip
def test_options_that_a_file_has_no_use_for_are_refused(tmp_path, told, options, expected):
    assert expected in refused(tmp_path, told, **options)[0]
