"""Reads what a graph from outside declares beside its nodes and edges: its step, plan, model and number formats.

What a declaration leaves out has the value that scenarios give it: degree 1, no chunk, owner 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_type_hints

from clustersim.cost.precision import Precision, format_problem
from clustersim.errors import InputError, did_you_mean
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.foreign.plain import ABSENT, PlainReader
from clustersim.graph.foreign.shapes import of_attention, of_experts
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.model.weight_parts import MODULE_OF, Formats
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.plan.routing import Routing

MOST_LAYERS: Final = 100_000
"""More layers are a slip of the pen."""

MOST_SIZE: Final = 2**24
"""Of a model's dimensions; larger ones are a slip of the pen."""

_MAY_BE_ZERO: Final = ("num_shared_experts", "shared_intermediate", "learned_positions", "qk_rope_head_dim")

ONE_MICRO_BATCH: Final = (
    "a file holds one micro-batch, not the two halves of a step that overlap: write each half as a graph of its own, "
    "with its own chunks and decodes as step and plan.ep.overlap none"
)

STEEPEST: Final = 10
MOST_VISITS: Final = 1e99
"""What shares of a sum can be computed of without running out of exponents (assumed; nothing is counted so often)."""

_LONGEST_WINDOW: Final = 12
"""Digits of a window in tokens."""


class DeclarationReader(PlainReader):
    """Reads the objects beside the graph; what is wrong with them is gathered."""

    def batch(self, step: Any) -> StepBatch | None:
        """Return what a step carries."""
        if isinstance(step, Mapping) and "halves" in step:
            self.wrong("step.halves", ONE_MICRO_BATCH)
            step = {key: value for key, value in step.items() if key != "halves"}
        known = self.mapping(step, ("kind", *(key for key in get_type_hints(StepBatch) if key != "halves")), "step")
        chunks = [
            self.fields(chunk, Chunk, f"step.chunks[{at}]")
            for at, chunk in enumerate(self.items(known.get("chunks", []), "step.chunks"))
        ]
        for at, chunk in enumerate(chunks):
            if chunk is not None and chunk.count < 1:
                self.unexpected(f"step.chunks[{at}].count", "at least 1 token", chunk.count)
        windowed = self.mapping(known.get("windowed_keys", {}), None, "step.windowed_keys")
        keys = {}
        for window, counts in windowed.items():
            path = f"step.windowed_keys.{window}"
            if not window.isascii() or not window.isdecimal() or len(window) > _LONGEST_WINDOW:
                self.wrong(path, "expected a window in tokens as the key")
                continue
            keys[int(window)] = self.value(counts, tuple[int, ...], path)
        plain = {key: known[key] for key in ("decode_sequences", "decode_keys") if key in known}
        found = self.fields(
            plain, StepBatch, "step", chunks=tuple(chunk for chunk in chunks if chunk is not None), windowed_keys=keys
        )
        if found is not None and known.get("kind", found.kind) != found.kind:
            self.unexpected("step.kind", f"{found.kind!r}, as chunks and decode_sequences say", known["kind"])
        return found

    def plan(self, plan: Any) -> ParallelPlan | None:
        """Return a plan."""
        if not isinstance(plan, Mapping):
            self.unexpected("plan", "an object", plan)
            return None
        parts: dict[str, Any] = {
            key: self.fields(plan[key], kind, f"plan.{key}")
            for key, kind in (("split", TensorSplit), ("sp", SequencePlan))
            if key in plan
        }
        if "ep" in plan:
            known = self.mapping(plan["ep"], None, "plan.ep")
            routing = None if known.get("routing") is None else self.routing(known["routing"])
            plain = {key: value for key, value in known.items() if key != "routing"}
            parts["ep"] = self.fields(plain, ExpertPlan, "plan.ep", routing=routing)
        if (sp := parts.get("sp")) is not None and sp.whole:
            self.unexpected("plan.sp.whole", "false; of replicas that step together say ep: {scope: global}", True)
        if plan.get("stages") is not None:
            parts["stages"] = tuple(self.cut(cut) for cut in self.items(plan["stages"], "plan.stages"))
        return self.fields(plan, ParallelPlan, "plan", **parts)

    def routing(self, routing: Any) -> Routing | None:
        """Return how often experts are visited."""
        path = "plan.ep.routing"
        known = self.mapping(routing, ("zipf", "frequencies"), path)
        zipf, rows = known.get("zipf", 0.0), known.get("frequencies")
        if not _is_share(zipf, STEEPEST):
            self.unexpected(f"{path}.zipf", f"a number from 0 to {STEEPEST}", zipf)
            return None
        if rows is None:
            return Routing(zipf=float(zipf))
        found = [self.items(row, f"{path}.frequencies") for row in self.items(rows, f"{path}.frequencies")]
        plain = all(_is_share(number, MOST_VISITS) for row in found for number in row)
        if not found or not plain or not all(any(row) for row in found):
            self.wrong(f"{path}.frequencies", "expected lists of numbers from 0, of which not all are 0")
            return None
        return Routing(zipf=float(zipf), frequencies=tuple(tuple(map(float, row)) for row in found))

    def model(self, model: Any) -> ModelSpec | None:
        """Return an architecture, equal layers in a row counted out."""
        if not isinstance(model, Mapping):
            self.unexpected("model", "an object", model)
            return None
        layers: list[Layer] = []
        for at, found in enumerate(self.items(model.get("layers", ABSENT), "model.layers")):
            path = f"model.layers[{at}]"
            known = self.mapping(found, ("count", "attention", "ffn", "moe", "post_norms"), path)
            count = known.get("count", 1)
            if type(count) is not int or not 1 <= count <= MOST_LAYERS - len(layers):
                self.unexpected(f"{path}.count", f"from 1 to {MOST_LAYERS:,} layers in all", count)
                continue
            if ("ffn" in known) == ("moe" in known):
                self.wrong(path, "expected an attention, and either ffn or moe")
                continue
            attention = self.fields(known.get("attention", ABSENT), Attention, f"{path}.attention")
            kind: type[Ffn] | type[Moe] = Ffn if "ffn" in known else Moe
            part = "ffn" if kind is Ffn else "moe"
            second: Ffn | Moe | None = self.fields(known[part], kind, f"{path}.{part}")
            self.sized(attention, f"{path}.attention")
            if attention is not None and attention.kind == "mla" and None in _latents(attention):
                self.wrong(f"{path}.attention", "mla needs kv_lora_rank, qk_nope_head_dim and qk_rope_head_dim")
            self.sized(second, f"{path}.{part}")
            self.goes_together(attention, second, path)
            if attention is not None and second is not None:
                post_norms = self.value(known.get("post_norms", False), bool, f"{path}.post_norms")
                layers += [Layer(attention=attention, ffn=second, post_norms=post_norms)] * count
        found = self.fields({k: v for k, v in model.items() if k != "layers"}, ModelSpec, "model", layers=tuple(layers))
        self.sized(found, "model")
        return found

    def sized(self, part: Any, path: str) -> None:
        """Note every size in a part of a model that no model has."""
        for field in fields(part) if part is not None else ():
            size = getattr(part, field.name)
            if type(size) is float and not 0 < size <= MOST_SIZE:
                self.unexpected(f"{path}.{field.name}", f"a number above 0, up to {MOST_SIZE:,}", size)
            if field.name == "formats":
                self.formatted(size, f"{path}.formats")
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if type(size) is int and not least <= size <= MOST_SIZE:
                self.unexpected(f"{path}.{field.name}", f"a size from {least} to {MOST_SIZE:,}", size)

    def formatted(self, formats: Formats, path: str) -> None:
        """Note what is no linear map and number format."""
        for at, (linear, name) in enumerate(formats):
            if linear not in MODULE_OF:
                self.wrong(f"{path}[{at}]", f"unknown linear map {linear!r}{did_you_mean(linear, list(MODULE_OF))}")
            elif (why := format_problem(name)) is not None:
                self.wrong(f"{path}[{at}]", why)

    def goes_together(self, attention: Attention | None, second: Ffn | Moe | None, path: str) -> None:
        """Note every size in a layer that another one of it rules out."""
        if self.problems:
            return  # the sizes themselves are wrong
        for field, words in () if attention is None else of_attention(attention):
            self.wrong(f"{path}.attention.{field}", words)
        for field, words in of_experts(second) if isinstance(second, Moe) else ():
            self.wrong(f"{path}.moe.{field}", words)

    def precision(self, precision: Any) -> Precision | None:
        """Return number formats."""
        try:
            return self.fields(precision, Precision, "precision")
        except InputError as error:
            self.problems += [replace(problem, path="precision", file=self.file) for problem in error.problems]
            return None

    def devices(self, devices: Any) -> tuple[str | None, ...]:
        """Return the name of each rank's device; None for a rank that has none."""
        found = self.items(devices, "devices")
        for at, device in enumerate(found):
            if device is not None and not _is_device(device):
                self.unexpected(f"devices[{at}]", "the name or number of a device", device)
        return tuple(None if device is None or device == "" else str(device) for device in found)

    def topology(self, topology: Any) -> tuple[str, ...]:
        """Return the names of a topology's devices, in the order of their numbers."""
        known = self.mapping(topology, ("devices",), "topology")
        found = self.items(known.get("devices", ABSENT), "topology.devices")
        for at, device in enumerate(found):
            if not _is_device(device):
                self.unexpected(f"topology.devices[{at}]", "the name or number of a device", device)
        names = tuple(map(str, found))
        if len(set(names)) < len(names):
            self.wrong("topology.devices", "expected each device once")
        return names

    def cut(self, cut: Any) -> Cut:
        """Return the beginning of a stage."""
        layer, _, before = str(cut).partition(".")
        if (
            not layer.isascii()
            or not layer.isdecimal()
            or len(layer) > len(str(MOST_LAYERS))
            or before not in ("attention", "ffn")
        ):
            self.unexpected("plan.stages", "a cut such as '12.attention' or '12.ffn'", cut)
            return Cut(layer=0)
        return Cut(layer=int(layer), before="ffn" if before == "ffn" else "attention")


def _latents(a: Attention) -> tuple[int | None, ...]:
    return a.kv_lora_rank, a.qk_nope_head_dim, a.qk_rope_head_dim


def _is_device(found: Any) -> bool:
    return isinstance(found, str) or (type(found) is int and found >= 0)


def _is_share(found: Any, most: float) -> bool:
    return type(found) in (int, float) and 0 <= found <= most
