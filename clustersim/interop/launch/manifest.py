"""Manifests for Kubernetes: plain ones (a LeaderWorkerSet where a server spans nodes), values of llm-d, Dynamo's graph.

Shapes as in kubernetes-sigs/lws (060ab4da, docs/examples), llm-d-modelservice (3051935e, values.yaml) and
ai-dynamo/dynamo (04521f47, examples/backends, v1beta1). Storage, secrets and ingress are yours to add.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import HEAD, PORT, Options, Started, words_of
from clustersim.scenario.resolve import to_yaml

LEADER: Final = "$(LWS_LEADER_ADDRESS)"
BY_THE_CHART: Final = (
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--port",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
)
"""Options that the chart of llm-d writes itself."""
OF_NODES: Final = (
    "--nnodes",
    "--master-addr",
    "--dist-init-addr",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--host",
    "--port",
    "--disaggregation-mode",
    "--extra_llm_api_options",
    "--backend",
)
"""Options that Dynamo gives its servers, or has under other names."""
IMAGES: Final[Mapping[str, str]] = {
    "vllm": "vllm/vllm-openai",
    "sglang": "lmsysorg/sglang",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release",
    "llm-d": "ghcr.io/llm-d/llm-d",
    "dynamo-vllm": "nvcr.io/nvidia/ai-dynamo/vllm-runtime",
    "dynamo-sglang": "nvcr.io/nvidia/ai-dynamo/sglang-runtime",
    "dynamo-trtllm": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime",
}
"""Where images are (general knowledge, not re-fetched)."""
Documents = list[dict[str, Any]]


def kubernetes(name: str, servers: Sequence[Started], image: str, account: Account) -> Documents:
    """Return Deployments or LeaderWorkerSets, and Services, for servers."""
    found: Documents = []
    for started in servers:
        own = _name(name, started)
        labels = {"app": own}
        files = _config_map(own, started)
        found += files
        if started.nodes == 1:
            spec = {"replicas": started.copies, "selector": {"matchLabels": labels},
                    "template": _sharing(_pod(started, image, labels, _command(started, {}), own))}  # fmt: skip
            found.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": own}, "spec": spec})
        elif started.engine == "trtllm":
            account.refuse(
                "TensorRT-LLM starts on several nodes under MPI; take --for trtllm and Slurm, or --for dynamo"
            )
        elif started.per_node:  # else it is refused already
            leader, other = (_in_a_group(started, options) for options in started.per_node[:2])
            template = {"size": started.nodes, "restartPolicy": "RecreateGroupOnPodRestart",
                        "leaderTemplate": _sharing(_pod(started, image, labels | {"role": "leader"}, leader, own)),
                        "workerTemplate": _sharing(_pod(started, image, labels, other, own))}  # fmt: skip
            labels = labels | {"role": "leader"}
            found.append(
                {
                    "apiVersion": "leaderworkerset.x-k8s.io/v1",
                    "kind": "LeaderWorkerSet",
                    "metadata": {"name": own},
                    "spec": {"replicas": started.copies, "leaderWorkerTemplate": template},
                }
            )
        service = {"selector": labels, "ports": [{"port": PORT, "targetPort": _port(started)}]}
        found.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": own}, "spec": service})
    if len(servers) > 1:
        account.note(
            f"a router in front sends prompts to {_name(name, servers[0])} and then to "
            f"{_name(name, servers[1])}; --for {servers[0].engine} writes its command."
        )
    return found


def _name(name: str, started: Started) -> str:
    bare = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")[:50]
    return f"{bare or 'server'}-{started.server.name}"


def _port(started: Started) -> int:
    return int(str(started.options.get("--port", PORT)))


def _command(started: Started, options: Options) -> list[str]:
    words = [word for group in words_of(started.options | options) for word in group]
    return [*started.program, *(word.replace(HEAD, "$(POD_IP)") for word in words)]


def _in_a_group(started: Started, options: Options) -> list[str]:
    """Return the command of a leader, or of all others: numbers of nodes are those of the group."""
    own: Options = dict(options)
    start = own.get("--data-parallel-start-rank")
    if "--node-rank" in own:
        own["--node-rank"] = "$(LWS_WORKER_INDEX)"
    words = [word.replace(HEAD, LEADER) for group in words_of(started.options | own) for word in group]
    if start is None:
        return [*started.program, *words]
    counted = [word if word != start else f"$((LWS_WORKER_INDEX * {start}))" for word in words[-1:]]
    line = " ".join(map(_shell, [*started.program, *words[:-1]]))
    return ["sh", "-c", f"exec {line} {counted[0]}"]


def _shell(word: str) -> str:
    return word.replace(LEADER, '"$LWS_LEADER_ADDRESS"') if LEADER in word else shlex.quote(word)


def _pod(started: Started, image: str, labels: Mapping[str, str], command: list[str], name: str) -> dict[str, Any]:
    """Return a pod: its template, as Kubernetes and Dynamo have it."""
    own_address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables: list[dict[str, Any]] = [own_address] if _asks_for_itself(started) else []
    variables += [{"name": key, "value": text.replace(HEAD, "$(POD_IP)")} for key, text in started.environment.items()]
    limits = {"nvidia.com/gpu": str(started.devices // started.nodes)}
    main: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": command,
        "ports": [{"containerPort": _port(started)}],
        "resources": {"limits": limits},
    }
    if variables:
        main["env"] = variables
    spec: dict[str, Any] = {"containers": [main]}
    if started.config:
        main["workingDir"] = "/config"
        main["volumeMounts"] = [{"name": "config", "mountPath": "/config"}]
        spec["volumes"] = [{"name": "config", "configMap": {"name": name}}]
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _sharing(pod: dict[str, Any]) -> dict[str, Any]:
    """Give a pod shared memory for its ranks: Kubernetes has 64 MB, and Dynamo's operator adds its own."""
    spec = pod["spec"]
    (main,) = spec["containers"]
    main.setdefault("volumeMounts", []).append({"name": "shm", "mountPath": "/dev/shm"})
    spec.setdefault("volumes", []).append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return pod


def _asks_for_itself(started: Started) -> bool:
    texts = [*started.environment.values(), *map(str, started.options.values())]
    return any(HEAD in text for text in texts)


def _config_map(name: str, started: Started) -> Documents:
    if not started.config:
        return []
    data = {f"{started.server.name}.yaml": to_yaml(started.config)}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}]


def llm_d(name: str, servers: Sequence[Started], image: str, account: Account) -> Documents:
    """Return the values of llm-d's chart: a decode pool, and a prefill pool where there is one."""
    pools: dict[str, Any] = {"prefill": {"create": False}}
    for started in servers:
        plan, local = started.server.plan, int(str(started.options.get("--data-parallel-size-local", 0)))
        data = plan.dp if started.copies == 1 else 1
        local = local or data
        if plan.pp > 1:
            account.refuse(f"llm-d's chart has no key for stages (plan.pp: {plan.pp}); take pp 1, or --for k8s")
        if plan.tp > started.devices // started.nodes:
            account.refuse(
                f"llm-d keeps tensor parallelism inside a pod, found plan.tp: {plan.tp} on {started.nodes} nodes"
            )
        args = [word for group in words_of(started.options) if group[0] not in BY_THE_CHART for word in group]
        variables = [{"name": key, "value": text} for key, text in started.environment.items() if HEAD not in text]
        host = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        container = {"name": "vllm", "image": image, "modelCommand": "vllmServe", "args": args,
                     "env": ([host] if started.server.pool else []) + variables, "mountModelVolume": True,
                     "resources": {"limits": {"nvidia.com/gpu": str(local * plan.tp)}}}  # fmt: skip
        parallelism = {"tensor": plan.tp, "data": data, "dataLocal": local, "workers": started.nodes}
        pools[started.server.pool or "decode"] = {
            "create": True, "replicas": started.copies, "parallelism": parallelism, "containers": [container],
        }  # fmt: skip
    uri = f"hf://{servers[0].server.model_name}"
    proxy = {"targetPort": 8200, "connector": "nixlv2"}
    return [
        {
            "multinode": any(started.nodes > 1 for started in servers),
            "modelArtifacts": {"name": servers[0].server.model_name, "uri": uri},
            "routing": {"servicePort": PORT} | ({"proxy": proxy} if len(servers) > 1 else {}),
            **pools,
        }
    ]


def dynamo(name: str, servers: Sequence[Started], image: str) -> Documents:
    """Return a DynamoGraphDeployment, with the files of TensorRT-LLM before it."""
    engine = servers[0].engine
    front = {"name": "main", "image": image, "command": ["python3", "-m", "dynamo.frontend"]}
    components: Documents = [
        {"name": "Frontend", "type": "frontend", "replicas": 1,
         "podTemplate": {"spec": {"containers": [front]}}}
    ]  # fmt: skip
    files: Documents = []
    for started in servers:
        own = _name(name, started)
        files += _config_map(own, started)
        model = "--model" if engine == "vllm" else "--model-path"
        kept: Options = {key: value for key, value in started.options.items() if key not in OF_NODES}
        if engine == "vllm" and started.server.pool:
            kept["--kv-transfer-config"] = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
        if started.config:
            kept["--extra-engine-args"] = f"/config/{started.server.name}.yaml"
        if started.server.pool:
            kept["--disaggregation-mode"] = started.server.pool
        command = ["python3", "-m", f"dynamo.{engine}", model, started.server.model_name]
        command += [word for group in words_of(kept) for word in group]
        pod = _pod(started, image, {}, command, own)
        del pod["metadata"]
        main = pod["spec"]["containers"][0]
        main["envFrom"] = [{"secretRef": {"name": "hf-token-secret"}}]
        del main["ports"]
        component = {"name": f"{engine}-{started.server.name}", "type": started.server.pool or "worker",
                     "replicas": started.copies}  # fmt: skip
        if started.nodes > 1:
            component["multinode"] = {"nodeCount": started.nodes}
        components.append(component | {"podTemplate": pod})
    spec = {"backendFramework": engine, "components": components}
    graph = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment",
             "metadata": {"name": _name(name, servers[0]).rpartition("-")[0]}, "spec": spec}  # fmt: skip
    return [*files, graph]
