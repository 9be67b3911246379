"""``python -m sglang.launch_server`` commands for a server, by the table of :mod:`clustersim.interop.keys`.

Options are those of SGLang 0.5.23 (sglang/srt/arg_groups: fields, choices, parallel_hook.py); attention data
parallelism, experts and stages lie inside ``--tp-size``, and its chunk is shared among replicas (server_args.py:1313
at 64cf868eb), as is ``--max-running-requests`` (model_runner.py; general knowledge, not re-fetched).
"""

from __future__ import annotations

from typing import Final

from clustersim.interop.keys import BALANCERS, DEEPEP_MODES, DTYPES, SGLANG, SGLANG_KV_DTYPES, word_for
from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import HEAD, PORT, Server, Started
from clustersim.interop.launch.utilization import utilization
from clustersim.interop.launch.versions import Version, choices_of, has, when
from clustersim.interop.launch.vllm import PLAIN, checkpoint_format
from clustersim.serving.order import UNLIMITED

POLICIES: Final = {"round_robin": "round_robin", "prefix_aware": "cache_aware", "power_of_two": "power_of_two"}
"""Router of a scenario → policy of SGLang's router (router_args.py of sglang-router 0.3.2)."""
NEWEST: Final = (0, 5, 23)
"""The release whose options :mod:`clustersim.interop.sglang_flags` has."""
SOFT: Final = ("serving.engine.graph_max_tokens", "serving.queue_limit", "serving.order.by", "plan.ep.redundant")
"""Keys without which a server of an older release runs, if otherwise; without others it is refused."""
BOOTSTRAP_PORT: Final = 8998
NODES_PORT: Final = 20000


def sglang_server(server: Server, account: Account, version: Version | None) -> Started:
    """Return what starts a server with SGLang; what it cannot say goes to the account.

    Parameters
    ----------
    server : Server
    account : Account
    version : tuple of int or None
        Of the scenario's engine; None: the newest.
    """
    program = ("python", "-m", "sglang.launch_server", "--model-path", server.model_name)
    started = Started(server=server, engine="sglang", program=program, version=version or NEWEST)
    _plan(started, account)
    _precision(started, account)
    _serving(started, account)
    if server.pool:
        started.options |= {"--disaggregation-mode": server.pool, "--disaggregation-transfer-backend": "nixl"}
        if server.pool == "prefill":
            started.options["--disaggregation-bootstrap-port"] = str(BOOTSTRAP_PORT)
    started.options |= {"--host": "0.0.0.0", "--port": str(PORT if server.pool != "decode" else PORT + 100)}
    return started


def _put(started: Started, account: Account, key: str, value: object = None) -> None:
    name = SGLANG[key]
    if key in SOFT and not has("sglang", name, started.version):
        account.leaves(started.server, key, f"SGLang has {name} {when('sglang', name)}")
        return
    started.options[name] = None if value is None else str(value)
    account.says(started.server, key)


def _plan(started: Started, account: Account) -> None:
    server, plan, ep = started.server, started.server.plan, started.server.plan.ep
    if plan.sp.degree > 1:
        account.refuse(
            f"SGLang has no sequence parallelism of such ranks (plan.sp.degree: {plan.sp.degree}; its "
            "--attn-cp-size lies inside --tp-size); take sp 1"
        )
    wide = plan.is_lockstep
    inside = plan.tp * (plan.dp if wide else 1)
    account.says(server, "plan.tp.degree", "plan.ep.degree", "plan.ep.scope", "plan.decode_overlap")
    _put(started, account, "plan.tp", inside)
    _put(started, account, "plan.pp", plan.pp)
    if wide:
        if has("sglang", "--attn-dp-size", started.version):
            started.options["--attn-dp-size"] = str(plan.dp)
        else:
            started.options |= {"--dp-size": str(plan.dp), "--enable-dp-attention": None}
        account.says(server, "plan.dp")
    ranks = inside * plan.pp
    started.devices, started.nodes = ranks, server.nodes_of(ranks)
    _replicas(started, account, wide=wide, ranks=ranks)
    if ep.degree == 1:
        account.says(server, "plan.ep")  # with one rank nothing is placed
    elif server.is_moe:
        _put(started, account, "plan.ep.degree", ep.degree)
        account.says_exchange(server, "all_gather")
        if ep.exchange not in ("all_reduce", "all_gather") and ep.degree == inside:
            started.options["--moe-a2a-backend"] = "deepep"
            account.says(server, "plan.ep.exchange")
            if (mode := word_for(ep.exchange, DEEPEP_MODES)) != "auto":
                _put(started, account, "plan.ep.exchange", mode)
        if ep.redundant:
            _put(started, account, "plan.ep.redundant", ep.redundant)
        if ep.placement != "contiguous":
            account.leaves(server, "plan.ep.placement", "SGLang places experts in order, or by what it measured")
        if ep.overlap == "two_batch":
            if "--moe-a2a-backend" not in started.options:
                account.refuse(
                    f"SGLang overlaps two batches with --moe-a2a-backend only, found plan.ep.exchange: {ep.exchange}; "
                    "take plan.ep.exchange=deepep_normal, over all ranks"
                )
            _put(started, account, "plan.ep.overlap")
            for kind in ("decode", "prefill"):
                account.leaves(server, f"plan.ep.overlap_{kind}_tokens", "SGLang has thresholds of its own")
    account.says(server, "plan.stages")
    layers = account.whole_layers(server)
    if layers is not None and plan.pp > 1 and (plan.stages is not None or len(server.model.layers) % plan.pp):
        started.environment[SGLANG["plan.stages"]] = ",".join(map(str, layers))
    why = "SGLang takes the devices of each node in order; CUDA_VISIBLE_DEVICES shows it others"
    account.place(started, started.devices, why)
    if started.nodes > 1:
        started.options |= {"--dist-init-addr": f"{HEAD}:{NODES_PORT}", "--nnodes": str(started.nodes)}
        started.per_node = tuple({"--node-rank": str(node)} for node in range(started.nodes))


def _replicas(started: Started, account: Account, *, wide: bool, ranks: int) -> None:
    """Write replicas that share nothing: of one server on one node, else of one each."""
    server, dp = started.server, started.server.plan.dp
    router = str(server.serving.router)  # one of a user's is none of SGLang's
    balancer = word_for(router, BALANCERS)
    known = choices_of("sglang", SGLANG["serving.router"], started.version)
    balancer = balancer if not known or balancer in known else None
    account.says(server, "serving.router_options", "serving.router")
    if dp == 1:
        account.says(server, "plan.dp")
    elif wide:
        if balancer is None:
            account.leaves(server, "serving.router", "SGLang sends requests to attention ranks in turn")
        else:
            _put(started, account, "serving.router", balancer)
    elif started.nodes == 1 and ranks * dp <= server.devices_per_node and balancer is not None:
        _put(started, account, "plan.dp", dp)
        _put(started, account, "serving.router", balancer)
        started.devices = ranks * dp
    else:
        started.copies = dp
        urls = f"start {dp} such servers, and their addresses as --worker-urls of the router"
        if router in POLICIES and not server.pool:
            account.leaves(server, "plan.dp", f"{urls}, with --policy {POLICIES[router]}")
        else:
            account.leaves(server, "plan.dp", urls)
        if not server.pool and router not in POLICIES:
            account.leaves(
                server, "serving.router", "SGLang's router has random, round_robin, cache_aware, power_of_two"
            )


def _precision(started: Started, account: Account) -> None:
    wanted, server = started.server.scenario.precision, started.server
    plain = wanted.activations if wanted.activations in PLAIN else "bf16"
    dtype: str | None = word_for(plain, DTYPES)
    _put(started, account, "precision.activations", dtype)
    if plain != wanted.activations:
        account.leaves(None, "precision.activations", "SGLang keeps activations in 16 or 32 bits")
    held = checkpoint_format(server)
    if wanted.weights == "fp8" and held in PLAIN:
        _put(started, account, "precision.weights", "fp8")
    elif wanted.weights not in PLAIN or held not in PLAIN:
        if wanted.weights != held:
            account.refuse(
                f"SGLang loads weights in {wanted.weights} from a checkpoint that has them, and "
                f"{server.model_name} has {held}; name one with --model"
            )
    elif wanted.weights != plain:
        account.leaves(None, "precision.weights", f"SGLang keeps weights as activations, in {plain}")
    cache = word_for(wanted.kv_cache, SGLANG_KV_DTYPES)
    if wanted.kv_cache == plain:
        account.says(None, "precision.kv_cache")
    elif cache is not None:
        _put(started, account, "precision.kv_cache", cache)
    else:
        account.refuse(f"SGLang keeps K/V as activations, in bf16 or in fp8, not in {wanted.kv_cache} (choices.py)")
    if server.longest is not None:
        _put(started, account, "model.config.max_position_embeddings", server.longest)
    if server.serving.context_window is not None:
        account.says(server, "serving.context_window")


def _serving(started: Started, account: Account) -> None:
    serving, server = started.server.serving, started.server
    shared = server.plan.dp if server.plan.is_lockstep else 1
    _put(started, account, "serving.max_batch_tokens", serving.max_batch_tokens)
    chunked = serving.scheduler != "continuous"
    started.options["--chunked-prefill-size"] = str(serving.max_batch_tokens * shared) if chunked else "-1"
    if chunked and not server.pool:
        _put(started, account, "serving.scheduler")
    account.says(server, "serving.scheduler", "serving.scheduler_options", "serving.order.patience")
    if serving.scheduler not in ("chunked_prefill", "continuous"):
        account.leaves(server, "serving.scheduler", "SGLang runs chunked prefill")
    if serving.order.by == "shortest_prompt":
        account.leaves(server, "serving.order.by", "SGLang takes requests up as they arrive")
    else:
        account.says(server, "serving.order.by")
    if serving.order.by == "priority":
        _put(started, account, "serving.order.by")
    if SGLANG["serving.order.by"] in started.options:
        started.options["--schedule-low-priority-values-first"] = None
    if serving.order.by == "priority" and serving.order.patience_ns != UNLIMITED:
        account.leaves(server, "serving.order.patience", "in SGLang the priority always decides first")
    if serving.long_prompt_tokens is not None:
        account.leaves(server, "serving.long_prompt_tokens", "SGLang's chunks have one size")
    _put(started, account, "serving.max_batch_requests", serving.max_batch_requests * shared)
    _put(started, account, "serving.kv_block_tokens", serving.kv_block_tokens)
    if serving.kv_blocks is not None:
        _put(started, account, "serving.kv_blocks", serving.kv_blocks * serving.kv_block_tokens)
    _put(started, account, "serving.memory_utilization", utilization(server, "sglang", account))
    if not serving.prefix_caching:
        _put(started, account, "serving.prefix_caching")
    account.says(server, "serving.prefix_caching")
    account.says(server, "serving.preemption", "serving.admission")
    if serving.admits_first_chunks:
        account.leaves(server, "serving.admission", "SGLang admits a request when its whole prompt fits")
    if serving.preemption != "recompute":
        account.leaves(server, "serving.preemption", "SGLang computes retracted requests anew")
    if serving.preemption == "swap":
        account.leaves(server, "serving.host_kv", "SGLang swaps no K/V of requests that run")
    if serving.queue_limit is not None:
        _put(started, account, "serving.queue_limit", serving.queue_limit)
    if serving.queue_timeout_ns is not None:
        account.leaves(server, "serving.queue_timeout", "requests wait for as long as it takes")
    most = server.scenario.engine.graph_max_tokens
    key = "serving.engine.graph_max_tokens"
    if most and server.has_graphs_by_itself and not has("sglang", SGLANG[key], started.version):
        account.says(server, key)
    elif most:
        _put(started, account, key, most)
    else:
        started.options["--disable-cuda-graph"] = None
