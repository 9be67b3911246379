"""Options that earlier releases of vLLM had: what they mean here, and what took their place.

:mod:`clustersim.interop.launch.versions` has the releases that had them. An image of such a release takes the option;
vLLM 0.19 refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.interop.flags import Fate, Flag, table
from clustersim.interop.launch.versions import Version, has, when
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """An option that is no longer there, and what took its place (empty: nothing)."""

    flag: Flag
    instead: str = ""

    def is_in(self, release: Version | None) -> bool:
        """Tell whether a release has it."""
        return release is not None and has("vllm", self.flag.name, release)

    @property
    def words(self) -> str:
        """When there was such an option, and what to give instead."""
        told = f"it was there {when('vllm', self.flag.name)}"
        return f"{told}; {self.instead} took its place" if self.instead else told


_GRAPHS: Final = "steps beyond what graphs were captured for take their gaps from graph_max_tokens"
_SEVERAL: Final = "several steps that are scheduled at once"
_DRAFT: Final = "speculative decoding is not simulated"
_TEXT: Final = "text, templates and parsers; only lengths in tokens are simulated"
_PROCESSES: Final = "how processes are started and find each other"
_TABLE: Final[tuple[tuple[str, Fate, str, str], ...]] = (
    ("--max-context-len-to-capture=#", "inexact", _GRAPHS, "--max-seq-len-to-capture"),
    ("--max-seq-len-to-capture=#", "inexact", _GRAPHS, "--max-cudagraph-capture-size"),
    ("--cuda-graph-sizes=*", "inexact", _GRAPHS, "--cudagraph-capture-sizes"),
    ("--num-scheduler-steps=#1", "inexact", _SEVERAL, ""),
    ("--multi-step-stream-outputs", "inexact", _SEVERAL, ""),
    ("--disable-async-output-proc", "inexact", "output that is handled beside the next step", ""),
    ("--scheduler-delay-factor=#0|0.0", "inexact", "prompts that wait for a while", ""),
    ("--preemption-mode=recompute", "inexact", "serving.preemption decides", ""),
    (
        "--swap-space=#",
        "left_out",
        "K/V of preempted requests is computed anew, unless serving.preemption says swap",
        "",
    ),
    ("--use-v2-block-manager", "ignored", "how blocks are kept", ""),
    ("--num-lookahead-slots=#0", "refused", _DRAFT, "--speculative-config"),
    ("--speculative-model=", "refused", _DRAFT, "--speculative-config"),
    ("--num-speculative-tokens=#", "refused", _DRAFT, "--speculative-config"),
    ("--speculative-draft-tensor-parallel-size=#", "refused", _DRAFT, "--speculative-config"),
    ("--ngram-prompt-lookup-max=#", "refused", _DRAFT, "--speculative-config"),
    ("--ngram-prompt-lookup-min=#", "refused", _DRAFT, "--speculative-config"),
    ("--guided-decoding-backend=", "ignored", _TEXT, "--structured-outputs-config"),
    ("--enable-reasoning", "ignored", _TEXT, "--reasoning-parser"),
    ("--rope-scaling=", "refused", "give a config.json with it as --model", "--hf-overrides"),
    ("--rope-theta=#", "refused", "give a config.json with it as --model", "--hf-overrides"),
    ("--worker-use-ray", "ignored", _PROCESSES, "--distributed-executor-backend ray"),
    ("--engine-use-ray", "ignored", _PROCESSES, ""),
    ("--device=", "ignored", _PROCESSES, ""),
    ("--tokenizer-pool-size=#", "ignored", _PROCESSES, ""),
    ("--tokenizer-pool-type=", "ignored", _PROCESSES, ""),
    ("--tokenizer-pool-extra-config=", "ignored", _PROCESSES, ""),
    ("--task=auto|generate", "refused", "only models that generate text are simulated", "--runner"),
)


def _gone(text: str, fate: Fate, words: str, instead: str) -> Gone:
    told: dict[Fate, Mapping[str, str]] = {fate: {words: text}}
    none: Mapping[str, str] = {}
    (flag,) = table(
        read="", ignored=told.get("ignored", none), inexact=told.get("inexact", none),
        left_out=told.get("left_out", none), refused=told.get("refused", none),
    ).values()  # fmt: skip
    return Gone(flag=flag, instead=instead)


GONE: Final[Mapping[str, Gone]] = {made.flag.name: made for made in (_gone(*row) for row in _TABLE)}
"""Name → option that vLLM has no longer."""
