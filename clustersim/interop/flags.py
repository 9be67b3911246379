"""The options of ``vllm serve`` in vLLM 0.19, and what a simulation makes of each.

From ``vllm/engine/arg_utils.py`` (``EngineArgs.add_cli_args``), ``vllm/entrypoints/openai/cli_args.py`` and
``vllm/entrypoints/cli/serve.py`` of release 0.19.0. An option stands in exactly one of the tables below; what is
made of those in ``READ`` is in :mod:`clustersim.interop.serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from clustersim.values import dataclass

VERSION: Final = "0.19.0"

Takes = Literal["switch", "value", "values", "optional"]
Fate = Literal["read", "ignored", "left_out", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """An option.

    Parameters
    ----------
    name : str
        Such as ``--max-num-seqs``.
    takes : str
        ``switch`` (also as ``--no-…``), ``value``, ``values`` (one or more) or ``optional`` (none or one).
    fate : str
        ``read``: it becomes a value of the scenario. ``ignored``: it has no meaning in a simulation. ``left_out``:
        its effect on hits, memory, order or latencies is not simulated, and the scenario and each run of it say so.
        ``refused``: a run without its effect would mislead.
    words : str
        Why it is ignored, what is left out, or why it is refused.
    neutral : tuple of str
        Values that ask for nothing (a switch: when it is off).
    is_number : bool
        Whether the engine itself takes nothing but a number, though a simulation does not need it.
    """

    name: str
    takes: Takes
    fate: Fate
    words: str = ""
    neutral: tuple[str, ...] = ()
    is_number: bool = False


READ: Final = """
    --all2all-backend= --block-size= --cudagraph-capture-sizes=* --data-parallel-external-lb --data-parallel-hybrid-lb
    --data-parallel-rank= --data-parallel-size= --dbo-decode-token-threshold= --dbo-prefill-token-threshold= --dtype=
    --enable-chunked-prefill --enable-dbo --enable-expert-parallel --enable-prefix-caching --enforce-eager
    --expert-placement-strategy= --gpu-memory-utilization= --hf-config-path= --kv-cache-dtype=
    --long-prefill-token-threshold= --max-cudagraph-capture-size= --max-model-len= --max-num-batched-tokens=
    --max-num-seqs= --model= --nnodes= --num-gpu-blocks-override= --optimization-level= --performance-mode=
    --pipeline-parallel-size= --quantization= --scheduler-reserve-full-isl --scheduling-policy=
    --tensor-parallel-size=
    """
IGNORED: Final[Mapping[str, str]] = {
    "where it listens, and who may ask": """
        --allow-credentials --allowed-headers= --allowed-methods= --allowed-origins= --api-key=* --api-server-count=#
        --disable-fastapi-docs --enable-offline-docs --enable-request-id-headers --enable-ssl-refresh --grpc
        --h11-max-header-count=# --h11-max-incomplete-event-size=# --host= --middleware= --port=# --root-path=
        --ssl-ca-certs= --ssl-cert-reqs=# --ssl-certfile= --ssl-ciphers= --ssl-keyfile= --uds=
        """,
    "text, templates and parsers; only lengths in tokens are simulated": """
        --chat-template= --chat-template-content-format= --default-chat-template-kwargs= --enable-auto-tool-choice
        --enable-force-include-usage --enable-prompt-embeds --enable-prompt-tokens-details
        --enable-tokenizer-info-endpoint --exclude-tools-when-tool-choice-none --generation-config=
        --io-processor-plugin= --logprobs-mode= --max-logprobs=# --override-generation-config= --reasoning-config=
        --reasoning-parser= --reasoning-parser-plugin= --renderer-num-workers=# --response-role=
        --return-tokens-as-token-ids --seed=# --served-model-name=* --skip-tokenizer-init --structured-outputs-config=
        --tokenizer= --tokenizer-mode= --tokenizer-revision= --tokens-only --tool-call-parser= --tool-parser-plugin=
        --tool-server= --trust-request-chat-template
        """,
    "logs, metrics and profiles": """
        --aggregate-engine-logging --collect-detailed-traces=* --cudagraph-metrics --disable-access-log-for-endpoints=
        --disable-log-requests --disable-log-stats --disable-uvicorn-access-log --enable-layerwise-nvtx-tracing
        --enable-log-deltas --enable-log-outputs --enable-log-requests --enable-logging-iteration-details
        --enable-mfu-metrics --enable-server-load-tracking --kv-cache-metrics --kv-cache-metrics-sample=#
        --kv-events-config= --log-config-file= --log-error-stack --max-log-len=# --otlp-traces-endpoint=
        --profiler-config= --ray-workers-use-nsight --show-hidden-metrics-for-version= --uvicorn-log-level=
        """,
    "loading the model": """
        --allow-deprecated-quantization --code-revision= --config-format= --download-dir= --enable-ep-weight-filter
        --enable-sleep-mode --hf-token=? --ignore-patterns=* --load-format= --max-parallel-loading-workers=#
        --model-impl= --model-loader-extra-config= --pt-load-map-location= --revision= --safetensors-load-strategy=
        --trust-remote-code --use-tqdm-on-load --weight-transfer-config=
        """,
    "how processes are started and find each other": """
        --data-parallel-address= --data-parallel-backend= --data-parallel-rpc-port=# --data-parallel-size-local=#
        --data-parallel-start-rank=# --disable-nccl-for-dp-synchronization --distributed-executor-backend=
        --distributed-timeout-seconds=# --fail-on-environ-validation --headless --master-addr= --master-port=#
        --node-rank=# --shutdown-timeout=#
        """,
    "images and audio, which no request has": """
        --allowed-local-media-path= --allowed-media-domains=* --disable-chunked-mm-input --ec-transfer-config=
        --enable-mm-embeds --enable-tower-connector-lora --interleave-mm-strings --language-model-only
        --limit-mm-per-prompt= --media-io-kwargs= --mm-encoder-attn-backend= --mm-encoder-only --mm-encoder-tp-mode=
        --mm-processor-cache-gb=# --mm-processor-cache-type= --mm-processor-kwargs= --mm-shm-cache-max-object-size-mb=#
        --mm-tensor-ipc= --skip-mm-profiling --video-pruning-rate=#
        """,
    "of no effect without an option that is refused or not simulated": """
        --cp-kv-cache-interleave-size=# --dcp-comm-backend= --dcp-kv-cache-interleave-size=# --default-mm-loras=
        --fully-sharded-loras --lora-dtype= --lora-target-modules=* --max-cpu-loras=#
        --max-long-partial-prefills=# --max-lora-rank=# --max-loras=# --offload-backend= --offload-num-in-group=#
        --offload-params=* --offload-prefetch-step=# --cpu-offload-params=*
        --specialize-active-lora
        """,
    "how hashes of blocks are made": "--prefix-caching-hash-algo=",
    "all layers keep all of their K/V, as it asks for": "--disable-hybrid-kv-cache-manager",
    "state-space layers, which no model has here": """
        --gdn-prefill-backend= --mamba-block-size=# --mamba-cache-dtype= --mamba-cache-mode= --mamba-ssm-cache-dtype=
        """,
}
"""Why → options without a meaning in a simulation."""

KERNELS: Final = "kernels take what the cost model says, whichever they are"
STORED: Final = "K/V in host memory or other stores; what leaves the device is computed anew, so fewer tokens hit"
LEFT_OUT: Final[Mapping[str, str]] = {
    "options of a platform are not looked at": "--additional-config={}",
    "the engine's overheads are those of asynchronous scheduling": "--async-scheduling~",
    KERNELS: """
        --attention-backend= --attention-config={} --disable-cascade-attn --enable-flashinfer-autotune~
        --kernel-config={} --moe-backend=auto
        """,
    "scales of a quantised K/V cache take no time": "--calculate-kv-scales",
    "fused kernels and the modes of CUDA graphs are those of the defaults": "--compilation-config={}",
    "all-reduces take the cheapest algorithm, custom ones among them": "--disable-custom-all-reduce",
    "windows stay; requests are not cut to their length": "--disable-sliding-window",
    "sending the chosen experts takes no time": "--enable-return-routed-experts",
    "processors of logits take no time": "--logits-processors=*",
    "every token is sent at once": "--stream-interval=#1",
    "batches are not split": "--ubatch-size=#0",
    "workers are vLLM's own": "--worker-cls=auto --worker-extension-cls=",
    "experts do not move to where tokens fall, and copies of them take no memory": "--enable-eplb --eplb-config={}",
    STORED: """
        --kv-offloading-backend= --kv-offloading-size=#0|0.0
        """,
    "the K/V cache has one format in all layers": "--kv-cache-dtype-skip-layers=*",
    "layers that share K/V prefill in full": "--kv-sharing-fast-prefill",
}
"""What is not simulated, or stands for it → options that ask for it; each run says so."""

REFUSED: Final[Mapping[str, str]] = {
    "the options of a file are not read; write them into the command": "--config=",
    "only models that generate text are simulated": "--convert=auto|none --pooler-config= --runner=auto|generate",
    "weights on the host are not simulated": "--cpu-offload-gb=#0 --offload-group-size=#0",
    "K/V of one sequence over the ranks of TP is not simulated": "--decode-context-parallel-size=#1",
    "replicas that come and go are not simulated": "--enable-elastic-ep",
    "LoRA is not simulated": "--enable-lora --lora-modules=*",
    "changes of the configuration are not read; give a config.json with them as --model": "--hf-overrides={}",
    "say the K/V pool in blocks, with --num-gpu-blocks-override": "--kv-cache-memory-bytes=",
    "two pools are read of no command; a scenario has them (plan.prefill and plan.decode)": "--kv-transfer-config=",
    "vLLM itself takes only 1": "--max-num-partial-prefills=#1",
    "attention in another format than the activations is not simulated": "--override-attention-dtype=",
    "its layout is none of clustersim's; see plan.sp for its own": "--prefill-context-parallel-size=#1",
    "a scheduler of your own cannot be read from a command line": "--scheduler-cls=",
    "speculative decoding is not simulated": "--speculative-config=",
}
"""Why → options that are refused."""

ALIASES: Final[Mapping[str, str]] = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-O": "--optimization-level",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}


def table(
    *,
    read: str,
    ignored: Mapping[str, str],
    refused: Mapping[str, str],
    left_out: Mapping[str, str],
) -> dict[str, Flag]:
    """Return options by name.

    Parameters
    ----------
    read : str
        Options as :func:`flag_of` reads them, with white space between them.
    ignored, refused, left_out : Mapping of str to str
        Words → options.
    """
    fates: list[tuple[Fate, Mapping[str, str]]] = [("read", {"": read}), ("ignored", ignored)]
    fates += [("left_out", left_out), ("refused", refused)]
    found = (flag_of(word, fate, why) for fate, texts in fates for why, text in texts.items() for word in text.split())
    return {flag.name: flag for flag in found}


def flag_of(word: str, fate: Fate, why: str) -> Flag:
    """Return an option by its word in a table.

    Behind the name stands what follows it: ``=`` a value, ``=#`` a number, ``=*`` several values, ``=?`` one or none,
    and behind that the values that ask for nothing (``=#0``, ``=auto|none``). Nothing stands behind a switch, ``~``
    behind one that is on of itself.
    """
    name, value, rest = word.partition("=")
    kind = rest[: len(rest) - len(rest.lstrip("#*?"))]
    usual = rest.removeprefix(kind) if value else "true" if name.endswith("~") else "false"
    takes: Takes = "switch" if not value else "values" if "*" in kind else "optional" if "?" in kind else "value"
    return Flag(
        name=name.rstrip("~"),
        takes=takes,
        fate=fate,
        words=why,
        neutral=tuple(usual.split("|")) if usual else (),
        is_number="#" in kind and fate != "read",
    )


FLAGS: Final[Mapping[str, Flag]] = table(read=READ, ignored=IGNORED, refused=REFUSED, left_out=LEFT_OUT)
"""Name → option."""
