"""The options of ``vllm serve`` in vLLM 0.19, and what a simulation makes of each.

From ``vllm/engine/arg_utils.py`` (``EngineArgs.add_cli_args``), ``vllm/entrypoints/openai/cli_args.py`` and
``vllm/entrypoints/cli/serve.py`` of release 0.19.0. An option stands in exactly one of the tables below; what is
made of those in ``READ`` is in :mod:`clustersim.interop.serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = "0.19.0"

Takes = Literal["switch", "value", "values", "optional"]
Fate = Literal["read", "ignored", "inexact", "refused"]


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
        ``read``: it becomes a value of the scenario. ``ignored``: it has no meaning in a simulation. ``inexact``:
        its effect is left out, and the scenario says so. ``refused``: a run without its effect would mislead.
    words : str
        Why it is ignored, what is left out, or why it is refused.
    neutral : tuple of str
        Values that ask for nothing (a switch: when it is off).
    """

    name: str
    takes: Takes
    fate: Fate
    words: str = ""
    neutral: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether vLLM itself takes nothing but a number, though a simulation does not need it."""
        return self.fate != "read" and self.name in NUMBERS.split()


NUMBERS: Final = """
    --api-server-count --cp-kv-cache-interleave-size --cpu-offload-gb --custom-output-len
    --data-parallel-rpc-port --data-parallel-size-local --data-parallel-start-rank
    --dcp-kv-cache-interleave-size --decode-context-parallel-size --distributed-timeout-seconds
    --frequency-penalty --h11-max-header-count --h11-max-incomplete-event-size --hf-output-len
    --kv-cache-metrics-sample --kv-offloading-size --logprobs --mamba-block-size --master-port --max-cpu-loras
    --max-log-len --max-logprobs --max-long-partial-prefills --max-lora-rank --max-loras
    --max-num-partial-prefills --max-parallel-loading-workers --min-p --mm-processor-cache-gb
    --mm-shm-cache-max-object-size-mb --node-rank --num-scheduler-steps --num-warmups --offload-group-size
    --offload-num-in-group --offload-prefetch-step --port --prefill-context-parallel-size --presence-penalty
    --ramp-up-end-rps --ramp-up-start-rps --random-batch-size --ready-check-timeout-sec --renderer-num-workers
    --repetition-penalty --seed --sharegpt-output-len --shutdown-timeout --sonnet-input-len --sonnet-output-len
    --sonnet-prefix-len --spec-bench-output-len --ssl-cert-reqs --stream-interval --swap-space --temperature
    --top-k --top-p --ubatch-size --video-pruning-rate
    """
"""Options of which vLLM takes numbers alone."""

_SWITCHES: Final = """
    --aggregate-engine-logging --allow-credentials --allow-deprecated-quantization --async-scheduling
    --calculate-kv-scales --cudagraph-metrics --data-parallel-external-lb --data-parallel-hybrid-lb
    --disable-cascade-attn --disable-chunked-mm-input --disable-custom-all-reduce --disable-fastapi-docs
    --disable-hybrid-kv-cache-manager --disable-log-requests --disable-log-stats
    --disable-nccl-for-dp-synchronization --disable-sliding-window --disable-uvicorn-access-log
    --enable-auto-tool-choice --enable-chunked-prefill --enable-dbo --enable-elastic-ep --enable-ep-weight-filter
    --enable-eplb --enable-expert-parallel --enable-flashinfer-autotune --enable-force-include-usage
    --enable-layerwise-nvtx-tracing --enable-log-deltas --enable-log-outputs --enable-log-requests
    --enable-logging-iteration-details --enable-lora --enable-mfu-metrics --enable-mm-embeds --enable-offline-docs
    --enable-prefix-caching --enable-prompt-embeds --enable-prompt-tokens-details --enable-request-id-headers
    --enable-return-routed-experts --enable-server-load-tracking --enable-sleep-mode --enable-ssl-refresh
    --enable-tokenizer-info-endpoint --enable-tower-connector-lora --enforce-eager
    --exclude-tools-when-tool-choice-none --fail-on-environ-validation --fully-sharded-loras --grpc --headless
    --interleave-mm-strings --kv-cache-metrics --kv-sharing-fast-prefill --language-model-only --log-error-stack
    --mm-encoder-only --ray-workers-use-nsight --return-tokens-as-token-ids --scheduler-reserve-full-isl
    --skip-mm-profiling --skip-tokenizer-init --specialize-active-lora --tokens-only --trust-remote-code
    --trust-request-chat-template --use-tqdm-on-load --use-v2-block-manager
    """
_VALUES: Final = """
    --allowed-media-domains --api-key --collect-detailed-traces --cpu-offload-params --cudagraph-capture-sizes
    --ignore-patterns --kv-cache-dtype-skip-layers --logits-processors --lora-modules --lora-target-modules
    --offload-params --served-model-name
    """
_OPTIONAL: Final = "--hf-token"

READ: Final = """
    --block-size --cudagraph-capture-sizes --data-parallel-external-lb --data-parallel-hybrid-lb
    --data-parallel-rank --data-parallel-size --dbo-decode-token-threshold --dbo-prefill-token-threshold --dtype
    --enable-chunked-prefill --enable-dbo --enable-expert-parallel --enable-prefix-caching --enforce-eager
    --expert-placement-strategy --gpu-memory-utilization
    --hf-config-path --kv-cache-dtype --long-prefill-token-threshold --max-cudagraph-capture-size
    --max-model-len --max-num-batched-tokens --max-num-seqs --model --nnodes --num-gpu-blocks-override
    --optimization-level --performance-mode --pipeline-parallel-size --quantization --scheduling-policy
    --tensor-parallel-size
    """

IGNORED: Final[Mapping[str, str]] = {
    "where it listens, and who may ask": """
        --allow-credentials --allowed-headers --allowed-methods --allowed-origins --api-key --api-server-count
        --disable-fastapi-docs --enable-offline-docs --enable-request-id-headers --enable-ssl-refresh --grpc
        --h11-max-header-count --h11-max-incomplete-event-size --host --middleware --port --root-path --ssl-ca-certs
        --ssl-cert-reqs --ssl-certfile --ssl-ciphers --ssl-keyfile --uds
        """,
    "text, templates and parsers; only lengths in tokens are simulated": """
        --chat-template --chat-template-content-format --default-chat-template-kwargs --enable-auto-tool-choice
        --enable-force-include-usage --enable-prompt-embeds --enable-prompt-tokens-details
        --enable-tokenizer-info-endpoint --exclude-tools-when-tool-choice-none --generation-config
        --io-processor-plugin --logprobs-mode --max-logprobs --override-generation-config --reasoning-config
        --reasoning-parser --reasoning-parser-plugin --renderer-num-workers --response-role
        --return-tokens-as-token-ids --seed --served-model-name --skip-tokenizer-init --structured-outputs-config
        --tokenizer --tokenizer-mode --tokenizer-revision --tokens-only --tool-call-parser --tool-parser-plugin
        --tool-server --trust-request-chat-template
        """,
    "logs, metrics and profiles": """
        --aggregate-engine-logging --collect-detailed-traces --cudagraph-metrics --disable-access-log-for-endpoints
        --disable-log-requests --disable-log-stats --disable-uvicorn-access-log --enable-layerwise-nvtx-tracing
        --enable-log-deltas --enable-log-outputs --enable-log-requests --enable-logging-iteration-details
        --enable-mfu-metrics --enable-server-load-tracking --kv-cache-metrics --kv-cache-metrics-sample
        --kv-events-config --log-config-file --log-error-stack --max-log-len --otlp-traces-endpoint
        --profiler-config --ray-workers-use-nsight --show-hidden-metrics-for-version --uvicorn-log-level
        """,
    "loading the model": """
        --allow-deprecated-quantization --code-revision --config-format --download-dir --enable-ep-weight-filter
        --enable-sleep-mode --hf-token --ignore-patterns --load-format --max-parallel-loading-workers --model-impl
        --model-loader-extra-config --pt-load-map-location --revision --safetensors-load-strategy
        --trust-remote-code --use-tqdm-on-load --weight-transfer-config
        """,
    "how processes are started and find each other": """
        --data-parallel-address --data-parallel-backend --data-parallel-rpc-port --data-parallel-size-local
        --data-parallel-start-rank --disable-nccl-for-dp-synchronization --distributed-executor-backend
        --distributed-timeout-seconds --fail-on-environ-validation --headless --master-addr --master-port
        --node-rank --shutdown-timeout
        """,
    "images and audio, which no request has": """
        --allowed-local-media-path --allowed-media-domains --disable-chunked-mm-input --ec-transfer-config
        --enable-mm-embeds --enable-tower-connector-lora --interleave-mm-strings --language-model-only
        --limit-mm-per-prompt --media-io-kwargs --mm-encoder-attn-backend --mm-encoder-only --mm-encoder-tp-mode
        --mm-processor-cache-gb --mm-processor-cache-type --mm-processor-kwargs --mm-shm-cache-max-object-size-mb
        --mm-tensor-ipc --skip-mm-profiling --video-pruning-rate
        """,
    "of no effect on its own": """
        --cp-kv-cache-interleave-size --dcp-comm-backend
        --dcp-kv-cache-interleave-size --default-mm-loras --fully-sharded-loras --kv-offloading-backend --lora-dtype
        --lora-target-modules --max-cpu-loras --max-long-partial-prefills --max-lora-rank --max-loras
        --offload-backend --offload-num-in-group --offload-params --offload-prefetch-step --cpu-offload-params
        --prefix-caching-hash-algo --specialize-active-lora
        """,
    "state-space layers, which no model has here": """
        --gdn-prefill-backend --mamba-block-size --mamba-cache-dtype --mamba-cache-mode --mamba-ssm-cache-dtype
        """,
    "gone from vLLM before 0.19, where it has no effect": "--num-scheduler-steps --swap-space --use-v2-block-manager",
}
"""Why → options without a meaning in a simulation."""

_KERNELS: Final = "kernels take what the cost model says, whichever they are"
INEXACT: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "--additional-config": ("options of a platform are not looked at", ("{}",)),
    "--all2all-backend": ("tokens go to experts and back by an all-to-all, of the cheapest algorithm there is", ()),
    "--async-scheduling": ("the engine's overheads are those of asynchronous scheduling", ("true",)),
    "--attention-backend": (_KERNELS, ()),
    "--attention-config": (_KERNELS, ("{}",)),
    "--calculate-kv-scales": ("scales of a quantised K/V cache take no time", ("false",)),
    "--compilation-config": ("fused kernels and the modes of CUDA graphs are those of the defaults", ("{}",)),
    "--disable-cascade-attn": (_KERNELS, ()),
    "--disable-custom-all-reduce": ("all-reduces take the cheapest algorithm, custom ones among them", ("false",)),
    "--disable-hybrid-kv-cache-manager": ("layers with a window keep only that much K/V", ("false",)),
    "--disable-sliding-window": ("windows stay; requests are not cut to their length", ("false",)),
    "--enable-eplb": ("tokens fall on experts evenly already, and copies of experts take no memory", ("false",)),
    "--enable-flashinfer-autotune": (_KERNELS, ()),
    "--enable-return-routed-experts": ("sending the chosen experts takes no time", ("false",)),
    "--eplb-config": ("tokens fall on experts evenly already, and copies of experts take no memory", ("{}",)),
    "--kernel-config": (_KERNELS, ("{}",)),
    "--kv-cache-dtype-skip-layers": ("the K/V cache has one format in all layers", ()),
    "--kv-offloading-size": ("K/V that leaves the device is computed anew, which is slower", ("0",)),
    "--kv-sharing-fast-prefill": ("layers that share K/V prefill in full", ("false",)),
    "--logits-processors": ("processors of logits take no time", ()),
    "--moe-backend": (_KERNELS, ("auto",)),
    "--scheduler-reserve-full-isl": ("the scheduler admits requests by its own rule", ("true",)),
    "--stream-interval": ("every token is sent at once", ("1",)),
    "--ubatch-size": ("batches are not split", ("0",)),
    "--worker-cls": ("workers are vLLM's own", ("auto",)),
    "--worker-extension-cls": ("workers are vLLM's own", ("",)),
}
"""Option → (what stands in for its effect, values that ask for nothing)."""

REFUSED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "--config": ("the options of a file are not read; write them into the command", ()),
    "--convert": ("only models that generate text are simulated", ("auto", "none")),
    "--cpu-offload-gb": ("weights on the host are not simulated", ("0",)),
    "--decode-context-parallel-size": ("K/V of one sequence over the ranks of TP is not simulated", ("1",)),
    "--enable-elastic-ep": ("replicas that come and go are not simulated", ("false",)),
    "--enable-lora": ("LoRA is not simulated", ("false",)),
    "--hf-overrides": ("changes of the configuration are not read; give a config.json with them as --model", ("{}",)),
    "--kv-cache-memory-bytes": ("say the K/V pool in blocks, with --num-gpu-blocks-override", ()),
    "--kv-transfer-config": ("K/V that moves between engines is not simulated", ()),
    "--lora-modules": ("LoRA is not simulated", ()),
    "--max-num-partial-prefills": ("vLLM itself takes only 1", ("1",)),
    "--offload-group-size": ("weights on the host are not simulated", ("0",)),
    "--override-attention-dtype": ("attention in another format than the activations is not simulated", ()),
    "--pooler-config": ("only models that generate text are simulated", ()),
    "--prefill-context-parallel-size": ("its layout is none of clustersim's; see plan.sp for its own", ("1",)),
    "--runner": ("only models that generate text are simulated", ("auto", "generate")),
    "--scheduler-cls": ("a scheduler of your own cannot be read from a command line", ()),
    "--speculative-config": ("speculative decoding is not simulated", ()),
    "--speculative-model": ("speculative decoding is not simulated", ()),
}
"""Option → (why it is refused, values that ask for nothing)."""

SHORT: Final[Mapping[str, str]] = {
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
    switches: str,
    values: str,
    optional: str = "",
    read: str,
    ignored: Mapping[str, str],
    inexact: Mapping[str, tuple[str, tuple[str, ...]]],
    refused: Mapping[str, tuple[str, tuple[str, ...]]],
) -> dict[str, Flag]:
    """Return options by name: names of switches and of those with several or optional values, and what becomes of all.

    Parameters
    ----------
    switches, values, optional, read : str
        Names, with white space between them; an option that is in none of the first three takes one value.
    ignored : Mapping of str to str
        Why → names.
    inexact, refused : Mapping
        Name → (words, neutral values).
    """
    kinds: tuple[tuple[Takes, str], ...] = (("switch", switches), ("values", values), ("optional", optional))
    takes = {name: kind for kind, names in kinds for name in names.split()}
    fates: list[tuple[Fate, str, str, tuple[str, ...]]] = [("read", name, "", ()) for name in read.split()]
    fates += [("ignored", name, words, ()) for words, names in ignored.items() for name in names.split()]
    fates += [("inexact", name, *of) for name, of in inexact.items()]
    fates += [("refused", name, *of) for name, of in refused.items()]
    return {
        name: Flag(name=name, takes=takes.get(name, "value"), fate=fate, words=words, neutral=neutral)
        for fate, name, words, neutral in fates
    }


FLAGS: Final[Mapping[str, Flag]] = table(
    switches=_SWITCHES,
    values=_VALUES,
    optional=_OPTIONAL,
    read=READ,
    ignored=IGNORED,
    inexact=INEXACT,
    refused=REFUSED,
)
"""Name → option."""
