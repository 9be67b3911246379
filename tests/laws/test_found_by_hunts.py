"""Scenarios on which a hunt (``tests.laws.hunt``) found something once: what holds of every run holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.architecture.documents import ROOT
from tests.laws.accounts import account_for
from tests.laws.random_scenarios import DEEPSEEK, GPT_OSS, LLAMA

USER = ROOT / "scenarios" / "user"
FOUND: dict[str, dict[str, Any]] = {
    "steps behind one that a failure cuts off, which hold blocks as a request finishes": {
        "name": "behind", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 3}},
        "plan": {"dp": 1, "pp": 3, "tp": 1},
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 100, "router": "round_robin", "engine": "vllm-0.19",
        },
        "workload": {
            "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"empirical": {"values": [10, 30]}},
            "output_tokens": 1, "requests": 4,
        },
        "run": {},
        "faults": [{"device": 0, "at": "5 ms"}],
    },
    "a request that waits for room on one of the SP ranks that keep whole sequences, and would fit into all together": {
        "name": "apart", "seed": 203, "topology": {"name": "dgx-a100", "nodes": 2},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {
            "dp": 1, "pp": 2, "tp": 1, "decode_overlap": "none",
            "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"},
        },
        "serving": {
            "scheduler": "chunked_prefill", "max_batch_requests": 8, "max_batch_tokens": 32, "kv_block_tokens": 16,
            "kv_blocks": 8, "preemption": "never", "router": "round_robin", "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "poisson", "rate": "300/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 70}},
            "output_tokens": {"uniform": {"low": 1, "high": 5}}, "requests": 5,
        },
        "run": {},
        "faults": [],
    },
    "a weak link on a group of SP, and a group of TP with as many ranks from the same one on": {
        "name": "weak", "seed": 848, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": DEEPSEEK | {"num_hidden_layers": 4}},
        "plan": {
            "dp": 2, "tp": 2, "ep": 1,
            "sp": {"degree": 2, "scheme": "all_gather", "partition": "zigzag", "decode": "idle"},
        },
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 3, "max_batch_tokens": 256, "kv_block_tokens": 4,
            "kv_blocks": 25, "router": "fewest_waiting", "engine": "ideal", "queue_limit": 1,
        },
        "workload": {
            "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 6, "high": 16}}, "requests": 3,
        },
        "run": {},
        "faults": [{"link": ["n0.g2", "n0.nvswitch"], "at": "3 ms", "factor": 0.5}],
    },
    "a user's scheduler whose half-computed prompts hold all blocks": {
        "name": "full", "seed": 0, "topology": {"name": "dgx-a100", "nodes": 2},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"dp": 1, "pp": 2, "tp": 1},
        "serving": {
            "scheduler": f"{USER}/pace_keeper.py:PaceKeeper", "max_batch_requests": 8, "max_batch_tokens": 8,
            "kv_block_tokens": 1, "kv_blocks": 48, "router": "round_robin", "engine": "vllm-0.19",
            "scheduler_options": {"prompt_tokens": 2},
        },
        "workload": {
            "arrivals": {"process": "poisson", "rate": "200/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 9,
        },
        "run": {},
        "faults": [],
    },
    "an arrival at the instant at which all replicas come back, which another one takes than it first went to": {
        "name": "back", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"dp": 2, "pp": 1, "tp": 2},
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 1, "max_batch_tokens": 256, "kv_block_tokens": 4,
            "kv_blocks": 50, "router": "fewest_waiting", "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "1000/s"}, "prompt_tokens": 40, "output_tokens": 12,
            "requests": 6,
        },
        "run": {},
        "faults": [{"node": 0, "at": "1 ms", "until": "3 ms"}],
    },
    "requests that take turns again as the replica fails that decoded them": {
        "name": "turns", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"prefill": {"dp": 3, "tp": 1}, "decode": {"dp": 2, "tp": 1}},
        "serving": {"scheduler": "disaggregated", "kv_block_tokens": 4, "kv_blocks": 100, "engine": "ideal"},
        "workload": {
            "arrivals": {"process": "constant", "rate": "1000/s"}, "prompt_tokens": 40, "output_tokens": 60,
            "requests": 12,
        },
        "run": {},
        "faults": [{"device": 3, "at": "4200 us", "until": "7300 us"}],
    },
    "a decode replica that fails at the instant at which it receives a sequence": {
        "name": "received", "seed": 574, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 4}},
        "plan": {"prefill": {"dp": 4}, "decode": {"dp": 1, "tp": 2}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 8, "max_batch_tokens": 32, "kv_block_tokens": 4,
            "kv_blocks": 80, "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "200000/s"},
            "prompt_tokens": {"uniform": {"low": 20, "high": 60}},
            "output_tokens": {"uniform": {"low": 8, "high": 12}}, "requests": 24,
            "cancel_after": {"share": 0.5, "exponential": "3 ms"},
        },
        "run": {},
        "faults": [{"device": 5, "at": "8647288 ns", "until": "8648288 ns"}],
    },
    "blocks that are set aside as what comes before is lost with the replica that had computed it": {
        "name": "aside", "seed": 75, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 4}},
        "plan": {"prefill": {"dp": 4}, "decode": {"dp": 1, "tp": 2}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 16, "max_batch_tokens": 512, "kv_block_tokens": 16,
            "kv_blocks": 800, "engine": "ideal", "decode": {"kv_blocks": 60},
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "200000/s"},
            "prompt_tokens": {"uniform": {"low": 300, "high": 900}},
            "output_tokens": {"uniform": {"low": 8, "high": 12}}, "requests": 10,
        },
        "run": {},
        "faults": [{"device": 3, "at": "27127722 ns", "until": "30127722 ns"}],
    },
    "requests that were admitted, and no step that ended before the horizon": {
        "name": "stepless", "seed": 354, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": DEEPSEEK | {"num_hidden_layers": 5}},
        "plan": {
            "prefill": {"dp": 2, "ep": {"degree": 2, "scope": "global", "exchange": "deepep_normal"}},
            "decode": {"dp": 2, "pp": 2, "ep": 1},
        },
        "serving": {
            "scheduler": "disaggregated", "max_batch_tokens": 32, "kv_block_tokens": 1, "kv_blocks": 200,
            "engine": "vllm-0.19", "transfer": "layerwise",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "1000/s"}, "prompt_tokens": 40, "output_tokens": 8,
            "requests": 2,
        },
        "run": {"horizon": "500 us"},
        "faults": [],
    },
    "a sequence that leaves for its host as a step that the horizon cuts off leaves the first stage": {
        "name": "leaves", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": GPT_OSS | {"num_hidden_layers": 4}},
        "plan": {"dp": 3, "pp": 2, "tp": 1, "ep": 1},
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 4, "max_batch_tokens": 32, "kv_block_tokens": 1,
            "kv_blocks": 100, "router": "round_robin", "engine": "ideal", "queue_limit": 3, "preemption": "swap",
            "host_kv": "64 GiB", "order": {"by": "priority", "patience": "1 ms"},
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "20000/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 64}}, "output_tokens": {"uniform": {"low": 6, "high": 16}},
            "requests": 22, "cancel_after": {"share": 0.3, "fixed": "30 ms"},
            "priority": {"values": [0, 1], "weights": [1, 2]},
        },
        "run": {"horizon": "26901391 ns"},
    },
    "a request that is turned away beside a step that is empty here, of replicas in lockstep": {
        "name": "beside", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": DEEPSEEK | {"num_hidden_layers": 2}},
        "plan": {"dp": 2, "tp": 1, "ep": {"degree": 2, "scope": "global"}},
        "serving": {
            "scheduler": "continuous", "max_batch_tokens": 256, "kv_block_tokens": 16, "kv_blocks": 3,
            "router": "least_outstanding", "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "2000/s"}, "prompt_tokens": {"empirical": {"values": [7, 200]}},
            "output_tokens": 30, "requests": 6,
        },
        "run": {},
        "faults": [],
    },
    "a request that waits for room for all it will hold, on stages that are free": {
        "name": "room", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"dp": 1, "pp": 2, "tp": 1},
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 8, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "preemption": "never", "engine": "vllm-0.19",
        },
        "workload": {
            "arrivals": {"process": "all_at_once"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 3,
        },
        "run": {},
        "faults": [],
    },
    "a failure before any step of two pools ends, behind which transfers layer by layer were under way": {
        "name": "cut", "seed": 512, "topology": {"name": "h100-and-a100"},
        "model": {"name": "tiny", "source": "a test", "config": {
            "model_type": "deepseek_v3", "hidden_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8,
            "intermediate_size": 8192, "moe_intermediate_size": 1024, "n_routed_experts": 16, "num_experts_per_tok": 4,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 32,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 1024, "n_group": 4,
            "topk_group": 2, "num_hidden_layers": 3,
        }},
        "plan": {
            "prefill": {"dp": 1, "pp": 3, "tp": 2, "placement": "h100-sxm-80gb"},
            "decode": {"dp": 1, "pp": 2, "tp": 1, "placement": "a100-sxm-80gb"},
        },
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 8, "max_batch_tokens": 256, "kv_block_tokens": 4,
            "kv_blocks": 20, "engine": "ideal", "prefill": {"scheduler": "continuous", "router": "fewest_waiting"},
            "decode": {"scheduler": "continuous", "router": "power_of_two"}, "transfer": "layerwise", "queue_limit": 1,
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "1000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 5,
            "cancel_after": {"share": 1.0, "exponential": "1 ms"},
        },
        "run": {"horizon": None},
        "faults": [{"device": 2, "at": "100 us"}],
    },
    "stages that hand over to replicas in lockstep": {
        "name": "lockstep", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {
            "name": "tiny", "source": "a test",
            "config": LLAMA | {
                "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            },
        },
        "plan": {"prefill": {"dp": 1, "pp": 2}, "decode": {"dp": 2, "tp": 2, "ep": {"degree": 2, "scope": "global"}}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "engine": "vllm-0.19", "prefill": {"scheduler": "continuous"},
            "decode": {"scheduler": "continuous"},
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 10,
        },
        "run": {"horizon": None},
        "faults": [],
    },
    "a device that two faults slow down at a time when its step is cut off": {
        "name": "slow", "seed": 700, "topology": {"name": "mi300x-node", "nodes": 1},
        "model": {
            "name": "tiny", "source": "a test",
            "config": LLAMA | {
                "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
            },
        },
        "plan": {
            "prefill": {
                "dp": 3, "sp": {"degree": 2, "scheme": "all_gather", "partition": "zigzag", "decode": "idle"}, "ep": 2,
            },
            "decode": {"dp": 1},
        },
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "engine": "vllm-0.19", "prefill": {"scheduler": "chunked_prefill"},
            "decode": {"scheduler": "continuous", "kv_blocks": 80},
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 40,
            "shared_prefixes": {"groups": 1, "tokens": 3},
        },
        "run": {"horizon": "20 ms"},
        "faults": [
            {"device": 3, "at": "3.5 ms", "slowdown": 7.0},
            {"device": 3, "at": "6 ms", "slowdown": 1.5, "until": "12 ms"},
        ],
    },
    "a pass whose layers go to another pool as they are computed, on a link with others, when its replica fails": {
        "name": "by-layer", "seed": 918, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": GPT_OSS | {"num_hidden_layers": 4}},
        "plan": {
            "prefill": {"dp": 1, "tp": 4},
            "decode": {"dp": 1, "tp": 2, "ep": {"degree": 2, "exchange": "deepep_low_latency"}},
        },
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 8, "max_batch_tokens": 32, "kv_block_tokens": 1,
            "kv_blocks": 48, "engine": {"name": "vllm-0.19", "graph_sizes": [3, {"by": 5}]},
            "prefill": {"scheduler": "continuous"}, "decode": {"scheduler": "chunked_prefill"}, "transfer": "layerwise",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 29,
        },
        "run": {"horizon": "20 ms"},
        "faults": [{"device": 0, "at": "8102889 ns", "until": "8103889 ns"}],
    },
    "blocks set aside by layer for a request that has no token yet when its prefill replica fails": {
        "name": "aside", "seed": 918, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": GPT_OSS | {"num_hidden_layers": 4}},
        "plan": {"prefill": {"dp": 1, "tp": 1}, "decode": {"dp": 1, "tp": 2}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "engine": "vllm-0.19", "prefill": {"scheduler": "continuous"},
            "decode": {"scheduler": "continuous"}, "transfer": "layerwise",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 10,
        },
        "run": {"horizon": None},
        "faults": [{"device": 0, "at": "174068 ns", "until": "174069 ns"}],
    },
    "a sequence that a failure finds on the way to its host, before any copy is recorded": {
        "name": "leaving", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": DEEPSEEK | {"num_hidden_layers": 2}},
        "plan": {"dp": 1, "tp": 4},
        "serving": {
            "scheduler": "chunked_prefill", "max_batch_requests": 32, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 80, "preemption": "swap", "router": "round_robin", "engine": "vllm-0.19",
            "order": {"by": "priority", "patience": "1 ms"}, "queue_timeout": "2 ms", "host_kv": "64 GiB",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 6, "high": 16}}, "requests": 10,
            "cancel_after": {"share": 0.3, "fixed": "0 s"}, "priority": {"values": [0, 1], "weights": [1, 2]},
        },
        "run": {},
        "faults": [{"device": 0, "at": "5237988 ns"}],
    },
    "a sequence that is copied back while another waits, and that the horizon ends": {
        "name": "found", "seed": 400, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": {
            "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 2,
            "intermediate_size": 14336, "vocab_size": 32000, "num_hidden_layers": 3,
        }},
        "plan": {"dp": 2, "pp": 1, "tp": 4},
        "serving": {
            "scheduler": "chunked_prefill", "max_batch_requests": 32, "max_batch_tokens": 32, "kv_block_tokens": 1,
            "kv_blocks": 80, "preemption": "swap", "router": "power_of_two", "engine": "vllm-0.19",
            "order": {"by": "priority", "patience": "1 ms"}, "queue_timeout": "20 ms", "host_kv": "400 kB",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "200000/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 6, "high": 16}}, "requests": 11,
            "cancel_after": {"share": 0.3, "uniform": {"low": "0 s", "high": "20 ms"}},
            "priority": {"values": [0, 1], "weights": [1, 2]},
        },
        "run": {"horizon": "20 ms"},
        "faults": [{"device": 2, "at": "11196875 ns"}],
    },
    "a request that a failure sends to a decode replica with a smaller number, before the horizon": {
        "name": "again", "seed": 732, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {
            "hidden_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 14336,
            "num_hidden_layers": 9,
        }},
        "plan": {"prefill": {"dp": 3, "pp": 1, "tp": 2}, "decode": {"dp": 2, "pp": 1, "tp": 1}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "router": "round_robin", "engine": "ideal", "prefix_caching": True,
            "prefill": {"scheduler": "continuous", "router": "round_robin"},
            "decode": {"scheduler": "continuous", "router": "round_robin"}, "transfer": "layerwise", "queue_limit": 2,
            "order": {"by": "priority", "patience": "1 ms"}, "context_window": 60,
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "200000/s"},
            "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}}, "requests": 10,
            "shared_prefixes": {"groups": 1, "tokens": 3}, "priority": {"values": [0, 1], "weights": [1, 2]},
        },
        "run": {"horizon": "6344700 ns"},
        "faults": [{"device": 7, "at": "3.5 ms"}],
    },
    "a request that is turned away since no replica is left that could decode it": {
        "name": "nobody", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"prefill": {"dp": 1, "pp": 1, "tp": 1}, "decode": {"dp": 1, "pp": 1, "tp": 1}},
        "serving": {
            "scheduler": "disaggregated", "max_batch_requests": 4, "max_batch_tokens": 8, "kv_block_tokens": 1,
            "kv_blocks": 48, "engine": "ideal", "prefill": {"scheduler": "continuous"},
            "decode": {"scheduler": "continuous"},
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "5000/s"}, "prompt_tokens": 20, "output_tokens": 4,
            "requests": 3,
        },
        "run": {},
        "faults": [{"node": 0, "at": "0 s", "lose": "lose"}],
    },
    "layers that leave replicas in lockstep, whose passes are recorded as of the first": {'name': 'random',
         'seed': 669,
         'topology': {'name': 'h100-and-a100'},
         'model': {'name': 'tiny',
                   'source': 'a test',
                   'config': {'model_type': 'gpt_oss',
                              'hidden_size': 4096,
                              'num_attention_heads': 8,
                              'num_key_value_heads': 2,
                              'intermediate_size': 14336,
                              'vocab_size': 32000,
                              'num_local_experts': 8,
                              'num_experts_per_tok': 2,
                              'head_dim': 32,
                              'sliding_window': 24,
                              'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention',
                                              'full_attention'],
                              'num_hidden_layers': 4}},
         'plan': {'prefill': {'dp': 2,
                              'pp': 1,
                              'tp': 1,
                              'ep': {'degree': 2, 'scope': 'global'},
                              'placement': 'h100-sxm-80gb'},
                  'decode': {'dp': 2,
                             'pp': 2,
                             'tp': 2,
                             'ep': {'degree': 2, 'routing': {'zipf': 0.0}, 'redundant': 0},
                             'placement': 'a100-sxm-80gb'}},
         'serving': {'scheduler': 'disaggregated',
                     'max_batch_requests': 4,
                     'max_batch_tokens': 8,
                     'kv_block_tokens': 1,
                     'kv_blocks': 48,
                     'router': 'round_robin',
                     'order': {'by': 'shortest_prompt', 'patience': '10 us'},
                     'engine': 'vllm-0.19',
                     'prefix_caching': True,
                     'prefill': {'scheduler': 'continuous', 'router': 'round_robin'},
                     'decode': {'scheduler': 'continuous', 'router': 'round_robin'},
                     'transfer': 'layerwise'},
         'workload': {'arrivals': {'process': 'constant', 'rate': '20000/s'},
                      'prompt_tokens': {'uniform': {'low': 1, 'high': 64}},
                      'output_tokens': {'uniform': {'low': 1, 'high': 12}},
                      'requests': 10,
                      'shared_prefixes': {'groups': 1, 'tokens': 40}},
         'run': {'horizon': None},
         'faults': [{'node': 0, 'at': '0 s', 'until': '100 us', 'lose': 'lose'}]},
    "SP ranks that idle while others decode, which have nothing to copy to a host": {
        "name": "idle", "seed": 0, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {
            "dp": 1, "tp": 1, "sp": {"degree": 2, "scheme": "ring", "partition": "contiguous", "decode": "idle"},
        },
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 4, "max_batch_tokens": 64, "kv_block_tokens": 1,
            "kv_blocks": 60, "preemption": "swap", "host_kv": "8 GiB", "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "all_at_once"}, "prompt_tokens": 20, "output_tokens": 12, "requests": 3,
        },
        "run": {},
        "faults": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_what_a_hunt_found_holds_now(what: str) -> None:
    account_for(FOUND[what])


NO_TOKENS = """arrival_ms,prompt_tokens,output_tokens,session_id,cancel_after_ms
0,60,5,a,
0,60,0,a,0
1,20,0,b,0
1,60,0,b,0.3
1,90,0,c,4
2,60,0,c,0.01
2,60,4,a,
9,60,0,b,
"""
"""Clients that ask for no token, as failed requests of logs do: they are rejected, whenever their clients give up."""


@pytest.mark.parametrize("plan", [{"dp": 1}, {"dp": 1, "pp": 2}, {"prefill": {"dp": 1}, "decode": {"dp": 1}}], ids=str)
@pytest.mark.parametrize("turns", ["as_recorded", "wait"])
def test_clients_that_ask_for_no_token_are_rejected(plan: dict[str, Any], turns: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(NO_TOKENS, encoding="utf-8")
    outcomes = account_for(FOUND["a decode replica that fails at the instant at which it receives a sequence"] | {
        "plan": plan, "workload": {"trace": {"path": str(trace), "turns": turns, "requests": 8}}, "faults": [],
        "serving": {
            "scheduler": "disaggregated" if "prefill" in plan else "chunked_prefill", "max_batch_tokens": 16,
            "kv_block_tokens": 4, "kv_blocks": 80, "engine": "ideal",
        },
    })  # fmt: skip
    assert outcomes == {"rejected": 6, "finished": 2}
