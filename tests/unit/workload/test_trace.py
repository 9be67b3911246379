"""Small literal files of each format, and what is read from them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from clustersim.catalog import data_root
from clustersim.errors import InputError
from clustersim.workload import read_trace
from clustersim.workload.traces.plain_csv import NamedColumns

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319601,3180,8
"""
MOONCAKE = """\
{"timestamp": 27482, "input_length": 1025, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 30535, "input_length": 512, "output_length": 26, "hash_ids": [46]}
"""
SHAREGPT = """\
{"input_toks": 40, "output_toks": 416, "arrival_time_ns": 46926808, "hash_ids_16": [0, 1]}
{"input_toks": 9, "output_toks": 333, "arrival_time_ns": 347938951, "hash_ids_16": []}
"""
PLAIN = """\
arrival_s,client_id,input_tokens,output_tokens
3.772092432,35,304,822
4.572273200,17,497,1783
"""
RAGPULSE = """\
timestamp_s,prompt_tokens,output_tokens,session_id,sys_prompt_ids,passage_ids,history_ids,web_ids,user_ids
10,240,5,a,1 2 3,7 8,9,,20
12,256,6,b,1 2 4,8,9,5,21
11,176,7,a,1 2 3,7,,,22
15,164,8,c,1 6 3,,9 10,,23
"""
"""Of 32 tokens a part of system or user, 48 a passage, 16 a history, 64 a search; 4 more in the last prompt."""


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def columns(requests):
    return [getattr(requests, name).tolist() for name in ("arrived_at_ns", "prompt_tokens", "output_tokens")]


def test_azure_keeps_all_seven_fraction_digits(write):
    assert columns(read_trace(write(AZURE))) == [[0, 52_000_100], [4808, 3180], [10, 8]]


def test_azure_reads_stamps_with_an_offset_and_without_a_fraction(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00+00:00,1,2\n"
        "2024-05-10 02:00:00.25+02:00,3,4\n"
        "2024-05-10T00:00:01Z,5,6\n"
        "2024-05-09 22:30:02-01:30,7,8\n"
    )
    assert columns(read_trace(write(text)))[0] == [0, 250_000_000, 1_000_000_000, 2_000_000_000]


def test_mooncake_has_milliseconds_and_blocks_of_512_tokens(write):
    requests = read_trace(write(MOONCAKE))
    assert columns(requests) == [[0, 3_053_000_000], [1025, 512], [52, 26]]
    assert [row.tolist() for row in requests.prefix_hashes] == [[46, 47, 2353], [46]]
    assert requests.hash_block_tokens == 512


def test_sharegpt_has_nanoseconds_and_blocks_of_16_tokens(write):
    requests = read_trace(write(SHAREGPT))
    assert columns(requests) == [[0, 301_012_143], [40, 9], [416, 333]]
    assert [row.tolist() for row in requests.prefix_hashes] == [[0, 1], []]
    assert requests.hash_block_tokens == 16


def shared_blocks(requests, one, other):
    """How many hashed blocks two prompts have in common from their starts."""
    rows = [requests.prefix_hashes[which].tolist() for which in (one, other)]
    same = [mine == theirs for mine, theirs in zip(*rows, strict=False)]
    return same.index(False) if False in same else len(same)


def test_ragpulse_shares_the_parts_that_prompts_begin_with(write):
    requests = read_trace(write(RAGPULSE))
    assert columns(requests) == [[0, 10**9, 2 * 10**9, 5 * 10**9], [240, 176, 256, 164], [5, 7, 6, 8]]
    assert requests.hash_block_tokens == 16
    assert [len(row) for row in requests.prefix_hashes] == [15, 11, 16, 10]
    assert shared_blocks(requests, 0, 1) == 6 + 3  # three parts of the system prompt, and passage 7
    assert shared_blocks(requests, 0, 2) == 4  # two parts of the system prompt; passage 8 stands elsewhere
    assert shared_blocks(requests, 0, 3) == 2


def test_ragpulse_takes_parts_as_equally_long_where_nothing_tells_their_kinds_apart(write):
    requests = read_trace(write("\n".join(RAGPULSE.splitlines()[:3])))
    assert shared_blocks(requests, 0, 1) == 2 * 2  # 496 tokens of 15 parts: 33 each


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RAGPULSE.replace("web_ids", "web_idz"), "no column 'web_ids'; rename 'web_idz' if that is it"),
        (
            RAGPULSE.replace("7 8", "7 x8"),
            ":2:18: passage_ids: found 'x8'; expected ids of parts, such as '8302 14332'",
        ),
        (RAGPULSE.replace("11,176", "11,-4"), ":4:4: prompt_tokens: found '-4'; expected a whole number of tokens"),
    ],
)
def test_ragpulse_says_which_part_is_wrong(write, text, expected):
    with pytest.raises(InputError) as caught:
        read_trace(write(text))
    assert expected in str(caught.value)


def test_jsonl_without_hashes_has_none(write):
    requests = read_trace(write('{"input_toks": 7, "output_toks": 8, "arrival_time_ns": 9}\n'))
    assert columns(requests) == [[0], [7], [8]]
    assert requests.prefix_hashes is None
    assert requests.hash_block_tokens is None


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        ("cancel_after", "cancel_after_s"),
        ("timeout_s", "cancel_after_s"),
        ("Priority", "priority"),
        ("cancel_ms", "cancel"),
    ],
)
def test_plain_csv_passes_over_nothing_that_seems_to_tell_of_clients(write, column, meant):
    with pytest.raises(InputError, match=rf"trace.txt:1.*column '{column}' is not read; did you mean '{meant}"):
        read_trace(write(f"arrival_s,prompt_tokens,output_tokens,{column}\n0,5,3,1\n"))


def test_plain_csv_ignores_further_columns(write):
    assert columns(read_trace(write(PLAIN))) == [[0, 800_180_768], [304, 497], [822, 1783]]


@pytest.mark.parametrize(
    ("header", "ns"),
    [
        ("arrival_s", 1_500_000_000),
        ("arrived_at_s", 1_500_000_000),
        ("timestamp_s", 1_500_000_000),
        ("arrival_ms", 1_500_000),
        ("arrival_us", 1500),
        ("arrived_ns", 2),
    ],
)
def test_plain_csv_takes_the_unit_from_the_name(write, header, ns):
    text = f"{header},prompt_tokens,output_tokens\n0,1,1\n1.5,1,1\n"
    assert read_trace(write(text)).arrived_at_ns.tolist() == [0, ns]


def test_plain_csv_reads_exponents_and_epoch_seconds_exactly(write):
    text = "timestamp_s,prompt_tokens,output_tokens\n1700000000.000000001,1,1\n1.70000000000000005e9,1,1\n"
    assert read_trace(write(text)).arrived_at_ns.tolist() == [0, 49]


def test_plain_csv_reads_quoted_cells_and_windows_line_ends_and_a_byte_order_mark(write):
    text = '\ufeffprompt,output_tokens,prompt_tokens,arrival_s\r\n"a, ""b""\nc",2,1,"0.5"\r\n,4, 3 ,0.75\r\n\r\n'
    assert columns(read_trace(write(text))) == [[0, 250_000_000], [1, 3], [2, 4]]


def test_unsorted_trace_is_sorted_and_ties_keep_the_order_of_the_file(write):
    text = "arrival_s,prompt_tokens,output_tokens\n2,10,1\n1,11,1\n2,12,1\n1,13,1\n"
    requests = read_trace(write(text))
    assert requests.arrived_at_ns.tolist() == [0, 0, 1_000_000_000, 1_000_000_000]
    assert requests.prompt_tokens.tolist() == [11, 13, 10, 12]


def test_many_ties_keep_the_order_of_the_file(write):
    # Sorts that are not stable are so only above some 16 elements.
    rows = "".join(f"{(i + 1) % 2},{i},1\n" for i in range(100))
    requests = read_trace(write("arrival_s,prompt_tokens,output_tokens\n" + rows))
    assert requests.prompt_tokens.tolist() == [*range(1, 100, 2), *range(0, 100, 2)]


def test_hashes_move_with_their_requests(write):
    lines = MOONCAKE.splitlines(keepends=True)
    requests = read_trace(write(lines[1] + lines[0]))
    assert [row.tolist() for row in requests.prefix_hashes] == [[46, 47, 2353], [46]]


def test_options_apply_window_then_requests_then_rate(write):
    rows = "".join(f"{second},{second},1\n" for second in range(10))
    path = write("arrival_s,prompt_tokens,output_tokens\n" + rows)
    requests = read_trace(path, window_ns=(2_000_000_000, 6_000_000_000), requests=3, rate_scale=2.0)
    assert columns(requests) == [[0, 500_000_000, 1_000_000_000], [2, 3, 4], [1, 1, 1]]


def test_source_is_the_path(write):
    path = write(AZURE)
    assert read_trace(path).source == str(path)


def test_sample_trace_is_what_its_readme_says():
    sample = read_trace(data_root() / "scenarios" / "traces" / "azure-conv-sample.csv")
    assert len(sample) == 600
    assert sample.prompt_tokens.sum() == 717_334
    assert sample.output_tokens.sum() == 122_568
    assert sample.span_ns == 105_882_715_000
    assert np.quantile(sample.prompt_tokens, 0.9) == 2655
    assert sample.take(500).output_tokens.sum() == 98_831


@pytest.mark.parametrize(
    ("name", "num_requests", "output_tokens", "hash_block_tokens"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 4_088_665, None),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 245_896, None),
        ("mooncake/conversation_trace.jsonl", 12_031, 4_122_048, 512),
        ("mooncake/synthetic_trace.jsonl", 3_993, 595_432, 512),
        ("sharegpt/sharegpt-llama-3.1-8b-300-sps10.notext.jsonl", 300, 195_753, 16),
        ("ragpulse/ragpulse_trace.csv", 7_106, 2_012_676, 16),
        ("apex/llama_lmsys_05.csv", 1_024, 165_996, None),
        ("servegen/deepseek-r1_busiest_hour_6rps_seed20250609.csv", 20_000, 16_426_654, None),
    ],
)
def test_real_trace_has_its_published_size(name, num_requests, output_tokens, hash_block_tokens):
    folder = os.environ.get("CLUSTERSIM_TRACES")
    if folder is None:
        pytest.skip("CLUSTERSIM_TRACES does not name a folder with the published traces")
    requests = read_trace(Path(folder) / name)
    assert len(requests) == num_requests
    assert requests.output_tokens.sum() == output_tokens
    assert requests.hash_block_tokens == hash_block_tokens


def test_reading_raises_only_input_errors_for_text_of_another_kind(write):
    for text in ("\x00\x01", "[1, 2]\n", "{}\n", "{\n", ",,,\n1,2,3,4\n", "\n\n1,2,3\n", '"\n'):
        with pytest.raises(InputError):
            read_trace(write(text))


BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log
"""
BENCH = '{"date": "x", "completed": 2, "start_times": [10.5, 10.25], "input_lens": [5, 6], "output_lens": [7, 0]}'


def test_burstgpt_counts_seconds_and_keeps_what_failed(write):
    assert columns(read_trace(write(BURSTGPT))) == [[0, 40_500_000_000], [472, 1087], [18, 0]]


def test_a_result_of_a_benchmark_is_a_trace_of_what_was_sent(write):
    wanted = [[0, 250_000_000], [6, 5], [0, 7]]
    assert columns(read_trace(write(BENCH))) == wanted
    pretty = json.dumps(json.loads(BENCH), indent=2)
    assert columns(read_trace(write(pretty))) == wanted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"completed": 2, "request_throughput": 1.0, "total_input_tokens": 8}',
         ["start_times: is missing; expected a list", "input_lens: is missing", "output_lens: is missing"]),
        (BENCH.replace("[7, 0]", "[7]"), ["found entries: start_times 2, input_lens 2, output_lens 1"]),
        (BENCH.replace("[7, 0]", "7"), ["output_lens: found 7; expected a list"]),
        (BENCH.replace("[5, 6]", "[5, 6.5]"), ["input_lens[1]: found \"6.5\"; expected a whole number of tokens"]),
        (BENCH.replace("10.25", "-1"), ["start_times[1]: found -1; expected seconds from 0"]),
        (BENCH.replace("10.25", "NaN"), ["start_times[1]: found NaN; expected seconds from 0"]),
        (BENCH.replace("10.25", "true"), ["start_times[1]: found true; expected seconds from 0"]),
        (BENCH.replace("[7, 0]", f"[7, 1{'0' * 400}]"), ["output_lens[1]: found 1000"]),
        (BENCH[:-1], ["cannot be read as JSON"]),
    ],
)  # fmt: skip
def test_a_result_that_is_none_says_what_it_lacks(write, text, expected):
    with pytest.raises(InputError) as error:
        read_trace(write(text))
    found = [str(problem) for problem in error.value.problems]
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True)), found


@pytest.mark.parametrize("parted", [";", "\t"])
def test_semicolons_and_tabs_part_cells_too(write, parted):
    assert columns(read_trace(write(PLAIN.replace(",", parted)))) == columns(read_trace(write(PLAIN)))
    with pytest.raises(InputError, match=r"3:12: .*found 'x'; expected a whole number"):
        read_trace(write("arrival_s;prompt_tokens;output_tokens\n0;5;3\n1;23456789;x\n"))


def test_dates_need_no_unit(write):
    text = "timestamp,input_tokens,output_tokens\n2024-05-10T00:00:00Z,1,2\n2024-05-10 00:00:00.5+0000,3,4\n"
    assert columns(read_trace(write(text))) == [[0, 500_000_000], [1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("header", "first", "gap_ms"),
    [
        ("created,prompt_tokens,completion_tokens,total_tokens", "1700000000,1,2,3", 1000),  # OpenAI
        ("createdAt,promptTokens,completionTokens", "2024-01-01T00:00:00Z,1,2", None),
        ("startTimeMs,input_len,output_len", "5,1,2", 1),  # vLLM's and SGLang's benchmarks
        ("arrived_at_s,num_prefill_tokens,num_decode_tokens", "5,1,2", 1000),  # Vidur
        ("arrival_s,ContextTokens,GeneratedTokens", "5,1,2", 1000),
        ("Timestamp s,Request tokens,Response tokens", "5,1,2", 1000),
        ("timestamp_ms,input_length,output_length", "5,1,2", 1),
        ("arrival_s,input_tokens,input_length,osl", "5,1,900,2", 1000),  # a usual name comes first
    ],
)
def test_what_others_call_their_columns_is_known(write, header, first, gap_ms):
    cells = first.split(",")
    second = ",".join([str(int(cells[0]) + 1), *cells[1:]] if gap_ms else ["2024-01-01T00:00:01Z", *cells[1:]])
    found = columns(read_trace(write(f"{header}\n{first}\n{second}\n")))
    assert found == [[0, (gap_ms or 1000) * 1_000_000], [1, 1], [2, 2]]


def test_what_may_count_letters_or_stands_twice_is_not_taken(write):
    for header, message in (
        ("arrival_s,prompt_length,osl", "no column 'prompt_tokens'"),
        ("arrival_s,isl,input_len,osl", "columns isl and input_len mean the same"),
    ):
        with pytest.raises(InputError, match=message):
            read_trace(write(f"{header}\n0,1,2,3\n"))


NAMED = "when,len in,len out,urgency,leaves\n10,5,6,1,\n12.5,7,8,0,30\n"


def test_named_columns_need_no_reformatting(write):
    named = NamedColumns(
        arrival="when", prompt_tokens="len in", output_tokens="len out", priority="urgency", cancel_after="leaves",
        unit="s",
    )  # fmt: skip
    found = read_trace(write(NAMED), columns=named)
    assert columns(found) == [[0, 2_500_000_000], [5, 7], [6, 8]]
    assert (found.priorities.tolist(), found.cancel_after_ns.tolist()) == ([1, 0], [-1, 30_000_000_000])
    lines = '{"t": 1.5, "in": 5, "out": 6}\n{"t": 2, "in": 7, "out": 8}\n'
    keys = NamedColumns(arrival="t", prompt_tokens="in", output_tokens="out", unit="ms")
    assert columns(read_trace(write(lines), columns=keys)) == [[0, 500_000], [5, 7], [6, 8]]


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        (NAMED, {"arrival": "when", "prompt_tokens": "len in", "output_tokens": "len out"},
         "'when' does not say what its numbers count; add workload.trace.columns.unit: s, ms, us or ns"),
        (NAMED, {"arrival": "wen", "prompt_tokens": "len in", "output_tokens": "len out", "unit": "s"},
         "no column 'wen'; did you mean 'when'?"),
        (NAMED, {"arrival": "when", "unit": "s"}, "no column 'prompt_tokens'; the header has: when, len in"),
        (NAMED, {"arrival": "when", "prompt_tokens": "len in", "output_tokens": "len out", "unit": "iso"},
         "expected a time such as 2023"),
        (NAMED.replace("len out", "n"), {"arrival": "when", "prompt_tokens": "len in", "output_tokens": "len ot"},
         "no column 'len ot'; the header has: when, len in"),  # another column's name is no guess
        ("when,prompt_tokens,output_tokens\n2024-01-01T00:00:00Z,1,2\n2024-01-01T00:00:09,1,2\n", {"arrival": "when"},
         "expected a time with an offset such as Z or +01:00, as the first one"),
        ("when,prompt_tokens,output_tokens\n2024-01-01T00:00:00,1,2\n2024-01-01T01:00:09+01:00,1,2\n",
         {"arrival": "when", "unit": "iso"}, "expected a time without an offset such as Z"),
        ('{"t": 1}\n', {"arrival": "t"}, "add workload.trace.columns.prompt_tokens: in JSON lines each key is named"),
        ('{"t": 1}\n', {"arrival": "t", "priority": "p"}, "columns.priority is read from CSV files only"),
        ("timestamp,input_tokens,output_tokens\n5,1,2\n", None, "'timestamp' does not say what its numbers count"),
    ],
)  # fmt: skip
def test_columns_that_are_not_there_or_say_no_unit_are_refused(write, text, named, expected):
    with pytest.raises(InputError) as error:
        read_trace(write(text), columns=named and NamedColumns(**named))
    assert any(expected in str(problem) for problem in error.value.problems), error.value
