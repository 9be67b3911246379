"""Replicas that share their experts take every step together: when they meet, what they bring, and who did what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.graph.batch import Chunk, Features, StepBatch, features_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.template import PassTemplate
from clustersim.legality.audit import check_history
from clustersim.legality.history import Declared, History
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.replay.prepared import Prepared
from clustersim.replay.replay import Mode, replay
from clustersim.report.files.summary import summary_of
from clustersim.report.metrics.step_features import lockstep_features
from clustersim.serving.decision import FACT_KINDS
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from clustersim.timeline.parts import as_one_replica
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import token_times
from clustersim.timeline.usage import usage_of
from tests.laws.accounts import account_for
from tests.laws.agreement import agree
from tests.laws.random_scenarios import MIXTRAL, scenario_of
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.events.lockstep import together
from tests.plain_usage import exposed_ns
from tests.round_numbers import SPARSE, Arrival, deployment, lane


def wide(dp: int, *, tp: int = 1, ep: int | None = None) -> ParallelPlan:
    return ParallelPlan(dp=dp, tp=tp, ep=ExpertPlan(degree=ep or dp * tp, scope="global"))


def timeline_of(*arrivals: Arrival, plan: ParallelPlan | None = None) -> Timeline:
    return replay(deployment(arrivals, plan=plan or wide(2), layer=SPARSE)).timeline


def span(timeline: Timeline, rank: int, name: str) -> tuple[int, int]:
    return next((start, end) for found, start, end in lane(timeline, rank) if found == name)


def test_all_meet_at_dispatch_when_the_slowest_attention_has_ended() -> None:
    timeline = timeline_of((0, 4, 1), (0, 40, 1))
    gates = [span(timeline, rank, "gate")[1] for rank in (0, 1)]
    assert gates[1] - gates[0] == 10 * (40 * 41 - 4 * 5) // 2, "10 ns per attended pair"
    assert span(timeline, 0, "dispatch") == span(timeline, 1, "dispatch")
    assert span(timeline, 0, "dispatch")[0] == gates[1]
    assert span(timeline, 0, "combine") == span(timeline, 1, "combine")


def test_dispatch_carries_what_the_fullest_replica_sends() -> None:
    def took(*prompts: int) -> int:
        start, end = span(timeline_of(*((0, prompt, 1) for prompt in prompts)), 0, "dispatch")
        return end - start

    assert took(4, 40) == took(40, 4) == took(40, 40)
    # Each of 40 tokens goes to 2 experts with 1,000 bytes; half of them are on the other rank, 1 byte takes 1 ns.
    assert took(4, 40) - took(4, 20) == 20 * 2 * 1000 // 2


def test_replica_without_work_brings_a_dummy_batch() -> None:
    timeline = timeline_of((0, 4, 3))
    steps = timeline.steps
    idle = steps["replica"] == 1
    assert steps["count"][idle].sum() == steps["count"][~idle].sum() == 3
    assert not steps["prefill_tokens"][idle].any()
    assert not steps["decode_tokens"][idle].any()
    assert [name for name, _, _ in lane(timeline, 0)] == [name for name, _, _ in lane(timeline, 1)]
    assert set(timeline.facts["replica"].tolist()) == set(timeline.chunks["replica"].tolist()) == {0}


def test_tables_name_the_replica_whose_request_it_is() -> None:
    timeline = timeline_of((0, 4, 3), (0, 5, 4), (10, 6, 3))
    for table in (timeline.facts, timeline.chunks, timeline.decodes):
        assert {(int(r), int(q)) for r, q in zip(table["replica"], table["request"], strict=True)} == {
            (0, 0), (1, 1), (0, 2),
        }  # fmt: skip
    spans = timeline.unfold()
    assert np.array_equal(spans.replica, spans.rank)
    assert np.array_equal(timeline.unfold(ranks=[1]).rank, np.ones(len(spans) // 2))


def test_tokens_of_every_replica_come_at_the_ends_of_the_steps_of_all() -> None:
    timeline = timeline_of((0, 4, 5), (0, 4, 5))
    assert token_times(timeline, 2).first_ns.tolist() == [int(timeline.steps["end_ns"].min())] * 2
    gaps, weights = token_times(timeline, 2).gaps
    assert weights.sum() == 2 * 4
    assert (gaps > 0).all()


def test_dummy_batch_is_of_the_kind_of_what_the_others_run() -> None:
    nothing, decodes = StepBatch(), StepBatch(decode_sequences=(3,), decode_keys=(30,))
    prompt = StepBatch(chunks=(Chunk(request=7, start=0, count=5),))
    prefill = together([nothing, prompt])
    assert prefill.kind == "prefill"
    assert [(chunk.request, chunk.count, chunk.owner) for chunk in prefill.chunks] == [(-1, 1, 0), (7, 5, 1)]
    assert together([nothing, decodes]).decode_sequences == (1, 3)
    assert together([nothing, decodes]).decode_keys == (1, 30)
    mixed = together([decodes, prompt])
    assert (mixed.kind, mixed.decode_sequences) == ("mixed", (3, 0))


def test_only_experts_see_the_tokens_of_all_replicas() -> None:
    batch = StepBatch(
        chunks=(Chunk(request=0, start=8, count=4), Chunk(request=1, start=0, count=6, owner=1)),
        decode_sequences=(2, 0), decode_keys=(20, 0),
    )  # fmt: skip
    found = features_of(batch, wide(2).lockstep.sp)
    assert found["tokens"] == (6.0, 6.0)
    assert found["prefill_tokens"] == (4.0, 6.0)
    assert found["exposed_tokens"] == (12.0, 6.0)
    assert found["sequences"] == (3.0, 1.0)
    assert found["pairs"] == (9.0 + 10 + 11 + 12, 21.0)
    assert found["decode_keys"] == (20.0, 0.0)
    assert found["stage_tokens"] == (12.0, 12.0)
    assert found["peak_tokens"] == (6.0, 6.0)


def plain_ends(template: PassTemplate, durations: list[int]) -> list[int]:
    ends: list[int] = []
    free: dict[tuple[int, int], int] = {}
    for s_set, stream, after, length in zip(
        template.instance_s, template.instance_stream.tolist(), template.after, durations, strict=True
    ):
        ready = [ends[before] for before in after] + [free.get((s, stream), 0) for s in s_set]
        ends.append(max(ready, default=0) + length)
        free |= {(s, stream): ends[-1] for s in s_set}
    return ends


def test_equal_layers_of_replicas_that_meet_are_walked_once() -> None:
    prepared = Prepared(deployment([(0, 1, 1)], plan=wide(16, ep=4), layers=9, layer=SPARSE))
    template = prepared.pools[0].programs[0, 0]["mixed"].template
    assert max(one.times for one in template.path.stretches) >= 8
    assert len(template.path.term) < len(template.waits) / 9
    draw = np.random.Generator(np.random.PCG64(3))
    several = draw.integers(1, 1000, (5, template.num_classes))
    for by_class in several:
        by_instance = by_class[template.instance_class]
        assert template.ends(by_instance).tolist() == plain_ends(template, by_instance.tolist())
    assert template.total_times(several).tolist() == [template.pass_times(one)[0] for one in several]


@pytest.mark.parametrize("scheduler", ["continuous", "chunked_prefill", "static"])
@pytest.mark.parametrize(("dp", "tp", "ep"), [(2, 1, 2), (3, 1, 1), (2, 2, 4), (2, 2, 2), (4, 1, 4)])
def test_replays_agree_in_lockstep(dp: int, tp: int, ep: int, scheduler: str) -> None:
    arrivals = [(0, 9, 7), (0, 30, 3), (0, 5, 12), (40_000, 12, 9), (300_000, 3, 5), (300_000, 70, 2), (900_000, 4, 4)]
    given = deployment(
        arrivals, plan=wide(dp, tp=tp, ep=ep), layers=2, layer=SPARSE, kv_blocks=20, scheduler=scheduler,
        max_batch_tokens=32, max_batch_requests=4,
    )  # fmt: skip
    agree(given)
    agree(replace(given, horizon_ns=500_000))


def judged(timeline: Timeline, scope: str) -> set[str]:
    given = Declared(dp=2, ep=2, ep_scope=scope, block_tokens=4, pool_blocks=1000)
    history = History(
        pools=(given,), steps=timeline.steps, chunks=timeline.chunks, decodes=timeline.decodes, facts=timeline.facts,
        folded=timeline,
    )  # fmt: skip
    return {violation.rule for violation in check_history(history).violations}


def renamed(timeline: Timeline, old: str, new: str) -> Timeline:
    """Give an operator another name in every template."""
    templates = tuple(
        replace(one, symbols=tuple((new if name == old else name, op, part) for name, op, part in one.symbols))
        for one in timeline.templates
    )
    return replace(timeline, templates=templates)


def test_audit_lets_dispatch_and_combine_join_replicas_and_nothing_else() -> None:
    timeline = timeline_of((0, 4, 3), (0, 9, 5))
    assert judged(timeline, "global") == set()
    assert judged(timeline, "replica") == {"RUN-2"}  # its passes are on ranks that no stage of a replica has
    assert "DP-3" in judged(renamed(timeline, "dispatch", "o_proj_all_reduce"), "global")


def test_audit_misses_the_step_of_a_replica_that_was_left_behind() -> None:
    timeline = timeline_of((0, 4, 3), (0, 9, 5))
    kept = timeline.steps["replica"] != 1
    history = replace(timeline, steps={name: values[kept] for name, values in timeline.steps.items()})
    assert judged(history, "global")


@pytest.mark.parametrize("degrees", [{"pp": 2}, {"sp": {
    "degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}}])  # fmt: skip
def test_stages_and_segments_of_replicas_that_share_experts_are_refused(degrees: dict[str, object]) -> None:
    document = {
        "name": "refused",
        "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
        "plan": {"dp": 2, "ep": {"degree": 2, "scope": "global"}, **degrees},
        "workload": {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 5, "output_tokens": 2, "requests": 1},
        "run": {},
    }
    with pytest.raises(InputError, match="at pp 1 and sp 1"):
        simulate(scenario_of(document))


SHARED = {"dp": 2, "ep": {"degree": 2, "scope": "global"}}


def pools(prefill: dict[str, object], decode: dict[str, object], **serving: object) -> dict[str, object]:
    return {
        "name": "pools",
        "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
        "plan": {"prefill": prefill, "decode": decode},
        "serving": {
            "scheduler": "disaggregated", "kv_block_tokens": 4, "kv_blocks": 60, "max_batch_requests": 4,
            "max_batch_tokens": 64, "prefill": {"scheduler": "continuous"}, "decode": {"scheduler": "continuous"},
            **serving,
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "2000/s"}, "prompt_tokens": {"uniform": {"low": 5, "high": 50}},
            "output_tokens": {"uniform": {"low": 1, "high": 30}}, "requests": 12,
        },
        "run": {},
    }  # fmt: skip


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
@pytest.mark.parametrize(("prefill", "decode"), [(SHARED, SHARED), (SHARED, {"dp": 2}), ({"tp": 2}, SHARED)])
def test_pools_that_share_experts_hand_over(prefill: dict[str, object], decode: dict[str, object], transfer) -> None:
    document = pools(prefill, decode, transfer=transfer)
    folded, full = (simulate(scenario_of(document, replay=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert check_history(history_of_run(folded)).verdict == "legal"
    passes, shapes = folded.timeline.passes["replica"], folded.timeline.layout.pools
    apart = [shape.first_replica + replica for shape, plan in zip(shapes, (prefill, decode), strict=True)
             for replica in range(1 if plan is SHARED else plan.get("dp", 1))]  # fmt: skip
    assert sorted(set(passes.tolist())) == apart, "a pass of replicas in lockstep is recorded as of the first of them"
    moved = folded.timeline.moves
    assert set(moved["from_rank"].tolist()) == {0, 1}
    assert set(moved["to_rank"].tolist()) <= {2, 3}


def test_stages_of_a_pool_that_shares_experts_are_refused_where_they_are_written() -> None:
    with pytest.raises(InputError, match=r"plan\.decode\.ep\.scope: .* can be simulated at pp 1 and sp 1, found pp 2"):
        simulate(scenario_of(pools({}, SHARED | {"pp": 2})))


# --- what it measures -----------------------------------------------------------------------------------------------

MIXED = [(0, 9, 7), (0, 30, 3), (40_000, 12, 9), (300_000, 3, 5), (900_000, 4, 4)]


@pytest.mark.parametrize("mode", ["full", "folded"])
@pytest.mark.parametrize(("dp", "tp", "ep"), [(2, 1, 2), (3, 1, 3), (2, 2, 4), (16, 1, 16)])
def test_busy_and_exposed_times_are_those_of_the_spans(mode: Mode, dp: int, tp: int, ep: int) -> None:
    experts = replace(SPARSE, ffn=replace(SPARSE.ffn, num_experts=ep * 2))
    timeline = replay(deployment(MIXED, plan=wide(dp, tp=tp, ep=ep), layers=2, layer=experts, mode=mode)).timeline
    usage, spans = usage_of(as_one_replica(timeline), 1), timeline.unfold()
    busy = np.zeros((dp * tp, len(STREAMS)), np.int64)
    np.add.at(busy, (spans.rank, spans.stream), spans.end_ns - spans.start_ns)
    assert np.array_equal(usage.busy_ns, busy)
    assert usage.exposed_ns.tolist() == [exposed_ns(spans, rank) for rank in range(dp * tp)]
    first = timeline.steps["replica"] == 0
    steps = (timeline.steps["end_ns"] - timeline.steps["start_ns"])[first]
    assert usage.held_ns.tolist() == [[steps.sum()]]
    assert usage.in_flight_ns.tolist() == [steps.sum()]


def test_features_of_steps_are_those_that_they_were_priced_by(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: dict[str, list[Features]] = {"prefill": [], "decode": [], "mixed": []}
    whole = Pricer.features

    def noted(pricer: Pricer, batch: StepBatch) -> Features:
        found = whole(pricer, batch)
        if batch.num_decodes == 0 or max(batch.decode_keys) > 0:  # a row of decodes is priced without its keys
            priced[batch.kind].append(found)
        return found

    monkeypatch.setattr(Pricer, "features", noted)
    timeline = replay(deployment(MIXED, plan=wide(3), layer=SPARSE, mode="full", max_batch_tokens=16)).timeline
    recorded = lockstep_features(timeline)
    assert {kind for _, kind in recorded} == set(priced)
    for (_, kind), steps in recorded.items():
        assert set(steps.counts.tolist()) == {1}
        for name, values in steps.features.items():
            if name not in ("segment_tokens", "all_prefill_tokens"):
                assert values.tolist() == [list(features[name]) for features in priced[kind]], (kind, name)


def test_a_deployment_in_lockstep_is_measured() -> None:
    document = {
        "name": "measured",
        "topology": {"name": "dgx-h100", "nodes": 1, "price": "2 USD/h"},
        "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
        "plan": {"dp": 4, "ep": {"degree": 4, "scope": "global"}},
        "workload": {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 500, "output_tokens": 9, "requests": 8},
        "run": {},
    }
    found = summary_of(simulate(scenario_of(document)))
    alone = summary_of(simulate(scenario_of(document | {"plan": {"dp": 4}})))
    assert all(found[name] is not None for name in ("utilisation", "links", "energy", "cost", "kv_occupancy"))
    used = found["utilisation"]
    assert 0 < used["mfu"] < used["compute"] < 1
    assert 0 < used["exposed_communication"] <= used["communication"] < 1
    assert len(used["devices"]) == 4
    # the same tokens need the same FLOPs, with or without shared experts
    flops = [one["utilisation"]["mfu"] * one["makespan_s"] for one in (found, alone)]
    assert flops[0] == pytest.approx(flops[1], rel=0.01)


@pytest.mark.parametrize(
    "faults",
    [
        [{"device": 1, "at": "1 ms", "until": "4 ms"}],
        [
            {"device": 0, "at": "1 ms", "until": "4 ms", "lose": "lose"},
            {"link": ["n0.g1", "n0.nvswitch"], "at": "6 ms"},
        ],
        [{"device": 1, "at": "1 ms", "until": "4 ms", "slowdown": 3.0}],
        [],
    ],
)
def test_replicas_that_share_experts_fail_and_come_back_together(faults):
    given = document(
        model={"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
        plan={"dp": 2, "tp": 1, "ep": {"degree": 2, "scope": "global"}},
        workload={"arrivals": {"process": "all_at_once"}, "cancel_after": {"share": 0.5, "fixed": "5 ms"}},
        serving={"queue_timeout": "20 ms"},
        faults=faults,
    )
    assert account_for(given).total() == 8
    facts = simulate(scenario_of(given)).timeline.facts
    preempted = facts["kind"] == FACT_KINDS.index("preempted")
    together = [0, 1] if any("slowdown" not in fault for fault in faults) else []
    assert sorted(set(facts["replica"][preempted & (facts["time_ns"] == 1_000_000)].tolist())) == together
