"""Random broken scenarios, files, options and run directories, and the commands that take them; all from one seed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from clustersim import catalog

SMALL: Final[dict[str, Any]] = {
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {"name": "llama-3.1-8b", "config": {"num_hidden_layers": 2}},
    "plan": {"dp": 1, "tp": 2, "pp": 1},
    "serving": {"scheduler": "chunked_prefill", "max_batch_tokens": 512, "kv_blocks": 64, "router": "round_robin"},
    "workload": {
        "arrivals": {"process": "poisson", "rate": "40/s"}, "prompt_tokens": {"uniform": {"low": 10, "high": 200}},
        "output_tokens": 4, "requests": 4,
    },
    "run": {"replay": "folded"},
    "expect": {"legal": True},
    "targets": {"ttft": "1 s"},
    "faults": [{"device": 0, "at": "1 s", "until": "2 s"}],
    "collectives": {"all_reduce": "ring"},
    "precision": {"weights": "bf16"},
}  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**9, 2**63, 10**30, 1e308, -1e-9, 0.5, "", "x", "0", "1 s", "-1 s",
    "1e99 s", "1 GB", "4/s", "nan", ".inf", "~", "a:b", "../..", "/dev/zero", "/etc/hostname", "s.yaml:S", "\x00", "é",
    "💥" * 50, "a" * 5000, [], [1], [[]], [None], {}, {"name": "x"}, {"a": {"b": []}}, "balanced", "disaggregated",
    "closed_loop", "zigzag", "global", "two_batch", "swap", "deepseek-v3", "mixtral-8x7b", "tpu-v5p", "h100-and-a100",
)  # fmt: skip
KEYS: Final = (
    "topology", "model", "plan", "serving", "workload", "sp", "ep", "dp", "tp", "pp", "prefill", "decode", "degree",
    "trace", "requests", "arrivals", "fabric", "device", "config", "routing", "overlap", "scope", "host_kv", "order",
    "preemption", "prefix_caching", "queue_limit", "cost", "table", "faults", "link", "factor", "slowdown", "horizon",
    "nodes", "stages", "cuts", "placement", "shared_prefixes", "priority", "cancel_after", "engine", "seed", "unknown",
)  # fmt: skip
OPTIONS: Final[dict[str, tuple[list[str], ...]]] = {
    "check": (["--json"], ["--fix"], ["--set", "=="], ["--set", "plan"], ["--nothing"]),
    "run": (["--json"], ["--explain"], ["--replay", "full"], ["--processes", "2"], ["--quiet"], ["--no-audit"]),
    "prove": (["--orders", "-1"], ["--orders", "0"], ["--json"]),
    "graph": (["--step", "mixed"], ["--step", "decode", "--batch", "9"], ["--pool", "decode"], ["--stage", "1"],
              ["--context", "0"], ["-o", "g.json"], ["-o", "g.dot"], ["-o", "."]),
    "audit": (["--json"], ["--again", "full"], ["--given", "tp=2"], ["--given", "x"], ["--against", "r"]),
    "trace": (["--from", "1 s"], ["--to", "soon"], ["--ranks", "9-1"], ["--ranks", "0", "--steps", "3"]),
    "dashboard": (["--layout", "nowhere"], ["--layout", "./f.yaml"], ["-o", "nowhere/x.html"]),
}  # fmt: skip
_COUNTS: Final = ("1", "2", "3", "4", "8", "16", "64", "513")
_TIMES: Final = ("0.1 ms", "10 ms", "3 s")
PATHS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("plan.tp", "plan.pp", "plan.dp", "plan.sp", "plan.ep", "seed", "workload.requests"), _COUNTS),
    **dict.fromkeys(("serving.max_batch_tokens", "serving.max_batch_requests", "serving.kv_blocks"), _COUNTS),
    **dict.fromkeys(("serving.kv_block_tokens", "serving.queue_limit", "serving.long_prompt_tokens"), _COUNTS),
    **dict.fromkeys(("workload.output_tokens", "workload.prompt_tokens", "topology.nodes"), _COUNTS),
    **dict.fromkeys(("model.config.num_hidden_layers", "model.config.num_key_value_heads"), _COUNTS),
    **dict.fromkeys(("run.horizon", "targets.ttft", "serving.queue_timeout", "topology.scaleup_latency"), _TIMES),
    "plan": ("{tp: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: idle}}", "{dp: 2, tp: 2, pp: 2}",
             "{sp: {degree: 4, scheme: all_to_all, partition: contiguous, decode: dp}}", "{prefill: {}, decode: {}}"),
    "model": ("deepseek-v2-lite", "{name: mixtral-8x7b, config: {num_hidden_layers: 2}}", "gpt-oss-20b"),
    "topology": ("dgx-a100", "{name: dgx-b200, nodes: 2}", "rtx-4090-node", "tpu-v5p", "h100-and-a100"),
    "serving.scheduler": ("static", "continuous", "disaggregated", "mine.py:Mine"),
    "serving.router": ("least_outstanding", "power_of_two", "prefix_aware", "fewest_waiting"),
    "serving.order": ("priority", "shortest_prompt"), "serving.preemption": ("swap",), "run.replay": ("full",),
    "serving.prefix_caching": ("true",), "serving.memory_utilization": ("0.1", "1"), "serving.host_kv": ("1 GB",),
    "workload.arrivals": ("{process: closed_loop, concurrency: 2}", "all_at_once", "{process: constant, rate: 9/s}"),
    "workload.cancel_after": ("{share: 0.5, fixed: 5 ms}", "{exponential: 20 ms}"), "precision.kv_cache": ("fp8",),
    "workload.priority": ("{values: [0, 1]}",), "workload.shared_prefixes": ("{groups: 2, tokens: 40}",),
    "precision.weights": ("fp8", "int4"), "collectives.all_reduce": ("tree", "auto"), "plan.decode_overlap": ("none",),
    "faults": ("[{node: 0, at: 10 ms, until: 1 s}]", "[{device: 1, at: 0 s, slowdown: 3}]"),
}  # fmt: skip
TEXTS: Final = (
    b"", b"\x00" * 64, b"\xff\xfe", b"{", b"[" * 9999, b"a: &a [*a]", b"- 1\n" * 5000, b"PAR1", b'{"nodes": 1}',
    b'{"format": 1, "nodes": [{"id": 0}], "edges": [[0, 9]]}', b"start_ns,end_ns,rank\n1,2\n", b"op,seconds\ngemm,x\n",
    b"arrival_s,prompt_tokens,output_tokens\n0,-1,1e9\n", b"digraph { a -> b }", b"<graphml/>", b"name: x\n...\n---\n",
)  # fmt: skip

GRAPH: Final = '{"format": 1, "nodes": [{"id": 0, "name": "mine", "op": "gemm", "ranks": [0]}], "edges": []}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command: its words, with the files that it names in place."""

    number: int
    words: list[str]


def cases(seed: int, count: int, folder: Path, run: Path) -> Iterator[Case]:
    """Yield commands one after the other, and put their files into a folder.

    Parameters
    ----------
    seed, count : int
    folder : Path
        An empty folder, in which the commands are called.
    run : Path
        A run directory to break copies of.
    """
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        make = draw.choices((_scenario, _override, _file, _run_directory), (3, 6, 3, 3))[0]
        words = make(draw, folder, run)
        for _ in range(draw.choice((0, 0, 1))):
            words += draw.choice(OPTIONS.get(words[0], ([],)))
        yield Case(number=number, words=words)


def _command(draw: random.Random, scenario: str) -> list[str]:
    command = draw.choice(("check", "check", "run", "run", "run", "prove", "graph"))
    return [command, scenario, *(["--out", "r"] if command == "run" else [])]


def _scenario(draw: random.Random, folder: Path, run: Path) -> list[str]:
    """A scenario with a few values changed, keys added, and parts left out; or its text broken."""
    del run
    document = yaml.safe_load(yaml.safe_dump(SMALL))
    for _ in range(draw.choice((1, 1, 2))):
        _change(draw, document)
    text = yaml.safe_dump(document, allow_unicode=True)
    if draw.random() < 0.3:
        text = _broken(draw, text.encode()).decode("utf-8", "surrogateescape")
    (folder / "s.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    return _command(draw, "s.yaml")


def _change(draw: random.Random, document: Any) -> None:
    holder = document
    while isinstance(holder, dict) and holder and draw.random() < 0.75:
        inner = [value for value in holder.values() if isinstance(value, dict | list) and value]
        if not inner:
            break
        holder = draw.choice(inner)
        holder = draw.choice(holder) if isinstance(holder, list) else holder
    if not isinstance(holder, dict):
        return
    key = draw.choice([*holder, draw.choice(KEYS)])
    if draw.random() < 0.15:
        holder.pop(key, None)
    else:
        holder[key] = draw.choice(VALUES)


def _override(draw: random.Random, folder: Path, run: Path) -> list[str]:
    """A scenario that is well, with values set on the command line."""
    del run
    kept = {key: part for key, part in SMALL.items() if key not in ("expect", "faults")}
    (folder / "s.yaml").write_text(yaml.safe_dump(kept))
    words = _command(draw, "s.yaml")
    for _ in range(draw.randint(1, 3)):
        path = draw.choice([*PATHS])
        value = draw.choice(PATHS[path] if draw.random() < 0.9 else VALUES)
        words += ["--set", f"{path}={value}".replace("\x00", "")]
    return words


def _broken(draw: random.Random, raw: bytes) -> bytes:
    """Cut, flip, repeat or replace some bytes."""
    kind, at = draw.randrange(5), draw.randrange(max(1, len(raw)))
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + bytes(draw.randrange(256) for _ in range(draw.randint(1, 8))) + raw[at + 4 :]
    if kind == 2:
        return raw[:at] + raw[at : at + 40] * draw.randint(2, 50) + raw[at:]
    if kind == 3:
        return draw.choice(TEXTS)
    return raw[:at] + draw.choice((b"-", b"9" * 30, b"null", b"{", b"\n", b"1e400", b"\xf0")) + raw[at:]


def _file(draw: random.Random, folder: Path, run: Path) -> list[str]:
    """A file that is not what the command takes."""
    suffix = draw.choice((".yaml", ".json", ".csv", ".parquet", "", ".py", ".dot"))
    name = f"f{suffix}"
    whole = [run / "scenario.yaml", run / "summary.json", run / "timeline" / "steps.parquet", run / "requests.parquet"]
    whole.append(catalog.path_of("topologies", "dgx-h100"))
    (folder / name).write_bytes(_broken(draw, draw.choice([*(file.read_bytes() for file in whole), *TEXTS])))
    (folder / "s.yaml").write_text(yaml.safe_dump(SMALL))
    (folder / "g.json").write_text(GRAPH)
    table: tuple[list[str], ...] = (
        ["check", name], ["run", name, "--out", "r"], ["prove", name], ["audit", name], ["audit", name, name],
        ["calibrate", "dgx-h100", name], ["topology", f"./{name}"], ["models", f"./{name}"], ["dashboard", name],
        ["trace", name], ["from-vllm", f"vllm serve --model ./{name} --tensor-parallel-size 2"], ["rules", name],
        ["from-command", f"python -m sglang.launch_server --model-path ./{name} --tp 2 --chunked-prefill-size 512"],
        ["check", "s.yaml", "--set", f"workload={{trace: ./{name}}}"], ["schema", name],
        ["check", "s.yaml", "--set", f"model=./{name}"], ["check", "s.yaml", "--set", f"topology=./{name}"],
        ["check", "s.yaml", "--set", f"serving.engine=./{name}"], ["check", "s.yaml", "--set", f"cost.table=./{name}"],
        ["check", "s.yaml", "--set", f"serving.scheduler=./{name}:S"],
        ["accuracy", name], ["compare", name, name], ["compare", str(run), name], ["launch", name, "--for", "vllm"],
        ["calibrate", "engine", name, "--scenario", "s.yaml"], ["audit", str(run), "--against", name],
        *(([command, name, "--out", "r"]) for command in ("sweep", "why", "rate", "size", "search")),
        ["check", "g.json", "--names", name], ["check", "s.yaml", "--fix", "--out", name],
    )  # fmt: skip
    return draw.choice(table)


def _run_directory(draw: random.Random, folder: Path, run: Path) -> list[str]:
    """A run directory with a file that is broken, missing or changed."""
    shutil.copytree(run, folder / "r")
    files = sorted(path for path in (folder / "r").rglob("*") if path.is_file() and path.suffix != ".html")
    for _ in range(draw.randint(1, 2)):
        file = draw.choice(files)
        if draw.random() < 0.2:
            file.unlink(missing_ok=True)
        else:
            _rewrite(draw, file)
    command = draw.choice(("audit", "audit", "audit", "dashboard", "trace"))
    return [command, "r"]


def _rewrite(draw: random.Random, file: Path) -> None:
    """Break the bytes of a file, or change one value of a table."""
    if not file.exists():
        return
    if file.suffix != ".parquet" or draw.random() < 0.4:
        file.write_bytes(_broken(draw, file.read_bytes()))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError):
        return  # it is broken already
    if not table.num_rows:
        return
    place, row = draw.randrange(table.num_columns), draw.randrange(table.num_rows)
    values = table.column(place).to_pylist()
    near = values[row] + 1 if isinstance(values[row], int) else "finished"
    values[row] = draw.choice((None, 0, -1, 1, 2**31, 2**62, near, near))
    try:
        column = pa.array(values, table.schema.field(place).type)
    except (pa.ArrowException, OverflowError, TypeError):
        return
    pq.write_table(table.set_column(place, table.column_names[place], column), file)
