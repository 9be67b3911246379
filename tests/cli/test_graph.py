"""``clustersim graph``: every format, every mistake, and the picture in a real Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.graph.foreign.read import read_graph
from clustersim.graph.prices.priced import start_times
from clustersim.scenario.load import load
from clustersim.simulation.simulate import simulate
from tests.acyclic import is_acyclic

SCENARIO: dict[str, Any] = {
    "name": "small",
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {
        "name": "tiny",
        "source": "made up for tests",
        "config": {
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "vocab_size": 1000,
        },
    },
    "plan": {"tp": 2, "pp": 2, "dp": 2},
    "workload": {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"fixed": 100},
        "output_tokens": {"fixed": 10},
        "requests": 2,
    },
}


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


def graph(scenario: Path, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["graph", str(scenario), *map(str, arguments)])


def document(scenario: Path, target: Path, *arguments: object) -> dict[str, Any]:
    """Write the graph as JSON and return it."""
    result = graph(scenario, *arguments, "-o", target)
    assert result.exit_code == 0, result.output
    return dict(json.loads(target.read_text()))


def test_json_is_a_graph_of_the_scenario(scenario: Path, tmp_path: Path) -> None:
    found = document(scenario, tmp_path / "g.json")
    back = read_graph(found)
    assert back.plan == load(scenario).plan
    assert (back.batch and back.batch.prefill_tokens, found["step"]["kind"]) == (1024, "prefill")
    assert is_acyclic(back.graph)
    assert found["title"] == "tiny on dgx-h100, DP 2 × PP 2 × TP 2: prefill of a prompt of 1,024 tokens"
    assert found["devices"] == [f"n0.g{rank}" for rank in range(4)]
    assert all(node["duration_ns"] > 0 for node in found["nodes"] if node["stream"] not in (None, "recv"))


@pytest.mark.parametrize(
    ("kind", "options", "tokens", "sequences", "keys"),
    [
        ("prefill", ("--tokens", 7), 7, 0, 0),
        ("decode", ("--batch", 3, "--context", 9), 0, 3, 30),
        ("decode", (), 0, 8, 8 * 1025),
        ("mixed", ("--tokens", 7, "--batch", 3), 7, 3, 3 * 1025),
    ],
)
def test_options_are_what_the_step_carries(
    scenario: Path, tmp_path: Path, kind: str, options: tuple[object, ...], tokens: int, sequences: int, keys: int
) -> None:
    found = document(scenario, tmp_path / "g.json", "--step", kind, *options)
    step = found["step"]
    assert step["kind"] == kind
    assert sum(chunk["count"] for chunk in step["chunks"]) == tokens
    assert (sum(step["decode_sequences"]), sum(step["decode_keys"])) == (sequences, keys)
    products = [node for node in found["nodes"] if node["name"] == "qkv_proj"]
    assert {node["amount"]["value"] for node in products} == {tokens + sequences}


def test_decode_spreads_sequences_over_sp_ranks_and_cuts_windows(scenario: Path, tmp_path: Path) -> None:
    config = "model.config"
    changes = [
        "plan={sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}",
        f"{config}.model_type=gpt_oss",
        f"{config}.num_local_experts=4",
        f"{config}.num_experts_per_tok=2",
        f"{config}.head_dim=8",
        f"{config}.sliding_window=128",
    ]
    options = [part for change in changes for part in ("--set", change)]
    step = document(scenario, tmp_path / "g.json", "--step", "decode", "--batch", 5, *options)["step"]
    assert step["decode_sequences"] == [3, 2]
    assert step["decode_keys"] == [3 * 1025, 2 * 1025]
    assert step["windowed_keys"] == {"128": [3 * 128, 2 * 128]}


def test_one_stage_has_its_own_ranks(scenario: Path, tmp_path: Path) -> None:
    found = document(scenario, tmp_path / "g.json", "--stage", 1)
    assert {node["stage"] for node in found["nodes"]} == {1}
    assert {rank for node in found["nodes"] for rank in node["ranks"]} == {2, 3}


def test_a_replica_has_its_own_devices(scenario: Path, tmp_path: Path) -> None:
    found = document(scenario, tmp_path / "g.json", "--replica", 1)
    assert (found["replica"], found["devices"]) == (1, [f"n0.g{rank}" for rank in range(4, 8)])


def test_a_replica_is_priced_on_its_own_links(scenario: Path, tmp_path: Path) -> None:
    change = ("--set", "plan={tp: 2, dp: 2, placement: [0, 1, 2, 8]}", "--set", "topology.nodes=2")
    inside, across = (
        sum(node.get("duration_ns", 0) for node in found["nodes"] if node["op"] == "all_reduce")
        for found in (document(scenario, tmp_path / "g.json", "--replica", replica, *change) for replica in (0, 1))
    )
    assert across > 1.5 * inside


def test_graphml_and_dot_have_every_node(scenario: Path, tmp_path: Path) -> None:
    found = document(scenario, tmp_path / "g.json")
    count, edges = len(found["nodes"]), len(found["edges"])
    assert graph(scenario, "-o", tmp_path / "g.graphml").exit_code == 0
    assert nx.read_graphml(tmp_path / "g.graphml").number_of_nodes() == count
    result = graph(scenario, "-o", tmp_path / "g.dot")
    assert result.output == f"{tmp_path / 'g.dot'}: {count:,} nodes, {edges:,} edges\n"
    assert (tmp_path / "g.dot").read_text().count("[label=") == count


def test_without_a_name_the_picture_is_called_after_scenario_and_step(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert graph(scenario, "--step", "decode").exit_code == 0
    html = (tmp_path / "small-decode.html").read_text()
    assert "<h1>tiny on dgx-h100, DP 2 × PP 2 × TP 2</h1>" in html
    assert "decode of 8 sequences behind 1,024 tokens each (small, replica 0)" in html


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-o", "g.svg"), 2, "--output: g.svg: the suffix says the format; use .html, .graphml, .dot or .json"),
        (("-o", "g"), 2, "--output: g: the suffix says the format"),
        (("-o", "nowhere/g.dot"), 2, "--output: nowhere/g.dot: cannot be written (there is no folder nowhere)"),
        (("--batch", "3"), 2, "--batch: a prefill step has none; use --step decode or --step mixed"),
        (("--context", "3"), 2, "--context: a prefill step has none"),
        (
            ("--step", "decode", "--tokens", "3"),
            2,
            "--tokens: a decode step has none; use --step prefill or --step mixed",
        ),
        (("--stage", "2"), 2, "--stage: 2 is not in 0 … 1 (plan.pp is 2)"),
        (("--replica", "2"), 2, "--replica: 2 is not in 0 … 1 (plan.dp is 2)"),
        (("--tokens", "0"), 2, "--tokens"),
        (("--step", "train"), 2, "--step"),
        (("--set", "plan.tp=3"), 1, "TP-1"),
        (("--set", "plan.tq=3"), 2, "plan.tq"),
    ],
)
def test_mistakes(
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = graph(scenario, *arguments)
    assert result.exit_code == status, result.output
    assert message in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_mistakes_are_told_all_at_once(scenario: Path) -> None:
    result = graph(scenario, "-o", "x.svg", "--batch", 3, "--stage", 5)
    assert len(result.stderr.strip().splitlines()) == 3


def test_a_place_that_cannot_be_written_is_told(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "g.json").mkdir()
    assert "is a folder" in graph(scenario, "-o", tmp_path / "g.json").stderr


def legal_rules(path: Path) -> set[str]:
    """Return the rules of level G that found something to look at in a graph, which must be legal."""
    result = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert verdict["verdict"] == "legal", verdict["violations"]
    return {rule["id"] for rule in verdict["rules"] if rule["looked_at"] and rule["level"] == "G"}


EXPERTS = SCENARIO["model"] | {
    "config": SCENARIO["model"]["config"]
    | {"model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}
}
SHARED = {"dp": 2, "tp": 2, "ep": {"degree": 4, "scope": "global"}}


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("experts", [{}, {"routing": {"zipf": 1.0}, "redundant": 4}])
def test_replicas_that_share_experts_are_one_legal_graph(
    scenario: Path, tmp_path: Path, kind: str, experts: dict[str, Any]
) -> None:
    plan = SHARED | {"ep": SHARED["ep"] | experts}
    scenario.write_text(yaml.safe_dump(SCENARIO | {"model": EXPERTS, "plan": plan}))
    found = document(scenario, tmp_path / "g.json", "--step", kind)
    assert found["title"].endswith("on each of 2 replicas")
    assert (found["devices"], found["plan"]["dp"]) == (["n0.g0", "n0.g1", "n0.g2", "n0.g3"], 2)
    dispatch = next(node for node in found["nodes"] if "dispatch" in node["name"])
    assert dispatch["ranks"] == [0, 1, 2, 3]
    assert {"EP-2", "EP-4", "EP-5", "EP-6", "EP-7", "DP-3", "TP-2", "RUN-1"} <= legal_rules(tmp_path / "g.json")
    assert graph(scenario, "--step", kind, "-o", tmp_path / "g.html").exit_code == 0
    assert "Replica 1: ranks 2–3" in (tmp_path / "g.html").read_text()


def test_a_graph_of_replicas_that_share_experts_takes_as_long_as_their_step(scenario: Path, tmp_path: Path) -> None:
    workload = SCENARIO["workload"] | {"prompt_tokens": {"fixed": 500}, "output_tokens": {"fixed": 1}}
    written = SCENARIO | {"model": EXPERTS, "plan": SHARED, "workload": workload}
    scenario.write_text(yaml.safe_dump(written))
    made = read_graph(document(scenario, tmp_path / "g.json", "--tokens", 500))
    durations = np.array(
        [node.get("duration_ns", 0) for node in json.loads((tmp_path / "g.json").read_text())["nodes"]]
    )
    timeline = simulate(load(scenario)).timeline
    assert (start_times(made.graph, durations) + durations).max() == timeline.steps["end_ns"][0]


@pytest.mark.parametrize(
    ("plan", "arguments", "words"),
    [
        (SHARED | {"pp": 2}, (), "plan.ep.scope: experts over the ranks of all replicas can be drawn at pp 1"),
        (SHARED, ("--replica", 1), "--replica: all replicas share experts and are in the graph; leave it out"),
        ({"tp": 2}, ("--pool", "decode"), "--pool: there are no pools to choose from; leave it out"),
    ],
)
def test_what_no_graph_shows_is_refused(
    scenario: Path, tmp_path: Path, plan: dict[str, Any], arguments: tuple[object, ...], words: str
) -> None:
    scenario.write_text(yaml.safe_dump(SCENARIO | {"model": EXPERTS, "plan": plan}))
    result = graph(scenario, *arguments, "-o", tmp_path / "g.json")
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "g.json").exists()


def test_a_pool_has_a_graph_of_its_own(tmp_path: Path) -> None:
    pools = Path("distserve-tp2-pp2")
    refused = graph(pools, "-o", tmp_path / "g.json")
    assert (refused.exit_code, "use --pool prefill or --pool decode" in refused.stderr) == (2, True)
    for pool, kind, degrees, devices in (("prefill", "prefill", (2, 1), 2), ("decode", "decode", (1, 2), 2)):
        found = document(pools, tmp_path / "g.json", "--pool", pool)
        assert (found["scenario"], found["step"]["kind"]) == (f"distserve-tp2-pp2-{pool}", kind)
        assert ((found["plan"]["tp"], found["plan"]["pp"]), len(found["devices"])) == (degrees, devices)
        assert {"RUN-1", "PH-5"} <= legal_rules(tmp_path / "g.json")


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        ({"zipf": -1}, "plan.ep.routing.zipf: expected a number from 0 to 10"),
        ({"frequencies": [[0, 0]]}, "plan.ep.routing.frequencies: expected lists of numbers from 0"),
        ({"frequencies": [[1, 2]]}, "plan.ep.routing.frequencies: expected a row"),
        ({"zip": 1}, "plan.ep.routing.zip: unknown key"),
        ("even", "plan.ep.routing: expected an object"),
    ],
)
def test_visits_that_are_none_are_refused(scenario: Path, tmp_path: Path, routing: Any, words: str) -> None:
    plan = {"tp": 2, "ep": {"degree": 2, "routing": {"zipf": 1.0}}}
    scenario.write_text(yaml.safe_dump(SCENARIO | {"model": EXPERTS, "plan": plan}))
    target = tmp_path / "g.json"
    found = document(scenario, target)
    legal_rules(target)
    found["plan"]["ep"]["routing"] = routing
    target.write_text(json.dumps(found))
    result = CliRunner().invoke(main, ["check", str(target)])
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


# --- in a browser -----------------------------------------------------------------------------------------------

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PROBE = """
<script>
const seen = {errors: [], blocked: []};
window.addEventListener("error", event => seen.errors.push(event.message));
document.addEventListener("securitypolicyviolation", event => seen.blocked.push(event.blockedURI));
</script>
"""
ACT = """
<script>
setTimeout(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  seen.wires = all("#wires path").map(path => path.getAttribute("d"));
  const run = document.querySelector("details.run");
  seen.folded = all("svg", run).length;
  run.open = true;
  setTimeout(() => {
    seen.opened = all(".op .name", run).map(text => text.textContent);
    const box = all(".op").find(op => op.dataset.tip.startsWith("attention_prefill"));
    box.dispatchEvent(new MouseEvent("mouseover", {bubbles: true, clientX: 50, clientY: 50}));
    seen.tip = document.getElementById("tip").textContent;
    seen.lit = all(".op.on .name").map(text => text.textContent);
    const out = document.createElement("pre");
    out.id = "seen"; out.textContent = JSON.stringify(seen); document.body.append(out);
  }, 300);
}, 300);
</script>
"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: the picture can't be looked at")
def test_the_picture_opens_folded_layers_joins_stages_and_tells_on_hover(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "g.html"
    assert graph(scenario, "-o", page).exit_code == 0
    html = page.read_text()
    head, tail = html.index("<body>") + len("<body>"), html.rindex("</body>")
    page.write_text(html[:head] + PROBE + html[head:tail] + ACT + html[tail:])
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    seen = json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    assert (seen["errors"], seen["blocked"]) == ([], [])
    assert len(seen["wires"]) == 1
    assert seen["folded"] == 0
    assert seen["opened"][:3] == ["attention_norm", "qkv_proj", "rope"]
    assert seen["tip"].startswith(
        "attention_prefill   (attention_prefill)\nattention, stage 0, layer 0\nranks 0–1: n0.g0"
    )
    assert seen["lit"] == ["rope", "kv_write", "kv_read", "attention_prefill", "o_proj"]
