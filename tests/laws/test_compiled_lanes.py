"""Compiled lanes decide what Python lanes decide, record for record.

Here the kernel runs as Python (``NUMBA_DISABLE_JIT``, which ``tests/conftest.py`` sets), so that this needs no
compiler; one test compiles it in a process of its own, once for each kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.copies import at_once
from clustersim.cost.table import TableCost
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import lanes as compiled_lanes
from clustersim.replay.compiled import prices as compiled_prices
from clustersim.replay.compiled.pools import flows, stretched, transfers
from clustersim.replay.compiled.pools import lanes as pool_lanes
from clustersim.replay.input import CompiledMode
from clustersim.replay.replay import ReplayInput, replay
from clustersim.scenario.load import load
from clustersim.serving.config import PrefixRouting
from clustersim.serving.decision import (
    ADMITTED,
    FINISHED,
    HANDED_OVER,
    PREEMPTED,
    RECEIVED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)  # fmt: skip
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.replay_input import replay_input
from clustersim.timeline.tables import Table
from tests.effort import dealt, examples, is_whole
from tests.laws.agreement import same, states_agree
from tests.laws.lane_cases import Case, case_input, lengths_of, two_pools
from tests.laws.lane_corpus import CORPUS
from tests.laws.lane_mutations import Mutation, mutated

TOGETHER = (
    ("quickstart", ("plan.pp=1", "plan.tp=8")),
    ("quickstart", (f"workload.trace.requests={200 if is_whole() else 60}",)),
    (
        "pp-on-one-node",
        (
            "serving.kv_blocks=700",
            "serving.scheduler=continuous",
            f"workload.trace.requests={60 if is_whole() else 30}",
        ),
    ),
    (
        "tp-on-one-node",
        ("plan={tp: 4, pp: 2, dp: 1}", "serving.kv_blocks=2000", f"workload.trace.requests={60 if is_whole() else 40}"),
    ),
    ("tp-on-one-node", ("serving.kv_blocks=700", "serving.scheduler=continuous")),
    ("quickstart", ("topology.name=dgx-a100", "topology.nodes=1", "plan.pp=1", "plan.tp=8", "expect={}")),
    (
        "quickstart",
        ("topology.name=l40s-node", "topology.nodes=1", "model=llama-3.1-8b", "plan.pp=1", "plan.tp=8", "expect={}"),
    ),
    (
        "azure-hour-fleet",
        (
            "plan.dp=3",
            "topology.nodes=3",
            f"workload.requests={600 if is_whole() else 150}",
            "plan.tp=8",
            "serving.long_prompt_tokens=512",
        ),
    ),
    ("mooncake-conversation", ("serving.kv_blocks=4000", f"workload.trace.requests={300 if is_whole() else 60}")),
    (
        "tp-on-one-node",
        (
            "model=gpt-oss-120b",
            "serving.max_batch_tokens=256",
            "workload={arrivals: {process: poisson, rate: 9/s}, prompt_tokens: {uniform: {low: 60, high: 300}}, "
            f"output_tokens: {{fixed: 80}}, requests: {200 if is_whole() else 20}}}",
        ),
    ),
)
"""Scenarios that ship, and what makes lanes of them that can be compiled; three have stages, two devices grids; one
keeps prefixes."""
IN_ORDER = ("steps", "chunks", "decodes", "facts")
"""Tables that are the same row by row, replica by replica."""
ORDERED: dict[int, tuple[str, ...]] = {1: IN_ORDER, 3: IN_ORDER, 1 << 15: (*IN_ORDER, "passes")}
"""Room for what is logged → these tables; if all is handed on at once, rows of durations are numbered alike, too."""
MODES: tuple[CompiledMode, ...] = ("never", "always")
POINTS = """\
op,pairs,queries,batch,keys,heads,kv_heads,qk_dim,v_dim,seconds
attention_prefill,8256,128,,128,8,1,128,128,9e-6
attention_prefill,524800,1024,,1024,8,1,128,128,60e-6
attention_decode,,,1,100,8,1,128,128,4e-6
attention_decode,,,1,1000,8,1,128,128,5e-6
attention_decode,,,4,400,8,1,128,128,6e-6
attention_decode,,,4,8000,8,1,128,128,9e-6
"""
"""Assumed: a few measured points of attention."""
STAGED = TOGETHER[1:4]
POOLED = ("distserve-tp2-tp1", ("workload.requests=8", "serving.transfer=layerwise"))
WINDOWED = TOGETHER[-1]
SHOWN = Path(__file__).with_name("machine_code.txt")
"""Of what machine code was compared already; ``pytest --update-golden`` of its test compares and notes it."""
DECIDES = ("__init__.py", "choice.py")
"""Modules of its room that decide what is compiled, and give it nothing."""
ONE_STAGE = ({}, {"dp": 2}, {"dp": 3}, {"tp": 2}, {"tp": 2, "ep": 2})
SHARED = {"prefix_caching": True, "shares": (4, ((0, 1),))}
SPLIT = {"degree": 2, "scheme": "ring", "decode": "idle"}
STAGES = tuple({"pp": pp} | more for pp in (2, 3, 4) for more in ({}, {"dp": 2}, {"decode_overlap": "none"}))


SHARES = st.tuples(st.integers(0, 1), st.integers(0, 20))
"""A group of prompts, and how many blocks these have in common at most."""
ROUTED = (PrefixRouting(), PrefixRouting(cache_threshold=0.0), PrefixRouting(balance_abs_threshold=1))


WINDOWS = {
    "a run goes on when a window is full": Mutation(k, "_sum_near", "window - seen)", "window)"),
    "windows do not grow": Mutation(k, "_price_decodes", "near += s[NEAR_GROWTH]", "pass"),
    "decodes see beyond it": Mutation(k, "_sum_near", "min(seen, window)", "seen"),
    "prompts see a token more": Mutation(k, "_sum_chunks", "(short - 1)", "(short + 1)"),
    "prompts see what is behind it": Mutation(k, "_sum_chunks", "min(start, window - 1)", "start"),
    "decodes beside prompts see all": Mutation(k, "_prompts_ns", "NEAR_ATTENDED] if near", "ATTENDED] if near"),
}


IN_RUNS = {
    "a hand-over cuts no run": Mutation(stretched, "touch", "mine[k.STEPS] = ended + 1", "pass"),
    "K/V finds no blocks that a run has taken": Mutation(
        stretched, "touch", "pool[LIM][k.SIZE], ended + 1)", "pool[LIM][k.SIZE], 1)"
    ),
    "flows that are alone again keep their share": Mutation(flows, "solve", "if count > 1", "if count > 0"),
}
"""Of pools whose runs of steps are priced at once, as those of round numbers are not."""
LATE = {
    "a row of one step tells the blocks of the first": Mutation(
        stretched, "log_stretched", "head[k.ROW_USED] +=", "head[k.ROW_USED] += 0 *"
    ),
}


@st.composite
def plain_cases(draw: st.DrawFn, plans: tuple[dict[str, Any], ...] = ONE_STAGE) -> Case:
    """Draw a case whose lanes can be compiled: many requests, and mostly too few K/V blocks for all of them."""
    plan = draw(st.sampled_from(plans))
    block_tokens = draw(st.sampled_from((1, 4, 16)))
    pool_tokens = draw(st.sampled_from((32, 44, 64, 100, 300, 10_000)))
    lengths = lengths_of(draw(st.sampled_from((12, 30, 80))))
    instants = st.just(0) | st.integers(0, 40_000).map(lambda i: i * 10)
    chunked = draw(st.booleans())
    case: Case = {
        "plan": plan,
        "layers": plan.get("pp", 1) + draw(st.integers(0, 1)),
        "scheduler": "chunked_prefill" if chunked else "continuous",
        "max_batch_requests": draw(st.sampled_from((1, 2, 4, 8))),
        "max_batch_tokens": draw(st.sampled_from((8, 9, 16, 40, 256))),
        "kv_block_tokens": block_tokens,
        "kv_blocks": -(-pool_tokens // block_tokens),
        "arrivals": sorted((at, *both) for at, both in draw(st.lists(st.tuples(instants, lengths), max_size=25))),
    }
    if chunked and draw(st.integers(0, 3)) == 0:
        case["long_prompt_tokens"] = draw(st.sampled_from((2, 5)))
    if draw(st.booleans()):
        case["admission"] = "first_chunk"
    if draw(st.integers(0, 3)) == 0:
        case["window"] = draw(st.sampled_from((1, 6, 20)))
    kept = draw(st.sampled_from(("", "", "host", "prefixes"))) if "pp" not in plan else ""
    if kept == "host":
        case["host"] = draw(st.sampled_from((1, 2, 5, 100)))
    if draw(st.booleans()):
        case["router"] = "least_outstanding"
    if kept == "prefixes":
        case["prefix_caching"] = True
        case["shares"] = block_tokens, tuple(draw(st.lists(SHARES, min_size=1, max_size=4)))
        if draw(st.booleans()):
            case |= {"router": "prefix_aware", "prefix_routing": draw(st.sampled_from(ROUTED))}
    if draw(st.integers(0, 3)) == 0:
        case["concurrency"] = draw(st.integers(1, 9))
    if draw(st.integers(0, 2)) == 0:
        case["horizon_ns"] = draw(st.integers(0, 400_000))
    return case


def agree(inputs: ReplayInput, *tables: str) -> int:
    """Hold compiled lanes to Python lanes, some tables row by row; return how many sequences were preempted."""
    with at_once(2):  # a thread hands on what several lanes have logged
        never, always = (replay(replace(inputs, compiled=mode)) for mode in ("never", "always"))
    assert not always.interpreted, "it was not compiled"
    assert never.interpreted
    same(never, always, "compiled")
    assert never.reasons == always.reasons
    assert told_alike(never.timeline.steps, always.timeline.steps)
    for name in tables:
        ours, theirs = getattr(never.timeline, name), getattr(always.timeline, name)
        assert all(np.array_equal(ours[column], theirs[column]) for column in ours), name
    return int(never.preemptions.sum())


def told_alike(*tables: Table) -> bool:
    """Whether steps with which runs begin in both tables are told alike; where runs are cut is nobody's concern."""
    places = [table["replica"].astype(np.int64) << 32 | table["step"] for table in tables]
    _, *rows = np.intersect1d(*places, return_indices=True)
    columns = "waiting", "running", "kv_blocks_used", "context_tokens"
    return all(np.array_equal(*(table[name][at] for table, at in zip(tables, rows, strict=True))) for name in columns)


@examples(40)
@given(plain_cases(STAGES), st.sampled_from((1, 3, 1 << 15)))
def test_compiled_stages_decide_as_python_lanes(case: Case, room: int) -> None:
    with mock.patch.object(compiled_lanes, "ROOM", room):
        agree(case_input(case), *ORDERED[room])


@examples(40)
@given(plain_cases(), st.sampled_from((1, 3, 4096)), st.sampled_from((1, 3, 1 << 15)))
def test_compiled_lanes_decide_as_python_lanes(case: Case, most: int, room: int) -> None:
    """With runs cut short, and what is logged handed on after every step, or every few."""
    with (
        mock.patch("clustersim.replay.events.decode_run.MAX_RUN", most),
        mock.patch.object(compiled_lanes, "ROOM", room),
    ):
        agree(case_input(case), *(() if "host" in case else ORDERED[room]))  # runs of steps may be cut elsewhere


@pytest.mark.parametrize(("stages", "scheduler"), dealt((1, 2, 3), ("continuous", "chunked_prefill")))
def test_compiled_lanes_preempt_as_python_lanes(scheduler: str, stages: int) -> None:
    """Where blocks lack all the time."""
    arrivals = [(100 * i, 5 + i % 7, 40 + i % 11) for i in range(60)]
    case = {"arrivals": arrivals, "scheduler": scheduler, "max_batch_requests": 8, "max_batch_tokens": 16,
            "kv_blocks": 30, "kv_block_tokens": 4, "plan": {"pp": stages}, "layers": stages}  # fmt: skip
    assert agree(case_input(case)) > 50
    if stages == 1:
        assert agree(case_input(case | {"host": 20})) > 50


@pytest.mark.parametrize(("name", "overrides"), TOGETHER)
def test_compiled_lanes_price_as_python_lanes(name: str, overrides: tuple[str, ...]) -> None:
    """With rooflines and real models, and a table of rows that has to grow."""
    inputs = inputs_of(name, overrides)
    with mock.patch.object(compiled_prices, "FEW_ROWS", 7):
        agree(inputs, *IN_ORDER, "passes")  # folded alike, in one order
    if name == "azure-hour-fleet":  # so are steps that several lanes hand on part by part
        with mock.patch.object(compiled_lanes, "ROOM", 3):
            agree(inputs, *IN_ORDER)
            with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
                agree(inputs, *IN_ORDER)


def test_sums_within_the_window_are_part_of_prices() -> None:
    for mutation in WINDOWS.values():
        with mutated(mutation), pytest.raises(AssertionError):
            agree(inputs_of(*WINDOWED))


@examples(30)
@given(two_pools(), st.sampled_from((1, 3, 4096)), st.sampled_from((1, 3, 1 << 15)))
def test_compiled_pools_decide_as_events_do(case: Case, most: int, room: int) -> None:
    with (
        mock.patch("clustersim.replay.events.decode_run.MAX_RUN", most),
        mock.patch.object(compiled_lanes, "ROOM", room),
        mock.patch.object(pool_lanes, "MOVE_ROOM", 1),
    ):
        agree_on_states(case_input(case))


def test_runs_of_compiled_pools_end_where_those_of_python_lanes_do() -> None:
    """With a hand-over, and where a step meets K/V of layers that leave."""
    late = case_input(CORPUS["layers leave beside a decode run, of which they make a step longer"])
    for inputs, hold, mutations in ((inputs_of(*POOLED), agree, IN_RUNS), (late, agree_on_states, LATE)):
        hold(inputs)
        for mutation in mutations.values():
            with mutated(mutation), pytest.raises(AssertionError):
                hold(inputs)


def agree_on_states(inputs: ReplayInput) -> None:
    """Hold compiled pools to ``full``, what each step tells, too."""
    full, always = replay(replace(inputs, mode="full")), replay(replace(inputs, compiled="always"))
    assert not always.interpreted, "it was not compiled"
    same(full, always, "compiled")
    states_agree(full, (always,), inputs.entry.serving.kv_block_tokens)


def test_what_the_kernel_does_not_price_is_asked_for_or_not_compiled() -> None:
    """Parts that depend on large counts, and windows of several lengths."""
    with mock.patch.object(compiled_prices, "MOST_VALUES", 100):
        agree(inputs_of(*TOGETHER[0]))
        staged = replay(replace(inputs_of(*TOGETHER[1]), compiled="always"))
    assert staged.interpreted == "prices depend on counts that are large, or on several of them"
    given_ = inputs_of(*WINDOWED)
    pool = replace(given_.entry, pricer=replace(given_.entry.pricer, windows=(128, 256)))
    windowed = replay(replace(given_, pools=(pool,), compiled="always"))
    assert windowed.interpreted == "the model attends within windows of several lengths"


def test_what_lies_outside_a_table_is_told_as_by_python_lanes(tmp_path: Path) -> None:
    """On one stage, on two, and where the nearest shape stands in, whose prices all lie outside; or decodes do not."""
    (tmp_path / "points.csv").write_text(POINTS, encoding="utf-8")
    change = f"cost={{table: {tmp_path / 'points.csv'}}}", "workload.trace.requests=40"
    inside = "workload={arrivals: all_at_once, requests: 3, prompt_tokens: {fixed: 200}, output_tokens: {fixed: 9}}"
    for plan, more in (("{tp: 8}", ""), ("{tp: 8, pp: 2}", ""), ("{tp: 4}", ""), ("{tp: 8}", inside)):
        found = []
        for mode in MODES:
            inputs = inputs_of("quickstart", (f"plan={plan}", *change, *filter(None, [more])))
            result, cost = replay(replace(inputs, compiled=mode)), inputs.entry.pricer.cost
            assert isinstance(cost, TableCost)
            found.append((result, {op for op, count in cost.outside.items() if count}))
        (never, ours), (always, theirs) = found
        same(never, always, "compiled")
        assert ours == theirs == ({"attention_prefill"} | (set() if more else {"attention_decode"})), (plan, more)


def test_the_numbers_in_the_kernel_are_those_of_the_package() -> None:
    assert (k.FACT_ADMITTED, k.FACT_PREEMPTED, k.FACT_FINISHED) == (ADMITTED, PREEMPTED, FINISHED)
    assert k.FACT_REUSED == REUSED
    assert (k.FACT_SWAPPED_OUT, k.FACT_SWAPPED_IN) == (SWAPPED_OUT, SWAPPED_IN)
    assert (transfers.FACT_HANDED_OVER, transfers.FACT_RECEIVED) == (HANDED_OVER, RECEIVED)
    assert (compiled_prices.CURVES, compiled_prices.OUTSIDE) == (k.CURVES, k.OUTSIDE)
    assert (STEP_KINDS[k.STEP_PREFILL], STEP_KINDS[k.STEP_DECODE], STEP_KINDS[k.STEP_MIXED]) == (
        "prefill", "decode", "mixed",
    )  # fmt: skip


def test_what_is_not_compiled_says_why() -> None:
    for change, said in (
        ({"plan": {"sp": SPLIT}}, "prompts that are split over SP ranks are not"),
        ({"prefix_caching": True}, "replicas are not where serving.prefix_caching decides"),
        ({"router": "power_of_two"}, "replicas are not where serving.router: power_of_two decides"),
        ({"plan": {"pp": 2}, "layers": 2} | SHARED, "stages whose prompts share cached prefixes are not"),
        (SHARED | {"max_batch_tokens": 2, "max_batch_requests": 3}, "schedulers that decide each step are not"),
        ({"decode": {"plan": {}, "kv_blocks": 20}, "horizon_ns": 9_000}, "two pools are not where more than loads and"),
    ):
        given_ = case_input({"arrivals": [(0, 4, 4)] * 3, "kv_block_tokens": 4} | change)
        assert replay(replace(given_, compiled="always")).interpreted.startswith(said)
    with mock.patch("clustersim.replay.compiled.choice.MOST_RUNS", 1):
        many = replay(replace(case_input({"arrivals": [(0, 9, 4)] * 2} | SHARED), compiled="always"))
    assert many.interpreted == "more prompts share prefixes than there is room for are not"


def test_machine_code_gives_what_the_kernel_gives_as_python(request: pytest.FixtureRequest) -> None:
    """The compiler's integers wrap and its divisions round as Python's do, wherever the kernel relies on it.

    Compiling takes half a minute, so a plain ``pytest`` does it where kernel, compiler or machine are others than those
    of which ``machine_code.txt`` says that this was shown, and then only what runs stages and pools, which have most
    functions of the other kernel in them; ``--long=1`` compiles all, whatever was shown.
    """
    if not is_whole() and shown_of() in SHOWN.read_text(encoding="utf-8").splitlines():
        pytest.skip("shown of this kernel, compiler and machine (machine_code.txt); --long=1 compiles it again")
    tried = (*(TOGETHER if is_whole() else STAGED), POOLED)
    expected = [replay(replace(inputs_of(*one), compiled="always")).timeline.digest for one in tried]
    assert digests_of_machine_code(tried) == expected
    if request.config.getoption("--update-golden"):
        SHOWN.write_text(shown_of() + "\n", encoding="utf-8")
        pytest.fail(f"{SHOWN.name} rewritten: this kernel was compiled, and gave what it gives as Python")


def digests_of_machine_code(tried: tuple[tuple[str, tuple[str, ...]], ...]) -> list[str]:
    """Digests of timelines, made in a process whose kernel is compiled."""
    script = (
        "import json, pickle, sys\nfrom dataclasses import replace\nfrom clustersim.copies import at_once\n"
        "from clustersim.replay.compiled import stages\n"
        "from clustersim.replay.replay import replay\nfrom tests.laws.test_compiled_lanes import inputs_of\n"
        "tried = json.loads(sys.argv[1])\n"
        "inputs = [replace(inputs_of(*one), compiled='always') for one in tried]\n"
        "with at_once(2):\n    found = [replay(one) for one in inputs]\n"
        "assert not any(one.interpreted for one in found)\n"
        "kinds = len(stages.advance_stages.signatures)\n"
        "for one in inputs:\n    replay(replace(one, requests=pickle.loads(pickle.dumps(one.requests))))\n"
        "assert len(stages.advance_stages.signatures) == kinds, 'compiled again for what a worker is handed'\n"
        "print(json.dumps([one.timeline.digest for one in found]))\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(tried)], capture_output=True, text=True, check=False, env=plain,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    digests: list[str] = json.loads(done.stdout)
    return digests


def shown_of() -> str:
    """What machine code is made of: the kernel and what calls it, the compiler, and the machine that it is for."""
    room = sorted(Path(k.__file__).parent.rglob("*.py"))
    whole = b"".join(path.read_bytes() for path in room if path.name not in DECIDES)
    sources = hashlib.sha256(whole).hexdigest()
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{sources} numba {version('numba')} python {python} {platform.machine()}"


def inputs_of(name: str, overrides: tuple[str, ...]) -> ReplayInput:
    """What the replay of a scenario that ships is a function of."""
    scenario = load(name, [*overrides, "expect=null", "targets=null"])
    return replay_input(scenario, scenario.requests())


APART = ("topology={name: dgx-h100, nodes: 2}", "plan={tp: 1, pp: 3, dp: 3}", "model=llama-3.1-8b")
"""Of three replicas the last one's stages are on two nodes; its first and last ones cost what those of others do."""


@pytest.mark.parametrize("plan", [(), ("plan={tp: 4, pp: 2}",), APART], ids=["one stage", "stages", "apart"])
def test_rows_of_durations_have_numbers_of_their_own_whoever_made_others(plan: tuple[str, ...]) -> None:
    """Prices that are kept have rows of other scenarios, and stages of several replicas share them."""
    lengths = ((10, 800, 30), (100, 3000, 90), (10, 800, 30))
    scenarios = [
        load("tp-on-one-node", [
            *plan, "expect={}", f"workload={{arrivals: {{process: poisson, rate: 9/s}}, requests: 30, prompt_tokens: "
            f"{{uniform: {{low: {low}, high: {high}}}}}, output_tokens: {output}}}",
        ])
        for low, high, output in lengths
    ]  # fmt: skip
    kept = KeptPrices()
    for scenario in scenarios:
        requests = scenario.requests()
        fresh, again = replay_input(scenario, requests), replay_input(scenario, requests, kept)
        compiled = replay(replace(again, compiled="always"))
        assert not compiled.interpreted
        assert compiled.timeline.digest == replay(replace(fresh, compiled="never")).timeline.digest


def test_a_short_run_reads_nothing_that_compiles(tmp_path: Path) -> None:
    """Neither the kernel nor the compiler, which take longer to import than such a run."""
    program = (
        "import sys; from clustersim.cli import main; "
        f"main(['run', 'quickstart', '--quiet', '--no-dashboard', '--out', {str(tmp_path / 'run')!r}, "
        "'--set', 'workload.trace.requests=20', '--set', 'plan.pp=1', '--set', 'expect={}'], standalone_mode=False); "
        "print([name for name in ('numba', 'clustersim.replay.compiled.kernel') if name in sys.modules])"
    )
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    found = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
