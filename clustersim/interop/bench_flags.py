"""The options of ``vllm bench serve`` in vLLM 0.19 (``vllm/benchmarks/serve.py``, ``vllm/benchmarks/datasets.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.interop.flags import Flag, table

FLAGS: Final[Mapping[str, Flag]] = table(
    read="""
        --burstiness= --dataset-name= --goodput=* --input-len= --max-concurrency= --num-prompts= --output-len=
        --prefix-repetition-num-prefixes= --prefix-repetition-output-len= --prefix-repetition-prefix-len=
        --prefix-repetition-suffix-len= --random-input-len= --random-output-len= --random-prefix-len=
        --random-range-ratio= --request-rate= --seed=#
        """,
    ignored={
        "where the server is": """
            --backend= --base-url= --endpoint= --header=* --host= --insecure --port=#
            """,
        "text and sampling; only lengths in tokens are simulated": """
            --extra-body= --frequency-penalty=# --ignore-eos --logprobs=# --min-p=# --model= --presence-penalty=#
            --repetition-penalty=# --request-id-prefix= --served-model-name= --skip-tokenizer-init --temperature=#
            --tokenizer= --tokenizer-mode= --top-k=# --top-p=# --trust-remote-code
            """,
        "results; see `clustersim run --vllm-json`": """
            --append-result --disable-tqdm --label= --metadata=* --metric-percentiles= --percentile-metrics=
            --plot-dataset-stats --plot-timeline --profile --ready-check-timeout-sec=# --result-dir= --result-filename=
            --save-detailed --save-result --timeline-itl-thresholds=*
            """,
        "of another dataset": """
            --asr-max-audio-len-sec= --asr-min-audio-len-sec= --blazedit-max-distance= --blazedit-min-distance=
            --custom-output-len=# --dataset-path= --disable-shuffle --enable-multimodal-chat --hf-name=
            --hf-output-len=# --hf-split= --hf-subset= --no-oversample --no-reranker --no-stream --random-batch-size=#
            --random-mm-base-items-per-request= --random-mm-bucket-config= --random-mm-limit-mm-per-prompt=
            --random-mm-num-mm-items-range-ratio= --sharegpt-output-len=# --skip-chat-template --sonnet-input-len=#
            --sonnet-output-len=# --sonnet-prefix-len=# --spec-bench-category= --spec-bench-output-len=#
            """,
        "of no effect on its own": """
            --lora-assignment= --ramp-up-end-rps=# --ramp-up-start-rps=#
            """,
    },
    inexact={
        "the simulated server needs no warming up": "--num-warmups=#0",
    },
    refused={
        "LoRA is not simulated": "--lora-modules=*",
        "a rate that grows is not simulated; record the arrivals in a trace": "--ramp-up-strategy=",
        "beam search is not simulated": "--use-beam-search",
    },
)
"""Name → option."""
