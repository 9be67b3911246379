"""The options of benchmarks: of ``vllm bench serve`` in vLLM 0.19, and of ``sglang.bench_serving`` in SGLang 0.5.23.

From ``vllm/benchmarks/serve.py`` and ``vllm/benchmarks/datasets.py``, and from ``sglang/benchmark/serving.py``.
"""

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
        "of no effect without an option that is refused or not simulated": """
            --lora-assignment= --ramp-up-end-rps=# --ramp-up-start-rps=#
            """,
        "the simulated server needs no warming up": "--num-warmups=#",
    },
    left_out={},
    refused={
        "LoRA is not simulated": "--lora-modules=*",
        "a rate that grows is not simulated; record the arrivals in a trace": "--ramp-up-strategy=",
        "beam search is not simulated": "--use-beam-search",
    },
)
"""Name → option."""

SGLANG_FLAGS: Final[Mapping[str, Flag]] = table(
    read="""
        --dataset-name= --goodput=* --gsp-num-groups= --gsp-output-len= --gsp-prompts-per-group= --gsp-question-len=
        --gsp-system-prompt-len= --max-concurrency= --num-prompts= --random-input-len= --random-output-len=
        --random-range-ratio= --request-rate= --seed=
        """,
    ignored={
        "where the server is": """
            --backend= --base-url= --header=* --host= --pd-separated --port=# --profile-decode-url=*
            --profile-prefill-url=* --ready-check-timeout-sec=# --rust-client --rust-worker-threads=#
            """,
        "text and sampling; only lengths in tokens are simulated": """
            --apply-chat-template --disable-stream --extra-request-body= --logprob-start-len=# --model= --prompt-suffix=
            --return-logprob --return-routed-experts --served-model-name= --temperature=# --token-ids-logprob=*
            --tokenize-prompt --tokenizer= --top-logprobs-num=# --top-p=#
            """,
        "results; see `clustersim run --vllm-json`": """
            --cache-report --disable-tqdm --output-details --output-file= --plot-throughput --print-requests --profile
            --profile-activities=* --profile-by-stage --profile-num-steps=# --profile-output-dir= --profile-prefix=
            --profile-stages=* --profile-start-step=# --profile-steps=# --tag=
            """,
        "of another dataset": """
            --agentic-max-turns=# --dataset-offset=# --dataset-path= --image-content= --image-count=# --image-format=
            --image-resolution= --mooncake-num-rounds=# --mooncake-slowdown-factor=# --mooncake-workload=
            --random-image-count --sharegpt-context-len=# --sharegpt-output-len=# --speed-bench-category=
            --speed-bench-output-len=#
            """,
        "of no effect without an option that is refused or not simulated": """
            --flush-cache-timeout=# --gsp-fast-prepare --gsp-send-routing-key --gsp-zipf-alpha=#
            --lora-request-distribution= --lora-zipf-alpha=#
            """,
        "the simulated server starts empty, and needs no warming up": "--flush-cache --warmup-requests=#",
    },
    left_out={"requests of all groups come mixed": "--gsp-ordered"},
    refused={
        "LoRA is not simulated": "--lora-name=*",
        "requests that end of themselves have lengths that only a run tells": "--disable-ignore-eos",
        "all prefixes are alike, and have one length": """
            --gsp-group-distribution=uniform --gsp-num-turns=#1 --gsp-range-ratio=#1|1.0
            """,
        "put arrivals and lengths into a CSV, for workload.trace": "--use-trace-timestamps",
        "a prefill that is left out is not simulated": "--fake-prefill",
    },
)
"""Name → option of SGLang's."""
