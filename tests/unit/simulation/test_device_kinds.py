"""Clusters of several kinds of devices: groups of nodes, and pools that are each priced and sized by their own."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from clustersim.errors import InputError
from clustersim.report.metrics.measures import measures
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.audit import audit_run
from clustersim.simulation.replay_input import kv_blocks
from clustersim.simulation.simulate import RunResult, simulate

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"
APART = {"prefill": {"tp": 2, "placement": H100}, "decode": {"tp": 2, "placement": A100}}
NODE = {
    "devices_per_node": 2, "scaleup_bandwidth": "300 GB/s", "scaleup_latency": "0.3 us", "pcie_bandwidth": "32 GB/s",
    "pcie_latency": "0.5 us", "nic_bandwidth": "25 GB/s", "nic_latency": "0.85 us",
}  # fmt: skip


def document(plan: Any = None, topology: Any = "h100-and-a100", **more: Any) -> dict[str, Any]:
    return {
        "name": "kinds",
        "topology": topology,
        "model": "llama-3.1-8b",
        "plan": APART if plan is None else plan,
        "serving": {"scheduler": "disaggregated"},
        "workload": {
            "arrivals": {"process": "constant", "rate": "20/s"},
            "prompt_tokens": {"fixed": 1000},
            "output_tokens": {"fixed": 8},
            "requests": 4,
        },
    } | more


def built(whole: dict[str, Any]) -> Scenario:
    return build_scenario(parse_yaml(yaml.safe_dump(whole), "kinds.yaml"))


def ran(whole: dict[str, Any]) -> RunResult:
    return simulate(built(whole))


def groups(*devices: str) -> dict[str, Any]:
    found = [{"device": device, **NODE} for device in devices]
    return {"name": "few", "fabric": {"kind": "groups", "groups": found, "fabric_latency": "0.3 us"}}


def test_nodes_of_each_group_have_its_device_and_reach_the_others_over_their_own_nics():
    found = built(document()).topology
    assert (found.of_kind(H100), found.of_kind(A100)) == (tuple(range(8)), tuple(range(8, 16)))
    assert [found.seen_from(index).device.name for index in (0, 7, 8, 15)] == [H100, H100, A100, A100]
    assert (found.seen_from(0).in_switch_reduction, found.seen_from(8).in_switch_reduction) == (True, False)
    ends = [found.link_ends[link][1] for link in found.route(1, 10)]
    assert [end for end in ends if not end.startswith("spine")] == ["n0.nic1", "leaf0", "leaf1", "n1.nic2", "n1.g2"]
    assert found.transit(1, 10)[1] == 25e9  # the slower NIC


def test_each_pool_takes_the_time_that_it_takes_on_a_cluster_of_its_own_devices():
    mixed = ran(document())
    alone = {"prefill": {"tp": 2}, "decode": {"tp": 2}}
    h100, a100 = (ran(document(alone, {"name": name, "nodes": 1})) for name in ("dgx-h100", "dgx-a100"))

    def steps(result: RunResult, replica: int) -> list[int]:
        table = result.timeline.steps
        mine = (table["replica"] == replica) & (table["count"] == 1)
        return (table["end_ns"] - table["start_ns"])[mine].tolist()

    assert steps(mixed, 0) == steps(h100, 0)
    assert steps(mixed, 0)[0] < steps(a100, 0)[0]
    assert mixed.timeline.digest == ran(document(run={"replay": "full"})).timeline.digest
    assert audit_run(mixed).violations == ()
    with_a100 = [result.requests["finished_ns"].max() for result in (mixed, a100, h100)]
    assert with_a100[0] > with_a100[2]


def test_k_v_pools_are_what_the_memory_of_their_devices_leaves():
    whole = document({"prefill": {"placement": "l40s"}, "decode": {"placement": H100}}, groups("l40s", H100))
    prefill, decode = (kv_blocks(one) for one in built(whole).each_pool())
    assert prefill < decode / 2
    assert prefill == kv_blocks(built(document({}, {"name": "l40s-node"}, serving={})))


def test_use_and_energy_are_those_of_each_kind():
    result = ran(document())
    found = measures(result)
    pools = found["utilisation"]["pools"]
    both = ran(document({"prefill": {"tp": 2, "placement": H100}, "decode": {"tp": 2, "placement": H100}}))
    same = measures(both)["utilisation"]["pools"]
    longer = 1 if not pools else (pools["prefill"]["mfu"] / same["prefill"]["mfu"])
    assert longer < 1  # the same work on the same devices, while the run takes longer
    assert pools["decode"]["mfu"] / longer == pytest.approx(same["decode"]["mfu"] * 989.4 / 312, rel=1e-2)
    assert 0.15 * 400 < found["energy"]["idle_device_w"] * 4 / 3 < 0.15 * 700  # between that of both kinds


def test_the_resolved_document_is_the_same_scenario():
    found = built(document())
    again = built(dict(found.document))
    assert (again.digest, again.pools) == (found.digest, found.pools)


def test_ranks_are_packed_on_free_devices_of_their_kind():
    plan = {"prefill": {"dp": 2, "tp": 2, "placement": A100}, "decode": {"tp": 4, "placement": A100}}
    assert [pool.plan.placement for pool in built(document(plan)).pools] == [(8, 9, 10, 11), (12, 13, 14, 15)]
    assert built(document({"tp": 2, "placement": A100}, serving={})).topology.device.name == A100


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (document({"prefill": {"tp": 2}, "decode": {"tp": 2, "placement": "a100-sxm-80"}}), f"did you mean '{A100}'"),
        (
            document({"prefill": {"tp": 4}, "decode": {"tp": 8}}),
            "plan.decode.placement: ranks of one plan are to be on devices of one kind, found h100-sxm-80gb and a100",
        ),
        (document({"dp": 2, "tp": 8}, serving={}), "plan.placement: ranks of one plan are to be on devices of one"),
        (
            document({"prefill": {"tp": 8, "placement": A100}, "decode": {"tp": 8, "placement": A100}}),
            "plan.decode.placement: 8 ranks are to be on a100-sxm-80gb, of which h100-and-a100 has 0 free",
        ),
        (document(topology=groups("l40s", "h1")), "no device 'h1'"),
        (document(topology=groups("l40s", H100) | {"device": H100}), "each group of nodes names its device"),
        (document(topology={"name": "h100-and-a100", "price": "2 USD/h"}), "have prices of their own"),
        (document(topology={"name": "h100-and-a100", "nodes": 2}), "this kind of fabric has no 'nodes'"),
        (document(topology={"name": "h100-and-a100", "groups": []}), "expected a list of groups of nodes"),
        (document(precision={"weights": "fp8", "multiply": "fp8"}), "a100-sxm-80gb"),
    ],
)
def test_what_can_not_be_is_refused(whole, message):
    with pytest.raises(InputError) as found:
        built(whole)
    assert message in str(found.value)


POINTS = "op,device,m,n,k,seconds\n"


def test_measurements_of_several_kinds_say_which(tmp_path):
    table = tmp_path / "kernels.csv"
    table.write_text(POINTS + "gemm,,16,8192,8192,48.1e-6\n")
    with pytest.raises(InputError) as found:
        ran(document(cost={"table": str(table)}))
    assert f"the pools are on {H100} and {A100}: expected a column 'device'" in str(found.value)
    table.write_text(POINTS + f"gemm,{H100},16,8192,8192,48.1e-6\n")
    with pytest.raises(InputError) as found:
        ran(document(cost={"table": str(table)}))
    assert f"cost.table: has no point of device '{A100}'; it has some of {H100}" in str(found.value)


def test_each_pool_takes_the_measurements_of_its_device(tmp_path):
    table = tmp_path / "kernels.csv"

    def time(seconds_h100: float, seconds_a100: float) -> tuple[int, int]:
        table.write_text(POINTS + f"gemm,{H100},16,8192,8192,{seconds_h100}\ngemm,{A100},16,8192,8192,{seconds_a100}\n")
        engine = {"name": "vllm-0.19", "first_token": "prefill"}
        serving = {"scheduler": "disaggregated", "engine": engine}
        result = ran(document(cost={"table": str(table)}, serving=serving))
        assert audit_run(result).violations == ()
        first, last = result.requests["first_token_ns"], result.requests["finished_ns"]
        arrived = result.requests["arrived_ns"]
        return int((first - arrived)[0]), int((last - first)[0])

    base, slow_prefill, slow_decode = time(5e-5, 1e-4), time(5e-4, 1e-4), time(5e-5, 1e-3)
    assert slow_prefill[0] > 5 * base[0]
    assert slow_decode[1] > 3 * base[1]
    assert slow_decode[0] < 1.5 * base[0]


def test_prices_outside_of_the_measurements_are_told_of_the_device_of_each_pool(tmp_path):
    table = tmp_path / "kernels.csv"
    table.write_text(POINTS + f"gemm,{H100},16,8192,8192,5e-5\ngemm,{A100},16,8192,8192,1e-4\n")
    notes = ran(document(cost={"table": str(table)})).notes
    assert sum("prices of gemm lay outside the measured table" in note for note in notes) == 2
