"""Numbers that nothing in the world has: refused where they are written, with the range, and their neighbours taken."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim import catalog
from clustersim.cli import main
from clustersim.cost.kernels import ASSUMED
from tests.effort import is_whole

SCENARIO = """\
topology: dgx-h100
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 4/s}, prompt_tokens: 100, output_tokens: 3, requests: 4}
"""
PLAIN = "memory: {capacity: 80 GB, bandwidth: 3 TB/s, source: s}, compute: {bf16: 900 TFLOP/s, source: s}"


def device(part: str) -> str:
    return f"topology={{name: dgx-h100, device: {{name: d, vendor: v, {PLAIN}, {part}}}}}"


def kernel(gemm: str, memory: str) -> str:
    """Return a device with constants of two groups: those that are given, and what is assumed of the others."""
    return device(f"kernels: {{gemm_bf16: {of_group('gemm', gemm)}, memory: {of_group('memory', memory)}}}")


def of_group(family: str, given: str) -> str:
    rest = [f"{name}: {value}" for name, value in ASSUMED[family].items() if not given.startswith(f"{name}:")]
    return f"{{{', '.join(['source: s', given, *rest])}}}"


def collective(ring: str) -> str:
    return device(f"collectives: {{ring: {{source: s, {ring}}}}}")


def lognormal(parameters: str) -> str:
    return f"workload.prompt_tokens={{lognormal: {{{parameters}}}}}"


TRACE = "workload={{trace: {{path: scenarios/traces/azure-conv-sample.csv, requests: 4, rate_scale: {}}}}}"
NONSENSE = {
    "kernel compute": (kernel("compute: 1.01", "memory: 0.9"), kernel("compute: 1.0", "memory: 1.0")),
    "kernel memory": (kernel("compute: 0.9", "memory: 1.5"), kernel("memory: 0.3", "memory: 1.0")),
    "cached": (kernel("compute: 0.9", "cached: 1e18"), kernel("compute: 0.9", "cached: 4.0")),
    "floor": (kernel("floor_s: 2.0", "memory: 0.9"), kernel("floor_s: 1e-3", "memory: 0.9")),
    "ramp": (kernel("ramp_k: 1e13", "memory: 0.9"), kernel("ramp_k: 1e5", "memory: 0.9")),
    "collective": (collective("efficiency: 1.01"), collective("efficiency: 1.0")),
    "step": (collective("step_s: 100"), collective("step_s: 1e-3")),
    "mean": (lognormal("mean: 0.1, cv: 1"), lognormal("mean: 1, cv: 1")),
    "median": (lognormal("median: 1e30, sigma: 1"), lognormal("median: 1e3, sigma: 1")),
    "sigma": (lognormal("median: 9, sigma: 1e9"), lognormal("median: 9, sigma: 3")),
    "rate_scale": (TRACE.format("1e30"), TRACE.format("1e3")),
    "slow rate_scale": (TRACE.format("1e-30"), TRACE.format("1e-3")),
    "rate": ("workload.arrivals.rate=1e30/s", "workload.arrivals.rate=1e6/s"),
    "bandwidth": ("topology.scaleup_bandwidth=1.1e17 B/s", "topology.scaleup_bandwidth=1e17 B/s"),
    "slow bandwidth": ("topology.nic_bandwidth=1e-9 GB/s", "topology.nic_bandwidth=1 MB/s"),
    "latency": ("topology.nic_latency=1e9 us", "topology.nic_latency=0.3 s"),
    "oversubscription": ("topology.oversubscription=1e30", "topology.oversubscription=100"),
    "memory": (device("power: {board: 700 W, source: s}").replace("80 GB", "1e-9 GB"), device("price: {}")),
    "usable": (
        device("kernels: {}").replace("80 GB,", "1 GB, usable: 79 GiB,"),
        device("kernels: {}").replace("80 GB,", "80 GB, usable: 80 GiB,"),
    ),
    "power": (device("power: {board: 1e9 W, source: s}"), device("power: {board: 15 kW, source: s}")),
    "share": (kernel("compute: 1e-30", "memory: 0.9"), kernel("compute: 1e-3", "memory: 0.9")),
    "efficiency": (collective("efficiency: 1e-30"), collective("efficiency: 0.01")),
    "heads": ("model.config.num_attention_heads=1000000000", "model.config.num_attention_heads=64"),
    "horizon": ("run.horizon=1e-30 s", "run.horizon=1 ns"),
    "target": ("targets.ttft=1e-9 ns", "targets.ttft=1 ns"),
    "custom": (
        "serving.engine={name: vllm-0.19, all_reduce: {one_shot: {4: 1e30 MB}}}",
        "serving.engine={name: vllm-0.19, all_reduce: {one_shot: {4: 1 GB}}}",
    ),
    "nodes": ("topology.nodes=1000000000", "topology.nodes=2"),
    "host memory": (
        "serving={preemption: swap, scheduler: continuous, host_kv: 1e30 B}",
        "serving={preemption: swap, scheduler: continuous, host_kv: 1e12 B}",
    ),
}
"""What is wrong → (``--set`` of nonsense, of a neighbour that is none)."""


ENGINE = {
    "schedule": "150 us", "schedule_per_request": "4 us", "sample": "30 us", "sample_per_request": "0.5 us",
    "launch": "2 us", "graph_launch": "0 us", "graph_max_tokens": "512", "collective_launch": "1 us",
}  # fmt: skip


def engine(key: str) -> str:
    costs = ", ".join(f"{name}: {'%' if name == key else cost}" for name, cost in ENGINE.items())
    return f"serving.engine={{name: e, source: s, {costs}}}"


def workload(key: str, value: str = "%") -> str:
    parts = {
        "arrivals": "{process: poisson, rate: 4/s}", "prompt_tokens": "100", "output_tokens": "3", "requests": "4"
    }  # fmt: skip
    return f"workload={{{', '.join(f'{name}: {part}' for name, part in (parts | {key: value}).items())}}}"


PREFIX_AWARE = "serving={{prefix_caching: true, router: prefix_aware, router_options: {{{}: %}}}}"
FIELDS = {
    "seed": ("seed=%", ""),
    **{f"serving.{key}": (f"serving.{key}=%", "") for key in (
        "long_prompt_tokens", "max_batch_requests", "max_batch_tokens", "kv_block_tokens", "kv_blocks", "queue_limit",
        "memory_utilization",
    )},
    "serving.queue_timeout": ("serving.queue_timeout=%", " s"),
    "serving.host_kv": ("serving={preemption: swap, host_kv: %}", " B"),
    "serving.order.patience": ("serving.order={by: priority, patience: %}", " s"),
    **{f"serving.router_options.{key}": (PREFIX_AWARE.format(key), "") for key in (
        "cache_threshold", "balance_abs_threshold", "balance_rel_threshold",
    )},
    **{f"serving.engine.{key}": (engine(key), "" if key == "graph_max_tokens" else " s") for key in ENGINE},
    "workload.arrivals.rate": (workload("arrivals", "{process: poisson, rate: %}"), "/s"),
    "workload.arrivals.cv": (workload("arrivals", "{process: gamma, rate: 4/s, cv: %}"), ""),
    "workload.arrivals.concurrency": (workload("arrivals", "{process: closed_loop, concurrency: %}"), ""),
    "workload.prompt_tokens": (workload("prompt_tokens"), ""),
    "workload.output_tokens": (workload("output_tokens"), ""),
    "workload.requests": (workload("requests"), ""),
    "workload.prompt_tokens.uniform": (workload("prompt_tokens", "{uniform: {low: 1, high: %}}"), ""),
    "workload.prompt_tokens.lognormal.cv": (workload("prompt_tokens", "{lognormal: {mean: 9, cv: %}}"), ""),
    "workload.prompt_tokens.lognormal.max": (workload("prompt_tokens", "{lognormal: {mean: 9, cv: 1, max: %}}"), ""),
    "workload.prompt_tokens.empirical.values": (workload("prompt_tokens", "{empirical: {values: [%]}}"), ""),
    "workload.prompt_tokens.empirical.weights": (
        workload("prompt_tokens", "{empirical: {values: [3, 4], weights: [%, 1]}}"), "",
    ),
    "workload.shared_prefixes.groups": (workload("shared_prefixes", "{groups: %, tokens: 8}"), ""),
    "workload.shared_prefixes.tokens": (workload("shared_prefixes", "{groups: 2, tokens: %}"), ""),
    "workload.shared_prefixes.zipf": (workload("shared_prefixes", "{groups: 2, tokens: 8, zipf: %}"), ""),
    "workload.priority.values": (workload("priority", "{values: [%]}"), ""),
    "workload.priority.weights": (workload("priority", "{values: [1, 2], weights: [%, 1]}"), ""),
    "workload.cancel_after.share": (workload("cancel_after", "{share: %, fixed: 1 s}"), ""),
    "workload.cancel_after.fixed": (workload("cancel_after", "{fixed: %}"), " s"),
    "workload.cancel_after.uniform": (workload("cancel_after", "{uniform: {low: 0 s, high: %}}"), " s"),
    "workload.cancel_after.exponential": (workload("cancel_after", "{exponential: %}"), " s"),
    "run.horizon": ("run.horizon=%", " s"),
    "targets.ttft": ("targets.ttft=%", " s"),
}  # fmt: skip
"""Field → (``--set`` with a % where its number stands, the unit)."""


@pytest.mark.parametrize("field", FIELDS)
def test_each_number_of_serving_and_workload_is_held_to_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    written, unit = FIELDS[field]
    for value in ("1e30", "-1", str(10**18)):
        refused = invoke("check", "s.yaml", "--set", written.replace("%", value + unit))
        assert refused.exit_code == 2, (value, refused.output)
        assert f"--set #1: {field}" in refused.stderr, (value, refused.stderr)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(("wrong", "right"), NONSENSE.values(), ids=NONSENSE)
def test_a_number_that_nothing_has_is_refused_and_its_neighbour_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, right: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    refused = invoke("check", "s.yaml", "--set", wrong)
    assert refused.exit_code == 2, refused.output
    assert "--set #1" in refused.stderr
    taken = invoke("check", "s.yaml", "--set", right)
    assert taken.exit_code == 0, taken.output


@pytest.mark.parametrize(
    "words",
    [
        ["graph", "quickstart", "--step", "decode", "--batch", "1000000000"],
        ["graph", "quickstart", "--tokens", "99999999999"],
        ["prove", "quickstart", "--orders", "1000000"],
        ["run", "quickstart", "--processes", "1000000"],
    ],
)
def test_an_option_beyond_all_sense_is_refused(words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert "expected a whole number from " in result.stderr


@pytest.mark.parametrize(("seconds", "status"), [("9e18", 2), ("86401", 2), ("2e-4", 0)])
def test_a_measurement_that_took_years_is_refused(tmp_path: Path, seconds: str, status: int) -> None:
    rows = "".join(f"gemm,{m},4096,4096,{seconds}\n" for m in range(16, 2048, 97))
    (tmp_path / "p.csv").write_text(f"op,m,n,k,seconds\n{rows}")
    result = invoke("calibrate", "dgx-h100", str(tmp_path / "p.csv"))
    assert result.exit_code == status, result.output
    assert ("p.csv:2:19: seconds: expected a number up to 86400" in result.stderr) == (status == 2)


@pytest.mark.parametrize(("bins", "status"), [("1000000", 2), ("2000", 0)])
def test_a_dashboard_of_a_million_bins_is_refused(tmp_path: Path, bins: str, status: int) -> None:
    from clustersim.errors import InputError
    from clustersim.report.figures.layout import read_layout

    layout = {"title": "t", "figures": [{"figure": "batch", "bins": int(bins)}]}
    if status:
        with pytest.raises(InputError, match=r"bins: expected a whole number from 1 to 100,000"):
            read_layout(layout)
    else:
        assert read_layout(layout).panels[0].options["bins"] == 2000


@pytest.mark.parametrize(("duration", "status"), [(-5, 2), ("soon", 2), (True, 2), (1e30, 2), (12, 0), (None, 0)])
def test_a_graph_whose_operators_take_no_time_that_there_is_is_refused(
    tmp_path: Path, duration: object, status: int
) -> None:
    node = {"id": 0, "name": "o_proj", "op": "gemm", "ranks": [0], "duration_ns": duration}
    (tmp_path / "g.json").write_text(json.dumps({"format": 1, "nodes": [node], "edges": []}))
    result = invoke("check", str(tmp_path / "g.json"))
    assert (result.exit_code == 2) == (status == 2), result.output
    assert ("duration_ns" in result.stderr) == (status == 2)


def test_all_constants_that_ship_lie_within_the_ranges() -> None:
    from clustersim.scenario import load_topology

    for name in catalog.names("topologies"):
        load_topology(name)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "s.yaml").write_text(SCENARIO)
    assert invoke("run", str(folder / "s.yaml"), "--out", str(folder / "r"), "--no-dashboard").exit_code == 0
    return folder / "r"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run empty", "no scenario 'empty'; the folder of this name has no scenario.yaml"),
        ("models empty", "no model 'empty'; the folder of this name has no config.json"),
        ("models mine", "no model 'mine'; did you mean './mine'?"),
        ("run nothing.json", "nothing.json: no such file\n"),
        ("run otherz.json", "otherz.json: no such file; did you mean 'other.yaml'?"),
        ("dashboard r --layout void.yaml", "such as 'figures: [{figure: headline}]'"),
        ("dashboard other", "other: no such run directory; `clustersim run` writes one"),
        ("compare r r --layout overview", "--layout: no dashboard 'overview'; known: compare"),
        ("trace r --from -1s", "--from: the window starts at -1s, but the run at 0 s"),
        ("trace r --around nothin", "did you mean 'nothing'?"),
        ("trace r --max-size 1", "expected bytes such as '16 GiB'"),
        ("run other.yaml --max-time 1", "expected a time such as '10 min'"),
        ("launch quickstart --for vllm --model ''", "--model: is empty; expected such as meta-llama/"),
        ("from-vllm 'vllm serve m --tp 2'", "no option '--tp'; did you mean '-tp'?"),
    ],
)
def test_what_is_not_there_leads_to_what_is(
    run_dir: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    for folder in ("empty", "mine"):
        Path(folder).mkdir(exist_ok=True)
    Path("mine/config.json").write_text("{}")
    Path("other.yaml").write_text(SCENARIO)
    Path("void.yaml").write_text("")
    result = invoke(*shlex.split(words))
    assert result.exit_code == 2, result.output
    assert message in result.stderr


SIZES = [("200kB", "kB"), ("1 MB", "MB"), ("1 MiB", "MiB"), ("5 B", "B")]


@pytest.mark.parametrize(("asked", "unit"), SIZES if is_whole() else SIZES[2:3])
def test_what_a_page_takes_is_told_in_the_unit_that_was_asked_in_and_would_do(
    run_dir: Path, asked: str, unit: str
) -> None:
    result = invoke("dashboard", str(run_dir), "--max-page", asked, "-o", str(run_dir / "d.html"))
    assert result.exit_code == 2
    found = re.search(
        rf"expected ([\d.,]+ {unit}) or more, or (?:--script beside)?(.*): ([\d.,]+ {unit})$", result.stderr
    )
    assert found is not None, result.stderr
    whole, layout, least = found.groups()
    assert ("device_lanes" in layout) is (asked in ("200kB", "5 B"))
    shown = ("headline", "causes", "utilisation", "batch", "kv_cache", "latencies", "requests")
    (run_dir / "bare.yaml").write_text(json.dumps({"figures": [{"figure": name} for name in shown]}))
    lean = ["--layout", str(run_dir / "bare.yaml")] if layout else []
    for size, more in ((whole, []), (least, ["--script", "beside", *lean])):
        words = ["--max-page", size.replace(",", ""), *more, "-o", str(run_dir / "d.html")]
        assert invoke("dashboard", str(run_dir), *words).exit_code == 0, words


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--at", "9 h"], "--at: 9 h (32,400 s) is outside the run; expected 0 s to "),
        (["--at", "12e9 h"], "is outside the run; expected 0 s to "),
        (["--at", "-1 s"], "--at: -1 s is outside the run; expected 0 s to "),
        (["--at", "5"], "--at: '5' has no unit; expected a time such as '12 s'"),
        (["--request", "4"], "--request: there is no request 4; expected 0 to 3"),
        (["--request", "abc"], "'--request': expected a whole number from 0, but found 'abc'"),
        (["--max-page", "1 MB"], "--max-page: 1 MB is too little for steps and requests: expected "),
        (["--max-page", "1"], "--max-page: '1' has no unit; expected bytes such as '30 MB'"),
        (["--max-page", "-1 MB"], "--max-page: expected more than nothing, such as '30 MB', but found '-1 MB'"),
        (["--layout", "search"], "--layout: no dashboard 'search'; known: overview, requests"),
        (["--request", "3", "--layout", "latencies.yaml"], "--request: the layout has no request_rows"),
        (["--at", "0 s", "--request", "3", "--max-page", "50MB"], None),
    ],
)
def test_a_dashboard_of_what_is_not_in_the_run_is_refused(
    run_dir: Path, option: list[str], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    (run_dir.parent / "latencies.yaml").write_text("title: t\nfigures: [{figure: latencies}]\n")
    result = invoke("dashboard", "r", *option)
    assert result.exit_code == (0 if message is None else 2), result.output
    assert (run_dir / "dashboard.html").is_file() == (message is None)
    assert message is None or message in result.stderr
