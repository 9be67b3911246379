"""Which release of an engine has which option, and takes which values: one table for ``launch`` and ``from-vllm``.

vLLM: ``EngineArgs.add_cli_args`` in vllm/engine/arg_utils.py, vllm/entrypoints and vllm/envs.py of releases 0.3.3,
0.5.0, 0.6.0, 0.6.6, 0.7.0, 0.8.0, 0.8.5, 0.9.0, 0.9.2, 0.10.0, 0.11.0, 0.12.0, 0.14.0 and 0.19.0. SGLang:
server_args.py and arg_groups/ in sglang/srt of 0.4.0, 0.4.6.post5, 0.5.2, 0.5.4, 0.5.8, 0.5.10, 0.5.14, 0.5.18 and
0.5.23. An option counts from the first of these that has it to the first that lacks it again; in between nobody looked.
Options of vLLM that are gone and that ``launch`` never writes: general knowledge, not re-fetched. TensorRT-LLM before
1.0: options of ``trtllm-build`` and of converters (likewise).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from clustersim.errors import did_you_mean

Version = tuple[int, ...]
"""Numbers of a release: two stand for the last one of that minor release."""

SPANS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "0.3.3": """
            --block-size --disable-log-requests --dtype --enforce-eager --gpu-memory-utilization --host --kv-cache-dtype
            --max-model-len --max-num-batched-tokens --max-num-seqs --model --pipeline-parallel-size --port
            --quantization --tensor-parallel-size
            """,
        "0.3.3-0.7.0": "--worker-use-ray",
        "0.3.3-0.19.0": "--swap-space",
        "0.3.3-0.5.0": "--max-context-len-to-capture",
        "0.3.3-0.6.0": "--engine-use-ray",
        "0.3.3-0.10.0": "--tokenizer-pool-extra-config --tokenizer-pool-size --tokenizer-pool-type",
        "0.4.0-0.11.0": "--device --scheduler-delay-factor",
        "0.4.2-0.12.0": "--guided-decoding-backend --max-seq-len-to-capture",
        "0.4.2-0.11.0": "--num-lookahead-slots",
        "0.5.0": """
            --distributed-executor-backend --enable-chunked-prefill --enable-prefix-caching --num-gpu-blocks-override
            """,
        "0.5.0-0.10.0": "--use-v2-block-manager",
        "0.5.0-0.9.0": """
            --ngram-prompt-lookup-max --ngram-prompt-lookup-min --num-speculative-tokens
            --speculative-draft-tensor-parallel-size --speculative-model
            """,
        "0.5.0-0.11.0": "--rope-scaling --rope-theta",
        "0.6.0-0.11.0": "--disable-async-output-proc --num-scheduler-steps --preemption-mode",
        "0.6.0": "VLLM_PP_LAYER_PARTITION",
        "0.6.2-0.11.0": "--multi-step-stream-outputs",
        "0.6.4-0.14.0": "--task",
        "0.6.6": "--kv-transfer-config --no-enable-prefix-caching --scheduling-policy",
        "0.7.0-0.10.0": "--enable-reasoning",
        "0.8.0": "--enable-expert-parallel --long-prefill-token-threshold",
        "0.8.5": "--data-parallel-size --no-enable-chunked-prefill",
        "0.9.0": """
            --data-parallel-address --data-parallel-rank --data-parallel-rpc-port --data-parallel-size-local
            --data-parallel-start-rank --headless VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT
            """,
        "0.9.0-0.14.0": "--cuda-graph-sizes",
        "0.9.2": "--data-parallel-backend --enable-eplb",
        "0.10.0": "--async-scheduling --data-parallel-hybrid-lb",
        "0.11.0": """
            --dbo-decode-token-threshold --dbo-prefill-token-threshold --decode-context-parallel-size --enable-dbo
            --enable-log-requests --eplb-config --expert-placement-strategy
            """,
        "0.12.0": """
            --all2all-backend --cudagraph-capture-sizes --data-parallel-external-lb --master-addr
            --max-cudagraph-capture-size --nnodes --node-rank --optimization-level --prefill-context-parallel-size
            """,
        "0.19.0": "--no-scheduler-reserve-full-isl --performance-mode --scheduler-reserve-full-isl",
    },
    "sglang": {
        "0.4.0": """
            --enable-dp-attention
            --chunked-prefill-size --context-length --disable-cuda-graph --disable-radix-cache
            --dist-init-addr --dp-size --dtype --enable-mixed-chunk --host --kv-cache-dtype --load-balance-method
            --max-prefill-tokens --max-running-requests --max-total-tokens --mem-fraction-static --model-path --nnodes
            --node-rank --port --quantization --tp-size
            """,
        "0.4.0-0.4.6": """
            --disable-disk-cache --disable-flashinfer --disable-flashinfer-sampling --disable-jump-forward --disable-mla
            --disable-nan-detection --enable-overlap-schedule --file-storage-pth
            """,
        "0.4.0-0.5.14": "--enable-double-sparsity --enable-nan-detection",
        "0.4.0-0.5.18": "--torchao-config",
        "0.4.0-0.5.23": "--cuda-graph-max-bs",
        "0.4.6-0.5.2": "--enable-flashinfer-mla --enable-flashmla --n-share-experts-fusion --pdlb-url",
        "0.4.6-0.5.4": "--max-micro-batch-size",
        "0.4.6-0.5.8": "--enable-deepep-moe --enable-ep-moe",
        "0.4.6-0.5.23": """
            --collect-tokens-histogram --cuda-graph-bs --enable-expert-distribution-metrics --stream-output
            """,
        "0.4.6": """
            --deepep-mode --disaggregation-bootstrap-port --disaggregation-mode --disaggregation-transfer-backend
            --ep-size --page-size --pp-size
            """,
        "0.5.2-0.5.8": """
            --enable-flashinfer-cutlass-moe --enable-flashinfer-mxfp4-moe --enable-flashinfer-trtllm-moe
            --enable-triton-kernel-moe
            """,
        "0.5.2-0.5.14": "--hybrid-kvcache-ratio",
        "0.5.2-0.5.23": "--prefill-round-robin-balance",
        "0.5.2": """
            --enable-two-batch-overlap --ep-num-redundant-experts --max-queued-requests --moe-a2a-backend
            """,
        "0.5.4-0.5.8": "--load-watch-interval --oltp-traces-endpoint",
        "0.5.4-0.5.14": "--enable-piecewise-cuda-graph",
        "0.5.4-0.5.23": """
            --nsa-decode-backend --nsa-prefill-backend --piecewise-cuda-graph-max-tokens --piecewise-cuda-graph-tokens
            """,
        "0.5.4": "--enable-priority-scheduling --schedule-low-priority-values-first",
        "0.5.8-0.5.23": "--enable-nsa-prefill-context-parallel --mamba-scheduler-strategy",
        "0.5.10-0.5.23": """
            --disable-piecewise-cuda-graph --enable-prefill-context-parallel --enforce-piecewise-cuda-graph
            """,
        "0.5.14-0.5.23": "--enable-dsa-prefill-context-parallel",
        "0.5.14": "--cuda-graph-max-bs-decode",
        "0.5.23": "--attn-dp-size",
    },
    "trtllm": {
        "0.9.0": """
            --checkpoint_dir --gemm_plugin --max_batch_size --max_input_len --max_num_tokens --output_dir
            --remove_input_padding --tokens_per_block --use_paged_context_fmha
            """,
        "0.9.0-0.11.0": "--max_output_len",
        "0.9.0-0.13.0": "--paged_kv_cache",
        "0.11.0": "--max_seq_len --moe_ep_size --moe_tp_size",
        "0.13.0": "--kv_cache_type",
    },
}
"""Engine → from which release, or from which one to before which other one → options and variables."""
CHOICES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "vllm": {
        "--block-size": {
            "0.3.3": "8 16 32 128", "0.5.0": "8 16 32", "0.6.6": "8 16 32 64 128", "0.8.5": "1 8 16 32 64 128",
            "0.12.0": "1 8 16 32 64 128 256", "0.19.0": "",
        },
        "--kv-cache-dtype": {
            "0.3.3": "auto fp8_e5m2", "0.5.0": "auto fp8 fp8_e5m2 fp8_e4m3",
            "0.11.0": "auto bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc", "0.19.0": "",
        },
    },
    "sglang": {
        "--kv-cache-dtype": {
            "0.4.0": "auto fp8_e5m2", "0.4.6": "auto fp8_e5m2 fp8_e4m3",
            "0.5.4": "auto fp8_e5m2 fp8_e4m3 bf16 bfloat16",
            "0.5.14": "",
        },
        "--load-balance-method": {
            "0.4.0": "round_robin shortest_queue", "0.5.2": "round_robin shortest_queue minimum_tokens", "0.5.8": "",
        },
    },
}  # fmt: skip
"""Engine → option → from which release → what it takes; nothing: what the newest takes."""


def numbers(text: str) -> Version:
    """Return the numbers of a release.

    Examples
    --------
    >>> numbers("0.6.6")
    (0, 6, 6)
    """
    return tuple(map(int, text.split(".")))


def version_of(name: str, family: str) -> Version | None:
    """Return the release in the name of an engine such as ``vllm-0.12``; None where it is of another family.

    Examples
    --------
    >>> version_of("vllm-0.12", "vllm"), version_of("vllm-0.9.2", "vllm"), version_of("trtllm-1.0", "vllm")
    ((0, 12), (0, 9, 2), None)
    """
    found = re.fullmatch(rf"{family}-v?([0-9]{{1,3}}(?:\.[0-9]+){{0,2}})([.a-z-].*)?", name)
    return numbers(found[1]) if found else None


def reaches(version: Version, since: str) -> bool:
    """Tell whether a release is another one or later; of a minor release the last one counts.

    Examples
    --------
    >>> reaches((0, 6), "0.6.6"), reaches((0, 6, 5), "0.6.6")
    (True, False)
    """
    last = 10**6
    return version + (last,) * (3 - len(version)) >= numbers(since)


def span_of(engine: str, name: str) -> tuple[str, str] | None:
    """Return from which release an engine has an option, and from which on no longer (empty: still)."""
    for span, names in SPANS[engine].items():
        if name in names.split():
            since, _, until = span.partition("-")
            return since, until
    return None


def has(engine: str, name: str, version: Version) -> bool:
    """Tell whether a release has an option; one that no table names is not told of."""
    span = span_of(engine, name)
    return span is None or (reaches(version, span[0]) and not (span[1] and reaches(version, span[1])))


def when(engine: str, name: str) -> str:
    """Say when an engine has an option: ``from 0.11.0 on``."""
    since, until = span_of(engine, name) or ("", "")
    return f"from {since} to before {until}" if until else f"from {since} on"


def choices_of(engine: str, name: str, version: Version) -> tuple[str, ...]:
    """Return what an option takes in a release; empty: anything that the newest takes."""
    found = ""
    for since, values in CHOICES.get(engine, {}).get(name, {}).items():
        found = values if reaches(version, since) else found
    return tuple(found.split())


def outdated(engine: str, words: str, options: Mapping[str, object], version: Version) -> Iterator[str]:
    """Yield what a release does not take of the options that are written.

    Parameters
    ----------
    engine, words : str
        ``vllm``, and what messages call it, with its release.
    options : Mapping
        Option or variable → value; None of a switch.
    version : tuple of int
    """
    oldest = next(iter(SPANS[engine]))
    if not reaches(version, oldest):
        yield f"{words} is older than {oldest}, the first release whose options were read; take a later serving.engine"
        return
    for option, value in options.items():
        name, _, given = option.partition("=")
        if not has(engine, name, version):
            yield f"{words} has no {name}; it is there {when(engine, name)}"
        known = choices_of(engine, name, version)
        text = given or (value if isinstance(value, str) else "")
        if known and text not in known:
            hint = did_you_mean(text, known) if not re.fullmatch(r"[0-9]+", text) else ""
            yield f"{words} takes {name} {', '.join(known)}, not {text}{hint if 'did you mean' in hint else ''}"
