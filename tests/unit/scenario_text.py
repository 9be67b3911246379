"""A complete small scenario that needs no file of the catalog but one topology."""

SMALL = """\
name: small
seed: 7
topology: dgx-h100
model:
  name: tiny
  source: made up for tests
  config:
    model_type: llama
    hidden_size: 64
    num_hidden_layers: 4
    num_attention_heads: 8
    num_key_value_heads: 4
    intermediate_size: 128
    vocab_size: 1000
    rms_norm_eps: 1e-5
    torch_dtype: bfloat16
plan: {tp: 4, pp: 2}
serving:
  engine:
    name: still
    source: made up for tests
    schedule: 0 s
    schedule_per_request: 0 s
    sample: 0 s
    sample_per_request: 0 s
    launch: 2 us
    graph_launch: 1 us
    graph_max_tokens: 256
    collective_launch: 0 s
workload:
  arrivals: {process: constant, rate: 4/s}
  prompt_tokens: 100
  output_tokens: {fixed: 10}
  requests: 20
"""
