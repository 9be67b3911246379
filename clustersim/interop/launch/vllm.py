"""``vllm serve`` commands for a server, by the table of :mod:`clustersim.interop.keys`.

Options are those of the release that the scenario simulates (:mod:`clustersim.interop.launch.versions`). Several nodes,
data parallelism over nodes and hand-overs as in vllm/engine/arg_utils.py, vllm/config/parallel.py,
docs/serving/data_parallel_deployment.md (01e4fce0) and docs/features/nixl_connector_usage.md (026c83f9).
"""

from __future__ import annotations

import json
from typing import Final

from clustersim.interop.keys import ALL2ALL, DTYPES, KV_DTYPES, PLACES, VLLM, word_for
from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import HEAD, PORT, Server, Started
from clustersim.interop.launch.utilization import utilization
from clustersim.interop.launch.versions import Version, has, reaches, when
from clustersim.model.hub import shipped_model
from clustersim.plan.exchange import DEEPEP
from clustersim.serving.order import UNLIMITED

NEWEST: Final = (0, 19)
_V1: Final = (0, 8)
"""Since when engine V1 is what serves."""
"""The release whose options :mod:`clustersim.interop.flags` has."""
RPC_PORT: Final = "13345"
PLAIN: Final = ("bf16", "fp16", "fp32")


def vllm_server(server: Server, account: Account, version: Version | None) -> Started:
    """Return what starts a server with vLLM; what it cannot say goes to the account.

    Parameters
    ----------
    server : Server
    account : Account
    version : tuple of int or None
        Of the scenario's engine; None: the newest.
    """
    version = version or NEWEST
    before_serve = not reaches(version, "0.6.0")  # vllm/scripts.py is there since then
    program = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model") if before_serve else ("vllm", "serve")
    started = Started(server=server, engine="vllm", program=(*program, server.model_name), version=version)
    writer = _Writer(started, account, version)
    writer.plan()
    writer.precision()
    writer.serving()
    if server.pool:
        writer.hand_over()
    return started


class _Writer:
    def __init__(self, started: Started, account: Account, version: Version) -> None:
        self._started, self._server, self._account = started, started.server, account
        self._version, self._words = version, f"vLLM {'.'.join(map(str, version))}"

    def _has(self, name: str) -> bool:
        return has("vllm", name, self._version)

    def _put(self, key: str, value: object = None) -> None:
        """Write the option of a key, if the release has it."""
        name = VLLM[key]
        if not self._has(name):
            self._account.leaves(self._server, key, f"vLLM has {name} {when('vllm', name)}")
            return
        self._started.options[name] = None if value is None else str(value)
        self._account.says(self._server, key)

    def plan(self) -> None:
        """Write the plan, nodes among it."""
        plan, account, server = self._server.plan, self._account, self._server
        self._put("plan.tp", plan.tp)
        account.says(server, "plan.tp.degree", "plan.ep.degree", "plan.ep.scope")
        self._put("plan.pp", plan.pp)
        if plan.sp.degree > 1:
            account.refuse(
                "vLLM has no sequence parallelism of such ranks (plan.sp.degree: "
                f"{plan.sp.degree}); take sp 1 and more of tp, pp or dp"
            )
        self._stages()
        inside, apart = self._experts(), not self._has(VLLM["plan.dp"]) and plan.dp > 1
        why = "by its own data parallelism vLLM would share every layer of experts among all replicas"
        if apart:
            inside, why = False, f"vLLM has {VLLM['plan.dp']} {when('vllm', VLLM['plan.dp'])}"
        engine_ranks = plan.tp * plan.pp * (plan.dp if inside else 1)
        self._started.copies = 1 if inside else plan.dp
        if not inside:
            account.leaves(
                server,
                "plan.dp",
                f"start {plan.dp} such servers behind a balancer: {why}",
            )
        elif plan.dp > 1:
            self._put("plan.dp", plan.dp)
        else:
            account.says(server, "plan.dp")
        self._router(inside)
        self._nodes(engine_ranks, inside)

    def _stages(self) -> None:
        plan, server = self._server.plan, self._server
        self._account.says(server, "plan.stages", "plan.decode_overlap")
        if plan.pp == 1:
            return
        if not reaches(self._version, "0.5.0"):  # vllm/config.py:416 of 0.3.3
            self._account.refuse(f"{self._words} has no pipeline parallelism; take plan.pp=1")
        layers = self._account.whole_layers(server)
        if layers is not None and (plan.stages is not None or len(server.model.layers) % plan.pp):
            self._started.environment[VLLM["plan.stages"]] = ",".join(map(str, layers))
        if plan.decode_overlap != "per_sequence":
            self._account.leaves(
                server, "plan.decode_overlap", "vLLM lets as many batches be in flight as it has stages"
            )

    def _experts(self) -> bool:
        """Write what is about experts, and return whether one server has all replicas."""
        plan, ep, server, account = self._server.plan, self._server.plan.ep, self._server, self._account
        if not server.is_moe or ep.degree == 1:
            account.says(server, "plan.ep")  # with one rank nothing is placed
            return not server.is_moe or plan.dp == 1
        ranks = plan.tp * plan.dp
        inside = plan.dp == 1 or ep.scope == "global"
        if ep.degree != (ranks if inside else plan.tp):
            account.refuse(
                f"vLLM spreads experts over all {ranks if inside else plan.tp} ranks of "
                f"{'TP × DP' if inside else 'TP'} or over none, found plan.ep.degree: {ep.degree}"
            )
        if self._has(VLLM["plan.ep.degree"]):
            self._put("plan.ep.degree")
        else:
            self._account.refuse(
                f"{self._words} splits each expert over the ranks of TP ({VLLM['plan.ep.degree']} is there "
                f"{when('vllm', VLLM['plan.ep.degree'])}); take plan.ep=1"
            )
        place = word_for(ep.placement, PLACES) if isinstance(ep.placement, str) else None
        if place is None:
            account.leaves(server, "plan.ep.placement", "vLLM places experts linearly or in turn, not by a list")
        elif place != "linear":
            self._put("plan.ep.placement", place)
        self._exchange()
        if ep.redundant:
            account.leaves(
                server,
                "plan.ep.redundant",
                "vLLM's balancer (--enable-eplb --eplb-config) keeps as many "
                "copies and moves them by the load that it measures",
            )
        if ep.overlap == "two_batch":
            if plan.pp > 1:
                account.refuse("vLLM refuses two batches that overlap (--enable-dbo) with several stages")
            if not self._has(VLLM["plan.ep.overlap"]):
                account.refuse(f"{self._words} has no {VLLM['plan.ep.overlap']}; take plan.ep.overlap=none")
            if ep.exchange not in DEEPEP:
                account.refuse(
                    f"vLLM overlaps two batches with DeepEP's kernels only, found plan.ep.exchange: {ep.exchange}; "
                    "take plan.ep.exchange=deepep_normal or deepep_low_latency"
                )
            self._put("plan.ep.overlap")
            self._put("plan.ep.overlap_decode_tokens", ep.overlap_decode_tokens)
            self._put("plan.ep.overlap_prefill_tokens", ep.overlap_prefill_tokens)
        return inside

    def _exchange(self) -> None:
        """Write how tokens get to experts of other replicas; inside one, vLLM keeps them where they are."""
        plan, account, server = self._server.plan, self._account, self._server
        key, way = "plan.ep.exchange", plan.ep.exchange
        account.says_exchange(server, "all_gather")
        if plan.is_lockstep and way == "all_to_all" and reaches(self._version, "0.14.0"):
            account.leaves(server, key, "vLLM has no plain all-to-all since 0.14; of itself it gathers all tokens")
        elif plan.is_lockstep and way != "all_gather":
            backend = word_for(way, ALL2ALL)
            self._put(key, backend)
        elif not plan.is_lockstep and way != "all_reduce":
            account.leaves(server, key, "inside one replica vLLM keeps tokens where they are, and all-reduces")

    def _router(self, inside: bool) -> None:
        server, account = self._server, self._account
        router = server.serving.router
        if server.plan.dp == 1 or (inside and router == "fewest_waiting"):
            account.says(server, "serving.router", "serving.router_options")
        elif inside:
            account.leaves(
                server,
                "serving.router",
                "vLLM sends a request to the replica with the smallest 4 × waiting + running; --set "
                "serving.router=fewest_waiting simulates that",
            )
        else:
            account.leaves(server, "serving.router", "the balancer in front of the servers must do it")
        account.says(server, "serving.router_options")

    def _nodes(self, ranks: int, inside: bool) -> None:
        server, started, account = self._server, self._started, self._account
        nodes = server.nodes_of(ranks)
        started.nodes, started.devices = nodes, ranks
        why = "vLLM takes as many devices of each node, the first ones in order; CUDA_VISIBLE_DEVICES shows it others"
        account.place(started, ranks, why)
        if nodes == 1:
            return
        replica = server.plan.tp * server.plan.pp
        if ranks % nodes:
            account.refuse(f"vLLM spreads ranks evenly, and {ranks} ranks are not so many on each of {nodes} nodes")
        elif server.plan.dp > 1 and inside:
            local, odd = divmod(ranks // nodes, replica)
            if odd or not local:
                account.refuse(
                    f"vLLM keeps a replica of several that are one server inside a node: {replica} ranks of "
                    f"{ranks // nodes} per node"
                )
                return
            started.options |= {"--data-parallel-size-local": str(local), "--data-parallel-address": HEAD,
                                "--data-parallel-rpc-port": RPC_PORT}  # fmt: skip
            started.per_node = tuple(
                {"--headless": None, "--data-parallel-start-rank": str(node * local)} if node else {}
                for node in range(nodes)
            )
        elif not self._has("--nnodes"):
            account.refuse(f"vLLM has --nnodes {when('vllm', '--nnodes')}; before, a server on several nodes needs Ray")
        else:
            started.options |= {"--nnodes": str(nodes), "--master-addr": HEAD}
            started.per_node = tuple(
                {"--node-rank": str(node)} | ({"--headless": None} if node else {}) for node in range(nodes)
            )

    def precision(self) -> None:
        """Write number formats, and the longest sequence."""
        wanted, server, account = self._server.scenario.precision, self._server, self._account
        plain = wanted.activations if wanted.activations in PLAIN else "bf16"
        word: str | None = word_for(plain, DTYPES)
        self._put("precision.activations", word)
        if plain != wanted.activations:
            account.leaves(None, "precision.activations", "vLLM keeps activations in 16 or 32 bits")
        held = checkpoint_format(server)
        account.says(None, "precision.weights")
        if wanted.weights == "fp8" and held in PLAIN:
            self._put("precision.weights", "fp8")
        elif wanted.weights in PLAIN and held in PLAIN:
            if wanted.weights != plain:
                account.leaves(None, "precision.weights", f"vLLM keeps weights as activations, in {plain}")
        elif wanted.weights != held:
            account.refuse(
                f"vLLM loads weights in {wanted.weights} from a checkpoint that has them, and {server.model_name} "
                f"has {held}; name one with --model"
            )
        cache = word_for(wanted.kv_cache, KV_DTYPES)
        if wanted.kv_cache == plain:
            account.says(None, "precision.kv_cache")
        elif cache is None:
            account.refuse(f"vLLM keeps K/V in {', '.join(sorted(set(KV_DTYPES.values())))}, not in {wanted.kv_cache}")
        else:
            self._put("precision.kv_cache", cache)
        if server.longest is not None:
            self._put("model.config.max_position_embeddings", server.longest)
        if server.serving.context_window is not None:
            account.says(server, "serving.context_window")

    def serving(self) -> None:
        """Write scheduler, limits, cache and graphs."""
        serving, server, account = self._server.serving, self._server, self._account
        chunked = serving.scheduler != "continuous"
        if not self._switch(VLLM["serving.scheduler"], on=chunked, told=True):
            account.refuse(f"{self._words} computes prompts whole; take serving.scheduler=continuous")
        account.says(server, "serving.scheduler_options", "serving.scheduler", "serving.order.patience")
        if serving.scheduler not in ("chunked_prefill", "continuous"):
            account.leaves(server, "serving.scheduler", "vLLM runs chunked prefill")
        if serving.order.by == "priority":
            self._put("serving.order.by", "priority")
            if serving.order.patience_ns != UNLIMITED:
                account.leaves(server, "serving.order.patience", "in vLLM the priority always decides first")
        elif serving.order.by == "arrival":
            account.says(server, "serving.order.by")
        else:
            account.leaves(server, "serving.order.by", "vLLM takes requests up as they arrive")
        self._put("serving.max_batch_requests", serving.max_batch_requests)
        self._put("serving.max_batch_tokens", serving.max_batch_tokens)
        if serving.long_prompt_tokens is not None:
            self._put("serving.long_prompt_tokens", serving.long_prompt_tokens)
        self._put("serving.kv_block_tokens", serving.kv_block_tokens)
        if serving.kv_blocks is not None:
            self._put("serving.kv_blocks", serving.kv_blocks)
        self._put("serving.memory_utilization", utilization(server, "vllm", account))
        if not self._switch(VLLM["serving.prefix_caching"], on=serving.prefix_caching, told=False):
            account.refuse(f"{self._words} caches no prefixes; take serving.prefix_caching=false")
        account.says(server, "serving.prefix_caching")
        account.says(server, "serving.preemption")
        if serving.preemption != "recompute":
            account.leaves(server, "serving.preemption", "vLLM computes preempted requests anew")
        if serving.preemption == "swap":
            account.leaves(server, "serving.host_kv", "vLLM swaps no K/V")
        self._admission()
        for key in ("queue_limit", "queue_timeout"):
            if server.scenario.document["serving"].get(key) is not None:
                account.leaves(server, f"serving.{key}", "vLLM lets requests wait without a limit")
        self._graphs()

    def _admission(self) -> None:
        """Write which blocks admit a request: in engine V1 those of its first chunk, until it could be told."""
        first, name = self._server.serving.admits_first_chunks, VLLM["serving.admission"]
        of_itself = not first if self._has(name) or self._version < _V1 else first
        self._account.says(self._server, "serving.admission")
        if not of_itself and not (self._has(name) and self._switch(name, on=not first, told=False)):
            whose = "first chunk" if self._version >= _V1 else "whole prompt"
            self._account.leaves(self._server, "serving.admission", f"{self._words} looks at the {whose} of a request")

    def _switch(self, name: str, *, on: bool, told: bool) -> bool:
        """Write a switch as the release takes it, and return whether it can do so.

        One that is off of itself is not written, unless it must be ``told``: before there was an opposite, as
        ``--enable-chunked-prefill=False`` (StoreBoolean of vllm/utils.py, 0.5.0 to 0.8.0).
        """
        options, opposite = self._started.options, f"--no-{name[2:]}"
        if on and self._has(name):
            options[name] = None
        elif on:
            return False
        elif self._has(opposite):
            options[opposite] = None
        elif told and self._has(name):
            options[f"{name}=False"] = None
        return True

    def _graphs(self) -> None:
        most, key = self._server.scenario.engine.graph_max_tokens, "serving.engine.graph_max_tokens"
        if most and self._server.has_graphs_by_itself and not self._has(VLLM[key]):
            self._account.says(self._server, key)
        elif most:
            self._put(key, most)
        else:
            self._started.options["--enforce-eager"] = None

    def hand_over(self) -> None:
        """Write how K/V leaves or reaches the pool."""
        if not reaches(self._version, "0.9.0"):  # kv_connector/v1/nixl_connector.py is there since then
            self._account.refuse(f"{self._words} hands no K/V over by NIXL, which is there from 0.9.0 on")
            return
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[self._server.name]
        if role == "kv_consumer" and self._server.plan.pp > 1:
            role = "kv_both"
        connector = {"kv_connector": "NixlConnector", "kv_role": role}
        self._started.options["--kv-transfer-config"] = json.dumps(connector)
        port = "5600" if role == "kv_producer" else "5700"  # both may be on one node
        self._started.environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": HEAD, "VLLM_NIXL_SIDE_CHANNEL_PORT": port}
        self._started.options["--port"] = str(PORT if role == "kv_producer" else PORT + 100)


def checkpoint_format(server: Server) -> str:
    """Return the format of the weights that are loaded: by the name of a checkpoint, or as was published."""
    known = shipped_model(server.model_name) if server.named else None
    return (known.weights if known else None) or server.model.default_weight_dtype
