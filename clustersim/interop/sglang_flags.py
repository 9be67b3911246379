"""The options of ``python -m sglang.launch_server`` in SGLang 0.5.23, and what a simulation makes of each.

From ``sglang/srt/arg_groups/fields`` and ``ServerArgs.add_cli_args`` of release 0.5.23. As in
:mod:`clustersim.interop.flags`, an option stands in exactly one of the tables; what is made of those in ``READ`` is in
:mod:`clustersim.interop.sglang`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.interop.flags import STORED, Flag, table

VERSION: Final = "0.5.23"

READ: Final = """
    --attn-dp-size=# --chunked-prefill-size=# --context-length=# --cuda-graph-backend-decode= --cuda-graph-bs-decode=*
    --cuda-graph-max-bs-decode=# --deepep-mode= --disable-cuda-graph --disable-decode-cuda-graph --disable-radix-cache
    --dp-size=# --dtype= --enable-dp-attention --enable-mixed-chunk --enable-priority-scheduling
    --enable-two-batch-overlap --ep-num-redundant-experts=# --ep-size=# --kv-cache-dtype= --load-balance-method=
    --max-prefill-tokens=# --max-queued-requests=# --max-running-requests=# --max-total-tokens=# --mem-fraction-static=#
    --model-path= --moe-a2a-backend= --nnodes=# --page-size=# --pp-size=# --quantization= --schedule-policy= --tp-size=#
    """
IGNORED: Final[Mapping[str, str]] = {
    "where it listens, and who may ask": """
        --admin-api-key= --api-key= --enable-http-worker-reuseport --enable-http2 --enable-ssl-refresh
        --engine-info-bootstrap-port=# --fastapi-root-path= --file-storage-path= --gated-launch-port=# --grpc-mode
        --grpc-port=# --grpc-response-timeout-secs=# --host= --http2-initial-connection-window-size=#
        --http2-max-concurrent-streams=# --port=# --sidecar= --sidecar-args= --smg-grpc-mode --smg-http-sidecar-port=#
        --ssl-ca-certs= --ssl-certfile= --ssl-keyfile= --ssl-keyfile-password= --tool-server=
        """,
    "text, templates, sampling and parsers; only lengths in tokens are simulated": """
        --allow-auto-truncate --chat-template= --completion-template= --constrained-json-disable-any-whitespace
        --constrained-json-max-whitespace-cnt=# --constrained-json-whitespace-pattern= --default-chat-template-kwargs=
        --disable-outlines-disk-cache --disable-tokenizer-batch-decode --dynamic-batch-tokenizer-batch-size=#
        --dynamic-batch-tokenizer-batch-timeout=# --enable-cache-report --enable-custom-logit-processor
        --enable-dynamic-batch-tokenizer --enable-mis --enable-response-store --enable-return-aux-hidden-states
        --enable-return-hidden-states --enable-return-indexer-topk --enable-return-routed-experts
        --enable-streaming-session --enable-strict-thinking --enable-tokenizer-batch-encode --enable-watermark
        --grammar-backend= --hf-chat-template-name= --incremental-streaming-output --preferred-sampling-params=
        --random-seed=# --reasoning-parser= --return-aux-hidden-state-layer-ids=* --return-hidden-states-mode=
        --return-input-ids --return-output-ids --sampling-backend= --sampling-defaults= --sampling-mask-max-tokens=#
        --served-model-name= --skip-tokenizer-init --stream-response-default-include-usage --strip-thinking-cache
        --tokenizer-backend= --tokenizer-mode= --tokenizer-path= --tool-call-parser= --trust-request-chat-template
        --watermark-config=
        """,
    "logs, metrics and profiles": """
        --bucket-e2e-request-latency=* --bucket-inter-token-latency=* --bucket-time-to-first-token=*
        --crash-dump-folder= --debug-cuda-graph --debug-tensor-dump-input-file= --debug-tensor-dump-layers=*
        --debug-tensor-dump-output-folder= --decode-log-interval=# --enable-cudagraph-gc --enable-forward-pass-metrics
        --enable-layerwise-nvtx-marker --enable-metrics --enable-metrics-for-all-schedulers --enable-mfu-metrics
        --enable-profile-cuda-graph --enable-request-time-stats-logging --enable-trace
        --expert-balancedness-report-mode= --expert-distribution-recorder-buffer-size=#
        --expert-distribution-recorder-mode= --export-metrics-to-file --export-metrics-to-file-dir=
        --extra-metric-labels= --forward-hooks= --forward-pass-metrics-ipc-name= --forward-pass-metrics-worker-id=
        --gc-warning-threshold-secs=# --generation-tokens-buckets=* --kv-canary= --kv-canary-real-data=
        --kv-canary-sweep-interval=# --kv-events-config= --load-publish-endpoint= --load-snapshot-publish-interval=#
        --log-level= --log-level-http= --log-requests --log-requests-format= --log-requests-level=#
        --log-requests-target=* --msprobe-dump-config= --otlp-service-name= --otlp-traces-endpoint=
        --prompt-tokens-buckets=* --show-time-cost --tokenizer-metrics-allowed-custom-labels=*
        --tokenizer-metrics-custom-labels-header= --trace-modules= --uvicorn-access-log-exclude-prefixes=*
        """,
    "loading the model": """
        --checkpoint-engine-wait-weights-before-ready --custom-weight-loader=* --decrypted-config-file=
        --decrypted-draft-config-file= --delete-ckpt-after-loading --download-dir= --enable-memory-saver
        --enable-weights-cpu-backup --load-format= --model-checksum=? --model-config-parser= --model-impl=
        --model-loader-extra-config= --modelexpress-config= --modelopt-checkpoint-restore-path=
        --modelopt-checkpoint-save-path= --modelopt-export-path= --modelopt-quant= --quantization-param-path=
        --quantize-and-serve --remote-instance-weight-loader-backend= --remote-instance-weight-loader-seed-instance-ip=
        --remote-instance-weight-loader-seed-instance-service-port=#
        --remote-instance-weight-loader-send-weights-group-ports=
        --remote-instance-weight-loader-start-seed-via-transfer-engine --revision= --rl-on-policy-target=
        --rl-quant-profile= --startup-weight-load-mode= --trust-remote-code --weight-cache-mode= --weight-cache-socket=
        --weight-cache-timeout=# --weight-loader-disable-mmap --weight-loader-drop-cache-after-load
        --weight-loader-prefetch-checkpoints --weight-loader-prefetch-num-threads=# --weight-version=
        """,
    "how processes are started and find each other": """
        --base-gpu-id=# --batch-notify-size=# --detokenizer-worker-num=# --device= --dist-init-addr= --dist-timeout=#
        --enable-dp-attention-local-control-broadcast --enable-p2p-check --gc-threshold=* --gpu-id-step=#
        --mlx-enable-sampling --nccl-port=# --node-rank=# --numa-node=* --pre-warm-nccl --scheduler-recv-interval=#
        --skip-server-warmup --sleep-on-idle --soft-watchdog-timeout=# --tokenizer-worker-num=# --use-ray --warmups=
        --watchdog-timeout=#
        """,
    "images and audio, which no request has": """
        --allowed-media-domains=* --asr-max-buffer-seconds=# --asr-max-concurrent-sessions=#
        --disable-fast-image-processor --enable-broadcast-mm-inputs-process --enable-mm-global-cache --enable-multimodal
        --enable-precise-embedding-interpolation --enable-prefix-mm-cache --image-processor-backend=
        --limit-mm-data-per-request= --media-url-max-file-size-mb=# --mm-attention-backend= --mm-enable-dp-encoder
        --mm-feature-transport= --mm-global-cache-backend= --mm-io-worker-num=# --mm-preprocess-cache-size-mb=#
        --mm-process-config= --mm-processor-worker-num=# --no-mm-enable-dp-encoder --trust-mm-content-hashes
        """,
    "all layers keep all of their K/V, as it asks for": "--disable-hybrid-swa-memory",
    "state-space layers, which no model has here": """
        --enable-int8-mamba-checkpoint --enable-linear-replayssm --enable-linear-replayssm-spec
        --enable-mamba-cache-stochastic-rounding --int8-mamba-ckpt-size=# --linear-attn-backend=
        --linear-attn-decode-backend= --linear-attn-prefill-backend= --linear-attn-verify-backend=
        --linear-replayssm-cache-len=# --mamba-backend= --mamba-cache-philox-rounds=# --mamba-full-memory-ratio=#
        --mamba-max-states-per-path=# --mamba-radix-cache-strategy= --mamba-ssm-dtype= --mamba-track-interval=#
        --max-mamba-cache-size=#
        """,
    "of no effect without an option that is refused or not simulated": """
        --abort-on-priority-when-disabled --c128-page-size=# --cp-strategy= --dcp-comm-backend= --dcp-replicate-q-proj
        --decoupled-spec-bind-endpoint= --decoupled-spec-connect-endpoints= --decoupled-spec-rank=# --deepep-config=
        --deepep-v2-mode= --disaggregation-bootstrap-port=#
        --disaggregation-decode-allocation-policy=
        --disaggregation-decode-enable-radix-cache --disaggregation-decode-extra-slots=#
        --disaggregation-decode-host-receive-threshold=# --disaggregation-decode-polling-interval=#
        --disaggregation-decode-retraction-backup= --disaggregation-enable-kv-checksum --disaggregation-ib-device=
        --disaggregation-transfer-backend= --dllm-algorithm-config= --dllm-fdfo --elastic-ep-initial-size=#
        --elastic-ep-join-mode= --elastic-ep-join-rank-offset=# --elastic-ep-scale-timeout=#
        --enable-adaptive-dispatch-to-encoder --enable-cp-decode-attn-tp --enable-draft-weights-cpu-backup
        --enable-dsa-cache-layer-split --enable-elastic-expert-backup --enable-linker-mla-dedup
        --enable-lora-overlap-loading --enable-multi-layer-eagle --enable-pd-role-switch --encoder-bootstrap-port=#
        --encoder-register-urls=* --encoder-transfer-backend= --encoder-urls=* --ep-dispatch-algorithm=
        --eplb-algorithm= --eplb-min-rebalancing-utilization-threshold=# --eplb-rebalance-layers-per-chunk=#
        --eplb-rebalance-num-iterations=# --experts-shared-outer-loras --fuseep-mode=
        --hisparse-config= --kt-cpuinfer=#
        --kt-max-deferred-experts-per-token=# --kt-method= --kt-num-gpu-experts=# --kt-threadpool-count=#
        --language-model-only --language-only --lora-backend= --lora-drain-wait-threshold=#
        --lora-eviction-policy= --lora-strict-loading --lora-target-modules=* --lora-use-virtual-experts --max-ep-size=#
        --max-loaded-loras=# --max-lora-chunk-size=# --max-lora-rank=# --max-loras-per-batch=#
        --mooncake-ib-device= --no-dcp-replicate-q-proj --no-dllm-fdfo --no-experts-shared-outer-loras
        --no-lora-strict-loading --no-ple-offload-embedding --no-speculative-enable-w4a4-mxfp4-megamoe
        --num-reserved-decode-tokens=# --offload-mode= --offload-num-in-group=# --offload-prefetch-step=#
        --optimistic-prefill-attempts=# --paged-experts-num-resident=# --pdmux-config-path= --ple-offload-backend=
        --ple-offload-dir= --ple-offload-embedding --prefill-decode-interval-min-bs=#
        --prefill-delayer-forward-passes-buckets=* --prefill-delayer-max-delay-ms=# --prefill-delayer-max-delay-passes=#
        --prefill-delayer-queue-min-ratio=# --prefill-delayer-token-usage-low-watermark=#
        --prefill-delayer-wait-seconds-buckets=* --sm-group-num=#
        --spec-trace-dir= --speculative-accept-threshold-acc=# --speculative-accept-threshold-single=#
        --speculative-adaptive --speculative-adaptive-config= --speculative-attention-mode=
        --speculative-dflash-block-size=# --speculative-domino-candidate-pool-size=#
        --speculative-draft-attention-backend= --speculative-draft-kv-cache-dtype= --speculative-draft-load-format=
        --speculative-draft-model-path= --speculative-draft-model-quantization= --speculative-draft-model-revision=
        --speculative-draft-sink-size=# --speculative-draft-window-size=# --speculative-dsa-topk-backend=
        --speculative-dspark-align-verify-tokens-to-graph-tier --speculative-dspark-block-size=#
        --speculative-dspark-confidence-sts-path= --speculative-dspark-sps-table-path= --speculative-eagle-topk=#
        --speculative-enable-w4a4-mxfp4-megamoe --speculative-moe-a2a-backend= --speculative-moe-runner-backend=
        --speculative-ngram-capacity=# --speculative-ngram-external-corpus-max-tokens=#
        --speculative-ngram-external-corpus-path= --speculative-ngram-external-sam-budget=#
        --speculative-ngram-match-type= --speculative-ngram-max-bfs-breadth=# --speculative-ngram-max-trie-depth=#
        --speculative-ngram-min-bfs-breadth=# --speculative-num-draft-tokens=# --speculative-num-steps=#
        --speculative-token-map= --speculative-use-block-verification --speculative-use-rejection-sampling
        --uno-lora-path=
        """,
}
"""Why → options without a meaning in a simulation."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "kernels and graphs take what the cost model says, whichever they are": """
        --attention-backend=auto --bf16-gemm-backend=auto --boundary-reduction=auto --cuda-graph-backend-prefill=
        --cuda-graph-bs-prefill=* --cuda-graph-max-bs-prefill=# --cuda-graph-max-seq-len-prefill=#
        --cuda-graph-prefill-max-context= --decode-attention-backend=auto --disable-aiter-allreduce-fusion-in-decode
        --disable-aiter-allreduce-fusion-in-prefill --disable-chunked-prefix-cache --disable-cuda-graph-padding
        --disable-custom-all-reduce --disable-flashinfer-autotune --disable-flashinfer-cutlass-moe-fp4-allgather
        --disable-prefill-cuda-graph --disable-shared-experts-fusion --dsa-decode-backend=auto
        --dsa-paged-mqa-logits-backend=auto --dsa-prefill-backend=auto --dsa-topk-backend=auto --dsa-triton-union=#
        --dsv4-attn-backend=auto --dsv4-prefill-backend=auto --enable-aiter-allreduce-fusion --enable-amd-monokernel
        --enable-decoder-swa-bounded-replay --enable-deepseek-v4-fp4-indexer --enable-deterministic-inference
        --enable-dsa-fused-indexer --enable-encoder-swa-bounded-replay --enable-flashinfer-allreduce-fusion
        --enable-fp32-lm-head --enable-fused-moe-sum-all-reduce --enable-fused-qk-norm-rope --enable-lean-attention
        --enable-megamoe-for-layernorm-sp --enable-mscclpp --enable-nccl-nvls --enable-nvidia-megakernel
        --enable-page-major-kv-layout --enable-quant-communications --enable-scattered-sconv --enable-symm-mem
        --enable-tf32-matmul --enable-torch-compile --enable-torch-compile-debug-mode --enable-torch-symm-mem
        --enable-w4a4-mxfp4-megamoe --enforce-disable-flashinfer-allreduce-fusion --enforce-shared-experts-fusion
        --flashinfer-a2a-dispatch-type=auto --flashinfer-allreduce-fusion-backend=auto --flashinfer-autotune-skip-ops=*
        --flashinfer-mla-disable-ragged --flashinfer-mxfp4-moe-precision=auto --fp4-gemm-backend=auto
        --fp8-gemm-backend=auto --moe-runner-backend=auto --monokernel-backend=auto
        --no-enable-decoder-swa-bounded-replay --no-enable-dsa-fused-indexer --no-enable-fused-qk-norm-rope
        --no-enable-tf32-matmul --prefill-attention-backend=auto --prefill-kv-cache-dequant-dtype=auto
        --qsa-indexer-dtype=auto --torch-compile-max-bs=# --triton-attention-num-kv-splits=#
        --triton-attention-reduce-in-fp32 --triton-attention-split-tile-size=#
        """,
    "each layer is split as the plan says": """
        --disable-attn-tp-gather --enable-attn-tp-input-scattered --enable-dense-mlp-attn-tp --enable-dp-lm-head
        --enable-layernorm-sp --enable-shared-experts-attn-tp --enable-tp-lm-head-all-to-all --moe-dense-tp-size=#
        --no-enable-tp-lm-head-all-to-all --shared-experts-tp-size=#
        """,
    "tokens fall on experts as plan.ep says, and go there in the format of activations": """
        --deepep-dispatcher-output-dtype=
        """,
    "the scheduler admits, retracts and composes steps by its own rule": """
        --enable-dynamic-chunking --enable-prefill-delayer --enable-single-batch-overlap
        --num-continuous-decode-steps=#1 --pp-async-batch-depth=#0 --pp-max-micro-batch-size=#
        --min-free-slots-delay=# --prefill-decode-interval=# --prefill-max-requests=# --retraction-policy=length
        --schedule-conservativeness=#1|1.0
        """,
    "priorities order requests that wait, the smallest first, and preempt none": """
        --default-priority-value=# --disable-priority-preemption --priority-scheduling-preemption-threshold=#
        --schedule-low-priority-values-first
        """,
    "two batches that overlap are equal halves": "--tbo-token-distribution-threshold=#",
    "the engine's overheads are those of overlapped scheduling": "--disable-overlap-schedule",
    "every token is sent at once": "--stream-interval=#1",
    "experts do not move to where tokens fall, and copies of them take no memory": """
        --enable-eplb --enable-waterfill --init-expert-location=trivial
        """,
    STORED: """
        --disaggregation-decode-enable-offload-kvcache --enable-flexkv --enable-hierarchical-cache --enable-lmcache
        --enable-session-radix-cache --enable-unified-cache-external-linker --flexkv-config-file=
        --hicache-host-memory-fraction=# --hicache-host-memory-mode= --hicache-io-backend= --hicache-mem-layout=
        --hicache-ratio=# --hicache-size=# --hicache-storage-backend= --hicache-storage-backend-extra-config=
        --hicache-storage-prefetch-policy= --hicache-storage-prefetch-retry-max-attempts=#
        --hicache-storage-prefetch-retry-poll-interval=# --hicache-write-policy= --lmcache-config-file=
        --radix-cache-backend= --unified-cache-external-linker-backend= --unified-cache-external-linker-config=
        """,
    "the least recently used prefix is forgotten first": """
        --radix-eviction-policy=lru --radix-eviction-policy-config=
        """,
    "layers with a window keep all of their K/V, as others do": """
        --enable-unified-memory --swa-full-tokens-ratio=# --swa-prefix-tails=#
        """,
}
"""What is not simulated, or stands for it → options that ask for it; each run says so."""

REFUSED: Final[Mapping[str, str]] = {
    "the options of a file are not read; write them into the command": "--config=",
    "say it with --cuda-graph-max-bs-decode or --disable-cuda-graph": "--cuda-graph-config=",
    "weights on the host are not simulated": """
        --cpu-offload-gb=#0 --enable-paged-experts --kt-weight-path= --offload-group-size=#-1
        """,
    "K/V that moves between servers is not read; write a scenario of two pools": """
        --disaggregation-mode=null --encoder-only
        """,
    "its layout is none of clustersim's; see plan.sp for its own": """
        --attn-cp-size=#1 --dcp-size=#1 --dwdp-size=#1 --enable-kv-cache-sharding --enable-prefill-cp --moe-dp-size=#1
        """,
    "speculative decoding is not simulated": "--decoupled-spec-role=null --speculative-algorithm=",
    "LoRA is not simulated": "--enable-lora --lora-paths=*",
    "only models that generate text token by token are simulated": """
        --dllm-algorithm= --is-embedding --prefill-only-disable-kv-cache
        """,
    "changes of the configuration are not read; give a config.json with them as --model": """
        --json-model-override-args={}
        """,
    "ranks that come and go are not simulated": "--elastic-ep-backend=none",
    "sharing a device between prefill and decode, or sparse K/V, is not simulated": "--enable-hisparse --enable-pdmux",
}
"""Why → options that are refused."""

ALIASES: Final[Mapping[str, str]] = {
    "--attention-context-parallel-size": "--attn-cp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--context-bucket": "--cuda-graph-prefill-max-context",
    "--data-parallel-size": "--dp-size",
    "--decode-context-parallel-size": "--dcp-size",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--grpc-http-sidecar-port": "--smg-http-sidecar-port",
    "--hierarchical-sparse-attention-extra-config": "--hisparse-config",
    "--model": "--model-path",
    "--moe-data-parallel-size": "--moe-dp-size",
    "--nccl-init-addr": "--dist-init-addr",
    "--pipeline-parallel-size": "--pp-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
    "--tensor-parallel-size": "--tp-size",
}


FLAGS: Final[Mapping[str, Flag]] = table(read=READ, ignored=IGNORED, refused=REFUSED, left_out=LEFT_OUT)
"""Name → option."""
