"""What the words of a row may be: a reference of columns and forms, made of what reads them.

Not here: which models and engines there are, which the catalogs say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from clustersim.accuracy import metrics, plans, systems
from clustersim.accuracy.compare import FORMS
from clustersim.accuracy.families import collectives
from clustersim.accuracy.remarks import UNMODELLED
from clustersim.accuracy.row import COLUMNS

START: Final = "<!-- words of a table: made of the code; pytest tests/architecture --update-golden rewrites it -->"
END: Final = "<!-- /words of a table -->"
_KINDS: Final = tuple((kind, "of F11; DeepEP also `low-latency`") for kind in collectives.KINDS)
_NODES: Final = tuple((text, f"of F11, as it stands here: `{name}`") for text, name in collectives.TOPOLOGIES.items())
_HEADS: Final = ("form", "what it is")

MEANINGS: Final = {
    "id": "of the figure; each stands once, and so does each figure: rows that differ in nothing else are refused",
    "family": "any: what is scored together. A workload is read by its form; where a family below replays a trace "
    "it is the trace's file, of F11 a payload",
    "hardware": "the device, see below",
    "num_gpus": "devices of the whole deployment: what the plan has. One that is not whole is a mean over deployments: "
    "it is not compared with the plan, and a throughput per device is per device of it",
    "model": "a model that ships, also by the name of its checkpoint (`meta-llama/Llama-3.1-8B-Instruct`)",
    "precision": "of the weights, see below",
    "framework": "engine and, behind its name, version, such as `vllm 0.12.0`, `SGLang 0.5.4`, `TensorRT-LLM 1.0` or "
    "`distserve`; which profile of `scenarios/engines` stands for it is printed. Without a version it is the newest "
    "one, and `vLLM (2025)` what was used in that year; two engines are refused. `prefix caching on` in it, or in "
    "`note`, switches that on, `enforce-eager` captured graphs off. In no column may stand what is not "
    "simulated: " + ", ".join(UNMODELLED),
    "parallel": "the plan, see below; of one device it may be empty; of F11 the collective",
    "workload": "what was sent, see below; of F1 to F4 the file of a trace below the folder of `--traces`, of F11 the "
    "payload",
    "metric": "see below",
    "value": "the figure, above 0",
    "unit": "of the figure, see the metrics",
    "source": "where it was published; `owner/repository@commit` tells which constants come from there, too",
    "note": "may be empty. Of F1 to F4 `max_num_seqs N, max_num_batched_tokens N, N KV blocks x16` are the limits; "
    "of F6 `attention DP was on`; of F7 a date such as `2026_04_06_` at its head says that lengths were drawn from 0.8 "
    "to 1.0 of the given ones",
}


def reference() -> str:
    """Return the reference in Markdown, from its first mark to its last."""
    tables = (
        ("Columns", ("column", "what stands in it"), ((f"`{name}`", MEANINGS[name]) for name in COLUMNS)),
        ("Workloads, by `family`", ("family", "form"), _workloads()),
        ("Plans", _HEADS, _coded((*plans.FORMS, *_KINDS))),
        ("Metrics", ("metric", "units"), _coded(metrics.FORMS)),
        ("Devices", ("in `hardware`", "topology"), _coded((*systems.HARDWARE, *_NODES))),
        ("Number formats", ("`precision`", "weights"), _coded(systems.WEIGHTS.items())),
    )
    parts = [f"### {title}\n\n{_table(head, rows)}" for title, head, rows in tables]
    return "\n\n".join([START, *parts, END])


def _workloads() -> Iterator[Sequence[str]]:
    for family, form in FORMS.items():
        yield f"`{family}`", f"`{form}`"


def _coded(forms: Iterable[tuple[str, str]]) -> Iterator[Sequence[str]]:
    for form, words in forms:
        yield f"`{form}`", words


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
