"""The same scenario gives the same bytes in every file that is written, in whichever folder it lies and is run from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustersim import catalog
from clustersim.cli import main
from tests.cli.test_consent import CODE

CONFIG = {
    "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
SCENARIO = """\
topology: {name: ./topology.yaml, nodes: 1}
model: ./config.json
plan: {tp: 2, ep: {degree: 2, routing: {file: seen.csv}}}
serving: {scheduler: own.py:Mine, engine: ./engine.yaml}
workload: {trace: {path: ./requests.csv}}
cost: {table: points.csv}
"""
COMMANDS = [
    "check s.yaml --set plan.tp=3 --fix",
    "graph s.yaml -o g.json", "graph s.yaml -o g.graphml", "graph s.yaml -o g.dot", "graph s.yaml",
    "run s.yaml --allow-code --vllm-json bench.json",
    "run s.yaml --allow-code --out {out}",
    "audit {out} --again full --allow-code",
    "trace {out} -o t.pftrace", "trace {out} -o t.json.gz", "dashboard {out} -o page.html",
    "run {out}/scenario.yaml --allow-code --out again",
    "from-vllm 'vllm serve ./ -tp 2' --topology topology.yaml --out served/s.yaml",
]  # fmt: skip


def study(folder: Path) -> None:
    """Write a scenario all of whose files are its own."""
    (folder / "served").mkdir(parents=True)
    data = catalog.data_root()
    shutil.copy(data / "topologies" / "dgx-h100.yaml", folder / "topology.yaml")
    shutil.copy(data / "scenarios" / "engines" / "vllm-0.19.yaml", folder / "engine.yaml")
    (folder / "s.yaml").write_text(SCENARIO)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "own.py").write_text(CODE.replace('Path(__file__).with_name("ran").touch()', ""))
    (folder / "seen.csv").write_text("5,1,1,1,1,1,1,2\n")
    (folder / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,300,4\n0.1,70,3\n")
    (folder / "points.csv").write_text("op,m,n,k,dtype,seconds\ngemm,16,512,512,bf16,1e-5\ngemm,64,512,512,bf16,2e-5\n")


def written(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Run every command in a folder and return what is then in it, and in the run directory."""
    study(folder)
    monkeypatch.chdir(folder)
    for command in COMMANDS:
        line = command.format(out=out)
        words = ["from-vllm", "vllm serve ./ -tp 2", *line.split("'")[2].split()] if "'" in line else line.split()
        found = CliRunner().invoke(main, words)
        assert found.exit_code == 0, (line, found.output)
    places = [(folder, path) for path in folder.rglob("*")] + [(out, path) for path in out.rglob("*")]
    return {os.path.relpath(path, base): path.read_bytes() for base, path in sorted(places) if path.is_file()}


def test_every_file_has_the_same_bytes_wherever_a_scenario_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "grace")
    one = written(tmp_path / "one", tmp_path / "runs" / "first", monkeypatch)
    monkeypatch.setenv("USER", "alan")
    other = written(tmp_path / "deep" / "er", tmp_path / "second", monkeypatch)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    assert [name for name, text in one.items() if os.fsencode(tmp_path) in text] == []


def test_a_run_directory_that_moves_to_another_machine_is_still_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert CliRunner().invoke(main, ["run", "s.yaml", "--allow-code", "--out", "../a"]).exit_code == 0
    shutil.move(tmp_path / "a", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["audit", "there", "--again", "folded", "--allow-code"])
    assert found.exit_code == 0, found.output


def test_files_of_one_name_are_told_apart_in_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, tokens in (("a", 7), ("b", 9)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{tokens},{tokens}\n")
    (tmp_path / "s.yaml").write_text(
        "topology: dgx-h100\nmodel: llama-3.1-8b\nworkload: {arrivals: {process: all_at_once}, requests: 2, "
        "prompt_tokens: {empirical: {trace: a/t.csv}}, output_tokens: {empirical: {trace: b/t.csv}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["run", "s.yaml", "--out", "r"]).exit_code == 0
    assert (tmp_path / "r" / "inputs" / "t.csv").read_bytes() == (tmp_path / "a" / "t.csv").read_bytes()
    assert (tmp_path / "r" / "inputs" / "t-2.csv").read_bytes() == (tmp_path / "b" / "t.csv").read_bytes()
    assert CliRunner().invoke(main, ["audit", "r", "--again", "folded"]).exit_code == 0
