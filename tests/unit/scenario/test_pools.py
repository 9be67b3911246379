"""The keys of a prefill and a decode pool: what they become, where their devices are, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from clustersim.errors import InputError
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import check_scenario, problem


def document(plan: Any = None, **serving: Any) -> dict[str, Any]:
    return {
        "name": "pools",
        "topology": {"name": "dgx-a100", "nodes": 1},
        "model": "opt-13b",
        "plan": {"prefill": {"tp": 2}, "decode": {"pp": 2}} if plan is None else plan,
        "serving": {"scheduler": "disaggregated"} | serving,
        "workload": {
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"fixed": 8},
            "output_tokens": {"fixed": 2},
            "requests": 1,
        },
    }


def built(whole: dict[str, Any]) -> Scenario:
    return build_scenario(parse_yaml(yaml.safe_dump(whole), "pools.yaml"))


def test_a_pool_has_its_own_keys_and_else_those_of_serving():
    own = {"scheduler": "continuous", "max_batch_tokens": 2048, "order": "shortest_prompt"}
    found = built(document(max_batch_requests=7, prefill=own, decode={"router": "least_outstanding"}))
    prefill, decode = found.pools
    assert (prefill.name, prefill.plan.tp, prefill.plan.placement) == ("prefill", 2, None)
    assert (decode.name, decode.plan.pp, decode.plan.placement) == ("decode", 2, (2, 3))
    told = [(p.serving.scheduler, p.serving.max_batch_tokens, p.serving.max_batch_requests) for p in found.pools]
    assert told == [("continuous", 2048, 7), ("chunked_prefill", 2048, 7)]  # by vLLM, on A100s
    assert (prefill.serving.order.by, decode.serving.order.by) == ("shortest_prompt", "arrival")
    assert (prefill.serving.router, decode.serving.router) == ("round_robin", "least_outstanding")


def test_the_prefill_pool_may_name_the_router_that_follows_its_prefixes():
    options = {"cache_threshold": 0.5}
    found = built(document(prefix_caching=True, prefill={"router": "prefix_aware"}, router_options=options))
    prefill, decode = (pool.serving for pool in found.pools)
    assert (prefill.router, prefill.prefix_routing.cache_threshold) == ("prefix_aware", 0.5)
    assert decode.router == "round_robin"


def test_the_resolved_document_is_the_same_scenario():
    found = built(document(prefill={"scheduler": "continuous"}, transfer="whole"))
    assert set(found.document["plan"]) == {"prefill", "decode"}
    again = built(dict(found.document))
    assert (again.digest, again.pools) == (found.digest, found.pools)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"prefill": {"tp": 2}, "decode": {"tp": 1, "placement": [0]}}, [(1, 2), (0,)]),
        ({"prefill": {"tp": 2, "placement": [1, 3]}, "decode": {"tp": 4}}, [(1, 3), (0, 2, 4, 5)]),
    ],
)
def test_packed_ranks_are_on_devices_that_the_other_pool_leaves_free(plan, expected):
    assert [pool.plan.placement for pool in built(document(plan)).pools] == expected


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (document({"tp": 2}), "plan.prefill: is missing; scheduler: disaggregated needs it"),
        (document({"prefill": {}}), "plan.decode: is missing; scheduler: disaggregated needs it"),
        (document({"tp": 2, "prefill": {}, "decode": {}}), "plan.tp: say it of each pool"),
        (document(scheduler="continuous"), "plan.prefill: a pool of its own goes with"),
        (document({}, scheduler="continuous", decode={"router": "round_robin"}), "serving.decode: goes with"),
        (document(prefill={"scheduler": "static"}), "a pool has the scheduler continuous or chunked_prefill"),
        (document(decode={"router": "round_robbin"}), "no router 'round_robbin'; did you mean 'round_robin'?"),
        (document(decode={"router": "prefix_aware"}), "serving.decode.router: the decode pool has no cached prefixes"),
        (
            document(prefix_caching=False, prefill={"router": "prefix_aware"}),
            "serving.prefill.router: the router prefix_aware asks for",
        ),
        (document(prefill={"router": "a.py:B"}), "serving.prefill.router: a router from a file is that of both pools"),
        (
            document(prefix_caching=True, prefill={"router": "prefix_aware"}, router_options={"cache_threshold": 2}),
            "serving.router_options.cache_threshold: found 2; expected a share",
        ),
        (document(decode={"kv_block_tokens": 8}), "serving.decode.kv_block_tokens: unknown key"),
        (
            document({"prefill": {"sp": 2}, "decode": {}}, transfer="layerwise"),
            "serving.transfer: the K/V of prompts that SP ranks share is brought together behind the last layer",
        ),
        (
            document(prefix_caching=True, router="prefix_aware"),
            "serving.router: the decode pool has no cached prefixes to follow; name its router",
        ),
        (document(transfer="wohle"), "serving.transfer: expected one of whole, layerwise"),
        (document(decode={"order": {"patience": "1 s"}}), "serving.decode.order.patience: in order of arrival"),
        (
            document(long_prompt_tokens=64, prefill={"scheduler": "continuous"}),
            "serving.long_prompt_tokens: the prefill pool's scheduler continuous takes whole prompts",
        ),
        (document({"prefill": {"placement": ["n0.g9"]}, "decode": {}}), "plan.prefill.placement"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_with_its_place(whole, message):
    with pytest.raises(InputError) as found:
        built(whole)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("plan", "where", "message"),
    [
        ({"prefill": {"tp": 3}, "decode": {}}, "plan.prefill.tp", "attention heads"),
        ({"prefill": {}, "decode": {"tp": 3}}, "plan.decode.tp", "attention heads"),
        ({"prefill": {"tp": 8}, "decode": {}}, "plan.decode.dp", "prefill has 8 ranks and decode 1"),
        ({"prefill": {}, "decode": {"sp": {"degree": 2, "decode": "dp"}}}, "plan.decode.sp", "no tokens to split"),
        ({"prefill": {"sp": {"degree": 2, "decode": "dp"}}, "decode": {}}, "plan.prefill.sp.scheme", "by which scheme"),
        (
            {"prefill": {"placement": [1]}, "decode": {"placement": [1]}},
            "plan.decode.placement", "device n0.g1 has a rank of both pools",
        ),
    ],
)  # fmt: skip
def test_check_judges_both_plans_and_that_they_are_apart(plan, where, message):
    scenario = built(document(plan))
    verdict = check_scenario(scenario)
    assert verdict.verdict == "illegal"
    found = next(one for one in verdict.violations if one.where == where)
    assert message in found.message
    assert str(problem(scenario, found)).startswith("pools.yaml:")


@pytest.mark.parametrize(
    ("plan", "where", "fix"),
    [
        ({"prefill": {"tp": 8}, "decode": {"tp": 8}}, "plan.decode.dp", "use fewer replicas, or a larger topology"),
        ({"prefill": {"tp": 4, "dp": 4}, "decode": {"tp": 8}}, "plan.prefill.dp", "use plan.prefill.dp 2 or"),
    ],
)  # fmt: skip
def test_pools_with_too_few_devices_are_told_so_once(plan, where, fix):
    (found,) = check_scenario(built(document(plan))).violations
    assert found.where == where
    assert found.fix.startswith(fix)


def test_check_looks_at_both_pools_plans_and_graphs():
    verdict = check_scenario(built(document()))
    assert verdict.verdict == "legal"
    assert len({(rule.level, rule.id) for rule in verdict.rules}) == len(verdict.rules)
    assert {rule.level for rule in verdict.rules if rule.looked_at} == {"P", "G"}
