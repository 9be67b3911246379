"""Files of users: what is no regular file, or too large, is refused before it is read; what is something else is
never quoted."""

from __future__ import annotations

import os
import resource
import socket
import stat
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from clustersim import inputs
from clustersim.cli import main
from clustersim.errors import InputError

SECRET = "ruth:$6$hunter2:19000:0:99999:7:::\nalice:swordfish\n"
SCENARIO = """\
topology: dgx-h100
model: llama-3.1-8b
workload: {arrivals: all_at_once, prompt_tokens: 100, output_tokens: 3, requests: 4}
"""
COMMANDS = [
    ["run", "{}"],
    ["check", "{}"],
    ["check", "{}", "--fix"],
    ["prove", "{}"],
    ["graph", "{}"],
    ["audit", "{}"],
    ["trace", "{}"],
    ["dashboard", "{}"],
    ["topology", "./{}"],
    ["models", "./{}"],
    ["calibrate", "dgx-h100", "{}"],
    ["from-vllm", "vllm serve --model ./{}"],
]
"""Every command that takes a file, which is put in place of the braces."""
PLACES = {
    "model": "model={}",
    "topology": "topology={}",
    "device": "topology={{name: dgx-h100, device: ./{}}}",
    "engine": "serving.engine={}",
    "trace": "workload={{trace: {}}}",
    "a named format": "workload={{trace: {{path: {}, format: mooncake}}}}",
    "lengths": "workload.prompt_tokens={{empirical: {{trace: {}}}}}",
    "cost table": "cost.table={}",
    "visits": "plan={{tp: 4, ep: {{degree: 4, routing: {{file: {}}}}}}}",
    "scheduler": "serving.scheduler={}:S",
    "router": "serving.router={}:S",
}
"""Every place of a scenario that names a file."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


def invoke(*words: str) -> Result:
    started = time.monotonic()
    result = CliRunner().invoke(main, words)
    assert time.monotonic() - started < 10, "it waited for something"
    return result


def odd_files(folder: Path, suffix: str) -> list[str]:
    """Make one of each thing that is no file to read, and return the names."""
    os.mkfifo(folder / f"pipe{suffix}")
    (folder / f"round{suffix}").symlink_to(f"round{suffix}")
    (folder / f"away{suffix}").symlink_to("nowhere")
    (folder / f"zero{suffix}").symlink_to("/dev/zero")
    (folder / f"folder{suffix}").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"socket{suffix}")
    with (folder / f"huge{suffix}").open("wb") as file:
        file.truncate(1 << 42)
    return [f"{name}{suffix}" for name in ("pipe", "round", "away", "zero", "folder", "socket", "huge")]


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".csv", ".parquet"])
def test_what_is_no_file_ends_every_command_with_status_2(folder: Path, suffix: str) -> None:
    for name in odd_files(folder, suffix):
        for words in COMMANDS:
            result = invoke(*(word.format(name) for word in words))
            assert result.exit_code == 2, (words, name, result.output)
            assert "Traceback" not in result.output


@pytest.mark.parametrize(("place", "override"), PLACES.items(), ids=PLACES)
def test_what_is_no_file_is_refused_wherever_a_scenario_names_it(folder: Path, place: str, override: str) -> None:
    for name in odd_files(folder, ".py" if place in ("scheduler", "router") else ".csv"):
        result = invoke("check", "s.yaml", "--set", override.format(f"./{name}"))
        assert result.exit_code == 2, (place, name, result.output)
        assert "Traceback" not in result.output


@pytest.mark.parametrize("suffix", ["", ".yaml", ".json", ".csv"])
def test_a_file_of_something_else_is_not_quoted(folder: Path, suffix: str) -> None:
    (folder / f"shadow{suffix}").write_text(SECRET)
    told = [invoke(*(word.format(f"shadow{suffix}") for word in words)) for words in COMMANDS]
    told += [invoke("run", "s.yaml", "--set", each.format(f"./shadow{suffix}")) for each in PLACES.values()]
    for result in told:
        assert result.exit_code == 2, result.output
        for word in ("ruth", "hunter2", "alice", "swordfish"):
            assert word not in result.output


@pytest.mark.parametrize(
    "text", ["password: swordfish\nuser: [alice\n", "user: alice\npassword: swordfish\n", "alice\n"]
)
def test_a_yaml_of_something_else_is_not_quoted(folder: Path, text: str) -> None:
    (folder / "secrets.yaml").write_text(text)
    told = [invoke(*(word.format("secrets.yaml") for word in words)) for words in COMMANDS]
    told += [invoke("check", "s.yaml", "--set", each.format("./secrets.yaml")) for each in PLACES.values()]
    for result in told:
        assert result.exit_code == 2, result.output
        assert "alice" not in result.output
        assert "swordfish" not in result.output


def test_a_mistake_in_a_scenario_is_quoted_still(folder: Path) -> None:
    (folder / "s.yaml").write_text(SCENARIO + "plan: {tpp: 4}\n")
    assert "   | plan: {tpp: 4}\n" in invoke("check", "s.yaml").output
    (folder / "s.yaml").write_text(SCENARIO + "plan: {tp: 4 5: 6}\n")
    assert "   | " in invoke("check", "s.yaml").output


def test_a_link_to_a_file_is_that_file(folder: Path) -> None:
    (folder / "link.yaml").symlink_to("s.yaml")
    assert invoke("check", "link.yaml").exit_code == 0


def test_a_file_that_grows_while_it_is_read_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "s.yaml"
    monkeypatch.setattr(inputs.os, "fstat", lambda number: os.stat_result((stat.S_IFREG, *[0] * 9)))
    with pytest.raises(InputError, match="is longer than 10 bytes"):
        inputs.read_bytes(path, most=10)


def test_a_file_that_would_let_wait_for_more_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, other = os.pipe()  # as the log of a kernel, which calls itself a regular file
    os.set_blocking(end, False)
    monkeypatch.setattr(inputs, "_opened", lambda *_: os.fdopen(end, "rb"))
    with pytest.raises(InputError, match="it has no end"):
        inputs.read_bytes(folder / "log", most=9)
    os.close(other)


def test_the_environment_raises_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "s.yaml").open("a") as file:
        file.write("#" * (5 * inputs.MIB))
    refused = invoke("check", "s.yaml")
    assert (refused.exit_code, "CLUSTERSIM_INPUT_MIB raises" in refused.output) == (2, True)
    monkeypatch.setenv("CLUSTERSIM_INPUT_MIB", "8")
    assert invoke("check", "s.yaml").exit_code == 0


def bomb(path: Path, rows: int, values: dict[str, object]) -> None:
    """Write a small table of many rows, in row groups of a million."""
    each = min(rows, 1_000_000)
    table = pa.table({name: pa.array(np.full(each, value)) for name, value in values.items()})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(rows // each):
            writer.write_table(table)


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (3_000_000, {"start_ns": 0, "end_ns": 1, "rank": 0, "stream": 0}),
        (500_000, {"op": "g" * 10_000, "seconds": 1.0}),
    ],
)
def test_a_small_table_that_unfolds_to_gigabytes_is_refused(folder: Path, rows: int, values: dict[str, object]) -> None:
    if "op" in values:
        pq.write_table(
            pa.table({
                "op": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([values["op"]])),
                "seconds": np.ones(rows),
            }), folder / "t.parquet", compression="zstd",
        )  # fmt: skip
    else:
        bomb(folder / "t.parquet", rows, values)
    assert (folder / "t.parquet").stat().st_size < 2 * inputs.MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for words in (["audit", "t.parquet"], ["check", "t.parquet"], ["calibrate", "dgx-h100", "t.parquet"]):
        result = invoke(*words)
        assert result.exit_code == 2
        assert "unfold to" in result.output, result.output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


def test_text_of_parquet_comes_as_it_was_written(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(["x", None, "y" * 300]), "b": pa.array([1, 2, None]), "c": [1.5, 2.5, 0.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert inputs.read_parquet(tmp_path / "t.parquet").equals(table)
