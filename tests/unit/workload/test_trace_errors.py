"""Every way in which a trace file or an option cannot be used, and the sentence that says so."""

from __future__ import annotations

import re

import pytest

from clustersim.errors import InputError
from clustersim.workload import read_trace

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN_HEADER = "arrival_s,prompt_tokens,output_tokens\n"
STAMP = "a time such as 2023-11-16 18:17:03.9799600"
TOKENS = "a whole number of tokens from 0 to 2147483647"


@pytest.fixture
def problems(tmp_path):
    """Write the text to ``t`` and return the problems of reading it, each as its line without the folder."""

    def problems(text, **options):
        path = tmp_path / "t"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError) as caught:
            read_trace(path, **options)
        return [str(problem).replace(str(path), "t") for problem in caught.value.problems]

    return problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "yesterday,1,2",
            f"t:3:1: TIMESTAMP: found 'yesterday'; expected {STAMP}",
        ),
        (
            "2023-02-30 00:00:00,1,2",
            f"t:3:1: TIMESTAMP: found '2023-02-30 00:00:00'; expected {STAMP}",
        ),
        (
            "9023-02-20 00:00:00,1,2",
            f"t:3:1: TIMESTAMP: found '9023-02-20 00:00:00'; expected {STAMP}, from 1970 to 2255",
        ),
        ("2023-11-16 18:17:03.9799600,-5,2", f"t:3:29: ContextTokens: found '-5'; expected {TOKENS}"),
        ("2023-11-16 18:17:03.9799600,5,x", f"t:3:31: GeneratedTokens: found 'x'; expected {TOKENS}"),
        ("2023-11-16 18:17:03.9799600,5,", f"t:3:31: GeneratedTokens: found ''; expected {TOKENS}"),
        ("2023-11-16 18:17:03.9799600,5", "t:3:30: GeneratedTokens: found cells: 2; expected cells: 3"),
        ("2023-11-16 18:17:03.9799600,5,6,7", "t:3:33: found cells: 4; expected cells: 3"),
        ("", "t:3: found an empty line; expected cells: 3"),
    ],
)
def test_azure_line_that_is_broken_is_named(problems, line, expected):
    good = "2023-11-16 18:17:03.9799600,1,2\n"
    assert problems(AZURE_HEADER + good + line + "\n" + good) == [expected]


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "1_0", "1;", "1e9999", "1e300", "٣", "0x1", "None"])
def test_plain_instant_that_is_no_number_is_named(problems, cell):
    expected = f"t:2:1: arrival_s: found '{cell}'; expected seconds as a number from 0 to 9.22e+09, such as 12.5"
    assert problems(PLAIN_HEADER + f"{cell},1,1\n") == [expected]


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "1_0", "12.5", "1e3", "2147483648", "9" * 30, "٣"])
def test_plain_length_that_is_no_whole_number_is_named(problems, cell):
    assert problems(PLAIN_HEADER + f"0.5,{cell},1\n") == [f"t:2:5: prompt_tokens: found '{cell}'; expected {TOKENS}"]


def test_problems_come_in_the_order_of_the_file(problems):
    found = problems(PLAIN_HEADER + "0,1,x\n0,1\n,-1,1\n")
    assert [problem.split(";")[0] for problem in found] == [
        "t:2:5: output_tokens: found 'x'",
        "t:3:4: output_tokens: found cells: 2",
        "t:4:1: arrival_s: found ''",
        "t:4:2: prompt_tokens: found '-1'",
    ]


@pytest.mark.parametrize(
    ("header", "line"),
    [(PLAIN_HEADER, "0,1,x\n"), ("", '{"timestamp": 0, "input_length": 1, "output_length": -1}\n')],
)
def test_first_twenty_problems_are_named_and_the_others_counted(problems, header, line):
    found = problems(header + 25 * line)
    assert len(found) == 21
    assert found[-1] == "t: and 5 more problems"
    assert len(problems(header + 20 * line)) == 20


def test_several_problems_of_one_line_count_each(problems):
    found = problems(10 * '{"timestamp": -1, "input_length": -1, "output_length": -1}\n')
    assert len(found) == 21
    assert found[-1] == "t: and 10 more problems"


def test_line_of_a_broken_cell_is_right_after_a_cell_of_several_lines(problems):
    text = 'arrival_s,prompt_tokens,output_tokens,prompt\n0,1,1,"a\nb"\n0,1,x,c\n'
    assert problems(text) == [f"t:4: output_tokens: found 'x'; expected {TOKENS}"]


def test_quote_that_does_not_end_is_named(problems):
    assert problems(PLAIN_HEADER + '0,1,"1\n') == ["t:2: not a CSV line: unexpected end of data"]


def test_long_cell_is_shortened(problems):
    assert problems(PLAIN_HEADER + f"0,{'x' * 100},1\n") == [
        f"t:2:3: prompt_tokens: found '{'x' * 59}…'; expected {TOKENS}"
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "t:2:2: cannot be read as JSON: expecting property name enclosed in double quotes"),
        ("[" * 100_000, "t:2: cannot be read as JSON: "),
        (
            '{"x": 1e9999999999999999999}',
            "t:2: cannot be read as JSON: the exponent of 1e9999999999999999999 is out",
        ),
        ("", "t:2: empty line; expected a JSON object"),
        ("[1, 2]", "t:2: found [1, 2]; expected a JSON object"),
        ('{"timestamp": 0, "input_length": 1}', "t:2: no key 'output_length'"),
        (
            '{"timestamp": 0, "input_len": 1, "output_length": 1}',
            "t:2: no key 'input_length'; rename 'input_len' if that is it",
        ),
        (
            '{"timestamp": -1, "input_length": 1, "output_length": 1}',
            "t:2:2: timestamp: found -1; expected milliseconds as a number from 0 to 9.22e+12",
        ),
        (
            '{"timestamp": NaN, "input_length": 1, "output_length": 1}',
            "t:2:2: timestamp: found NaN; expected",
        ),
        ('{"timestamp": 1e400, "input_length": 1, "output_length": 1}', "t:2:2: timestamp: found "),
        (
            '{"timestamp": 0, "input_length": 1.5, "output_length": 1}',
            f't:2:18: input_length: found "1.5"; expected {TOKENS}',
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": true}',
            f"t:2:37: output_length: found true; expected {TOKENS}",
        ),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "t:2: a key 'hash_ids'"),
    ],
)
def test_jsonl_line_that_is_broken_is_named(problems, line, expected):
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    found = problems(good + line + "\n" + good)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1}',
            "t:2: no key 'hash_ids'; the lines before have one",
        ),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}',
            "t:2:59: hash_ids: found 3 hashes; expected at most 2 for 513 tokens in blocks of 512 "
            "(workload.trace.block_tokens; of Qwen-Bailian the format is bailian)",
        ),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, null]}',
            "t:2:59: hash_ids: found [1, null]; expected a list of whole numbers from 0 to 9.22e+18",
        ),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": 7}',
            "t:2:59: hash_ids: found 7; expected a list of whole numbers from 0 to 9.22e+18",
        ),
    ],
)
def test_mooncake_hashes_that_do_not_fit_are_named(problems, line, expected):
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n'
    assert problems(good + line) == [expected]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            "TIMESTAMP,ContextToken,GeneratedTokens",
            ["t:1: no column 'ContextTokens'; did you mean 'ContextToken'?"],
        ),
        (
            "arrival_s,prompts,n",
            [
                "t:1: no column 'prompt_tokens'; rename 'prompts' if that is it; "
                "or name it with workload.trace.columns.prompt_tokens",
                "t:1: no column 'output_tokens'; the header has: arrival_s, prompts, n; "
                "or name it with workload.trace.columns.output_tokens",
            ],
        ),
        (
            "arrival_s,timestamp_s,prompt_tokens,output_tokens",
            ["t:1: columns arrival_s and timestamp_s mean the same; expected one of them"],
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,prompt_tokens",
            ["t:1: column 'prompt_tokens' stands twice in the header"],
        ),
        ('arrival_s,prompt_tokens,"output_tokens', ["t:2: not a CSV line: unexpected end of data"]),
        (
            'arrival_s,prompt_tokens,"output_tokens\n1,2,3"',
            ["t:1: the header goes on after its line; expected one line"],
        ),
        (
            "a,b,c",
            [
                "t:1: unknown trace format: its first line has no column and no key of any; "
                "known: azure, burstgpt, ragpulse, mooncake, bailian, sharegpt, openai, aiperf, guidellm, "
                "vllm_bench, csv; "
                "or say what its columns are called: "
                "workload.trace.columns={arrival: NAME, prompt_tokens: NAME, output_tokens: NAME, unit: s}"
            ],
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens,arrival_s,prompt_tokens,output_tokens",
            ["t:1: the first line fits the trace formats azure and csv; say which with 'format'"],
        ),
    ],
)
def test_header_that_does_not_fit_is_explained(problems, header, expected):
    assert problems(header + "\n1,2,3\n") == expected


@pytest.mark.parametrize(
    ("name", "header", "told"),
    [
        ("t.csv", "time,in,out", "; it has 'time', 'in', 'out'"),
        ("t.tsv", "time\tin", "; it has 'time', 'in'"),
        ("t.jsonl", '{"ts": 3, "pt": 4}', "; it has 'ts', 'pt'"),
        ("t.csv", ",".join(f"c{i}" for i in range(20)), "'c11', …"),
        ("t.txt", "time,in,out", ""),
        ("t.csv", "AWSAccessKeyId=AKIA", ""),
        ("t.csv", "root:x:0:0,a", ""),
    ],
)
def test_the_names_of_a_table_are_shown_and_nothing_of_another_file(tmp_path, name, header, told):
    (tmp_path / name).write_text(header + "\n1,2,3\n")
    with pytest.raises(InputError) as caught:
        read_trace(tmp_path / name)
    (problem,) = caught.value.problems
    assert problem.message.partition("unit: s}")[2].endswith(told)
    assert ("it has" in problem.message) is bool(told)
    assert not problem.quotes


def test_ambiguous_header_is_read_with_the_format(tmp_path):
    path = tmp_path / "t"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,arrival_s,prompt_tokens,output_tokens\nx,x,x,0,1,2\n")
    assert read_trace(path, format="csv").prompt_tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "t: the file is empty; expected a trace"),
        (b" \n\n", "t: the file is empty; expected a trace"),
        (PLAIN_HEADER.encode(), "t:2: a header but no requests; expected one line per request"),
        (b"arrival_s\n\xff\n", "t:2:1: byte 0xff is not UTF-8 text; save the file as UTF-8"),
        (PLAIN_HEADER.encode("utf-16"), "t:1:1: byte 0xff is not UTF-8 text; save the file as UTF-8"),
        (
            b"\x1f\x8b\x08",
            "t:1:2: byte 0x8b is not UTF-8 text; it is compressed with gzip: unpack it first",
        ),
    ],
)
def test_content_that_is_no_trace_is_explained(problems, content, expected):
    assert problems(content) == [expected]


def test_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match=r": is a directory; expected a file$"):
        read_trace(tmp_path)


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "azure-conv.csv").touch()
    with pytest.raises(InputError, match=re.escape("azure-con.csv: no such file; did you mean 'azure-conv.csv'?")):
        read_trace(tmp_path / "azure-con.csv")
    with pytest.raises(InputError, match=r": no such file: the folder '.*none' does not exist$"):
        read_trace(tmp_path / "none" / "x")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"requests": 3},
            "requests: asked for 3 requests, but t has only 2; expected at most 2, or a trace that is repeated",
        ),
        ({"requests": 0}, "requests: found 0; expected a whole number from 1 to 9223372036854775807"),
        ({"rate_scale": 0.0}, "rate_scale: found 0.0; expected a number from 1e-06 to 1e+06"),
        ({"rate_scale": float("nan")}, "rate_scale: found nan; expected a number from 1e-06 to 1e+06"),
        ({"rate_scale": float("inf")}, "rate_scale: found inf; expected a number from 1e-06 to 1e+06"),
        ({"window_ns": (5, 5)}, "window: found from 5 ns to 5 ns; expected 0 <= from < to"),
        ({"format": "azur"}, "format: unknown trace format 'azur'; did you mean 'azure'?"),
        (
            {"format": ""},
            "format: unknown trace format ''; known: aiperf, azure, bailian, burstgpt, csv, guidellm, mooncake, "
            "openai, ragpulse, sharegpt, vllm_bench",
        ),
        (
            {"window_ns": (10**9, 2 * 10**9)},
            "window: no request arrives in [1 s, 2 s) of t, whose last one arrives at 0.5 s",
        ),
        (
            {"rate_scale": 1e-300},
            "rate_scale: found 1e-300; expected a number from 1e-06 to 1e+06",
        ),
    ],
)
def test_option_that_makes_no_sense_is_explained(problems, options, expected):
    assert problems(PLAIN_HEADER + "0,1,1\n0.5,1,1\n", **options) == [expected]


def test_options_and_file_are_complained_about_together(problems):
    found = problems(PLAIN_HEADER + "0,1,x\n", requests=-1, rate_scale=-1.0)
    assert [problem.split(":")[0] for problem in found] == ["requests", "rate_scale", "t"]
