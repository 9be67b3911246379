"""Options that earlier releases of vLLM and SGLang had: what they mean here, and what took their place.

:mod:`clustersim.interop.launch.versions` has the releases that had them. An image of such a release takes the option;
that of :mod:`clustersim.interop.flags` and :mod:`clustersim.interop.sglang_flags` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.interop.flags import KERNELS, Fate, Flag, flag_of
from clustersim.interop.launch.versions import Version, has, when
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """An option that an engine has no longer, what took its place (empty: nothing), and whether it does the same."""

    engine: str
    flag: Flag
    instead: str = ""
    is_renamed: bool = False

    def is_in(self, release: Version | None) -> bool:
        """Tell whether a release has it."""
        return release is not None and has(self.engine, self.flag.name, release)

    @property
    def words(self) -> str:
        """When there was such an option, and what to give instead."""
        told = f"it was there {when(self.engine, self.flag.name)}"
        return f"{told}; {self.instead} took its place" if self.instead else told


_GRAPHS: Final = "steps beyond what graphs were captured for take their gaps from graph_max_tokens"
_SEVERAL: Final = "several steps that are scheduled at once"
_SWAP: Final = "K/V of preempted requests is computed anew, unless serving.preemption says swap"
_DRAFT: Final = "speculative decoding is not simulated"
_LOGS: Final = "logs, metrics and profiles"
_CONFIG: Final = "give a config.json with it as --model"
_TEXT: Final = "text, templates and parsers; only lengths in tokens are simulated"
_PROCESSES: Final = "how processes are started and find each other"
_RENAMED: Final = "it has another name now"
_TABLE: Final[Mapping[str, tuple[tuple[str, Fate, str, str], ...]]] = {
    "vllm": (
        ("--max-context-len-to-capture=#", "left_out", _GRAPHS, "--max-seq-len-to-capture"),
        ("--max-seq-len-to-capture=#", "left_out", _GRAPHS, "--max-cudagraph-capture-size"),
        ("--cuda-graph-sizes=*", "left_out", _GRAPHS, "--cudagraph-capture-sizes"),
        ("--num-scheduler-steps=#1", "left_out", _SEVERAL, ""),
        ("--multi-step-stream-outputs", "left_out", _SEVERAL, ""),
        ("--disable-async-output-proc", "left_out", "output that is handled beside the next step", ""),
        ("--scheduler-delay-factor=#0|0.0", "left_out", "prompts that wait for a while", ""),
        ("--preemption-mode=recompute", "left_out", "serving.preemption decides", ""),
        ("--swap-space=#", "left_out", _SWAP, ""),
        ("--use-v2-block-manager", "ignored", "how blocks are kept", ""),
        ("--num-lookahead-slots=#0", "refused", _DRAFT, "--speculative-config"),
        ("--speculative-model=", "refused", _DRAFT, "--speculative-config"),
        ("--num-speculative-tokens=#", "refused", _DRAFT, "--speculative-config"),
        ("--speculative-draft-tensor-parallel-size=#", "refused", _DRAFT, "--speculative-config"),
        ("--ngram-prompt-lookup-max=#", "refused", _DRAFT, "--speculative-config"),
        ("--ngram-prompt-lookup-min=#", "refused", _DRAFT, "--speculative-config"),
        ("--guided-decoding-backend=", "ignored", _TEXT, "--structured-outputs-config"),
        ("--enable-reasoning", "ignored", _TEXT, "--reasoning-parser"),
        ("--rope-scaling=", "refused", _CONFIG, "--hf-overrides"),
        ("--rope-theta=#", "refused", _CONFIG, "--hf-overrides"),
        ("--worker-use-ray", "ignored", _PROCESSES, "--distributed-executor-backend ray"),
        ("--engine-use-ray", "ignored", _PROCESSES, ""),
        ("--device=", "ignored", _PROCESSES, ""),
        ("--tokenizer-pool-size=#", "ignored", _PROCESSES, ""),
        ("--tokenizer-pool-type=", "ignored", _PROCESSES, ""),
        ("--tokenizer-pool-extra-config=", "ignored", _PROCESSES, ""),
        ("--task=auto|generate", "refused", "only models that generate text are simulated", "--runner"),
    ),
    "sglang": (
        ("--cuda-graph-max-bs=#", "ignored", _RENAMED, "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-bs=*", "ignored", _RENAMED, "--cuda-graph-bs-decode"),
        ("--max-micro-batch-size=#", "ignored", _RENAMED, "--pp-max-micro-batch-size"),
        ("--hybrid-kvcache-ratio=#", "ignored", _RENAMED, "--swa-full-tokens-ratio"),
        ("--stream-output", "ignored", _RENAMED, "--incremental-streaming-output"),
        ("--nsa-decode-backend=", "ignored", _RENAMED, "--dsa-decode-backend"),
        ("--nsa-prefill-backend=", "ignored", _RENAMED, "--dsa-prefill-backend"),
        ("--enable-nsa-prefill-context-parallel", "ignored", _RENAMED, "--enable-prefill-cp"),
        ("--enable-dsa-prefill-context-parallel", "ignored", _RENAMED, "--enable-prefill-cp"),
        ("--enable-prefill-context-parallel", "ignored", _RENAMED, "--enable-prefill-cp"),
        ("--piecewise-cuda-graph-max-tokens=#", "ignored", _RENAMED, "--cuda-graph-max-bs-prefill"),
        ("--piecewise-cuda-graph-tokens=*", "ignored", _RENAMED, "--cuda-graph-bs-prefill"),
        ("--mamba-scheduler-strategy=", "ignored", _RENAMED, "--mamba-radix-cache-strategy"),
        ("--oltp-traces-endpoint=", "ignored", _RENAMED, "--otlp-traces-endpoint"),
        ("--disable-disk-cache", "ignored", _RENAMED, "--disable-outlines-disk-cache"),
        ("--file-storage-pth=", "ignored", _RENAMED, "--file-storage-path"),
        ("--disable-piecewise-cuda-graph", "left_out", KERNELS, "--disable-prefill-cuda-graph"),
        ("--enable-piecewise-cuda-graph", "left_out", KERNELS, "--cuda-graph-backend-prefill"),
        ("--enforce-piecewise-cuda-graph", "left_out", KERNELS, "--cuda-graph-backend-prefill"),
        ("--disable-flashinfer", "left_out", KERNELS, "--attention-backend"),
        ("--disable-mla", "left_out", "models with MLA cache its latent", ""),
        ("--enable-flashinfer-mla", "left_out", KERNELS, "--attention-backend"),
        ("--enable-flashmla", "left_out", KERNELS, "--attention-backend"),
        ("--enable-flashinfer-cutlass-moe", "left_out", KERNELS, "--moe-runner-backend"),
        ("--enable-flashinfer-trtllm-moe", "left_out", KERNELS, "--moe-runner-backend"),
        ("--enable-flashinfer-mxfp4-moe", "left_out", KERNELS, "--moe-runner-backend"),
        ("--enable-triton-kernel-moe", "left_out", KERNELS, "--moe-runner-backend"),
        ("--n-share-experts-fusion=#0", "left_out", KERNELS, ""),
        ("--enable-double-sparsity", "refused", "sparse attention is not simulated", ""),
        ("--torchao-config=", "refused", "weights of torchao are not simulated", "--quantization"),
        ("--enable-ep-moe", "refused", "write --ep-size, as large as --tp-size", "--ep-size"),
        ("--enable-deepep-moe", "refused", "write --moe-a2a-backend deepep", "--moe-a2a-backend deepep"),
        ("--enable-overlap-schedule", "ignored", "schedules overlap by default", ""),
        ("--disable-flashinfer-sampling", "ignored", _TEXT, "--sampling-backend"),
        ("--disable-jump-forward", "ignored", _TEXT, ""),
        ("--disable-nan-detection", "ignored", _TEXT, ""),
        ("--enable-nan-detection", "ignored", _TEXT, ""),
        ("--collect-tokens-histogram", "ignored", _LOGS, "--enable-metrics"),
        ("--enable-expert-distribution-metrics", "ignored", _LOGS, "--expert-balancedness-report-mode"),
        ("--load-watch-interval=#", "ignored", _PROCESSES, ""),
        ("--prefill-round-robin-balance", "ignored", _PROCESSES, ""),
        ("--pdlb-url=", "ignored", _PROCESSES, ""),
    ),
}


def _gone(engine: str, text: str, fate: Fate, words: str, instead: str) -> Gone:
    return Gone(engine=engine, flag=flag_of(text, fate, words), instead=instead, is_renamed=words == _RENAMED)


GONE: Final[Mapping[str, Mapping[str, Gone]]] = {
    engine: {made.flag.name: made for made in (_gone(engine, *row) for row in rows)} for engine, rows in _TABLE.items()
}
"""Engine → name → option that it has no longer."""
