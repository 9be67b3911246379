"""Every field of the head of a step graph in a file, with other values: of plan, model, step and number formats."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from foreign_cases import Document, Place

from clustersim.cost.precision import DTYPE_BYTES
from clustersim.graph.batch import Chunk
from clustersim.model.architecture import Attention, Ffn, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan

PARTS: Final = {"attention": Attention, "ffn": Ffn, "moe": Moe}
LISTS: Final[dict[str, tuple[Any, ...]]] = {
    "stages": (None, ["0.ffn"], ["1.attention"], ["1.ffn"], ["2.attention"], ["1.attention", "1.ffn"]),
    "routing": (None, {"zipf": 1.0}, {"frequencies": [[1.0, 2, 3, 4, 5, 6, 7, 8]]}),
}
EXPERTS_ON: Final = ([0, 1] * 4, [0] * 4 + [1] * 4, [1] * 4 + [0] * 4, [0] * 8, [0, 1, 2, 3] * 2, [0] * 7)


def others(value: Any, hint: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield each place inside a value of a type with another value that it could have, as plain data."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is not None:
            yield place, None
        for choice in get_args(hint):
            yield from others(value, choice, place) if choice is not type(None) else ()
    elif origin is Literal:
        yield from ((place, word) for word in get_args(hint) if word != value)
    elif is_dataclass(hint):
        for field in fields(hint) if isinstance(value, dict) else ():
            if field.name in value:
                yield from others(value[field.name], get_type_hints(hint)[field.name], (*place, field.name))
    elif hint is bool:
        yield place, not value
    elif hint is int:
        now = value if isinstance(value, int) else 0
        yield from ((place, other) for other in {now * 2, now // 2, now + 1, 0, 1, 2} - {value})
    elif hint is str and isinstance(value, str):
        yield place, "other"


def of_head(found: Document) -> Iterator[tuple[Place, Any]]:
    """Yield every other value of a document's head, and where it stands."""
    plan, model, step = found["plan"], found["model"], found["step"]
    ranks = plan["dp"] * plan["pp"] * plan["sp"]["degree"] * plan["tp"]
    lists = LISTS | {"placement": (None, [*range(ranks)][::-1], [*range(1, ranks + 1)], [0] * ranks)}
    for place, other in others(plan, ParallelPlan, ("plan",)):
        if place[-1] not in lists or place[1] == "ep":
            yield place, other
    yield from ((("plan", key), other) for key in ("stages", "placement") for other in lists[key] if other != plan[key])
    yield from ((("plan", "ep", "routing"), other) for other in lists["routing"] if other != plan["ep"]["routing"])
    yield from ((("plan", "ep", "placement"), other) for other in EXPERTS_ON if other != plan["ep"]["placement"])
    yield from others({key: value for key, value in model.items() if key != "layers"}, ModelSpec, ("model",))
    for at, layer in enumerate(model["layers"]):
        yield ("model", "layers", at, "count"), layer["count"] + 1
        for part in PARTS.keys() & layer.keys():
            yield from others(layer[part], PARTS[part], ("model", "layers", at, part))
    for key, value in found["precision"].items():
        yield from ((("precision", key), other) for other in DTYPE_BYTES if other != value)
    for at, chunk in enumerate(step["chunks"]):
        yield from others(chunk, Chunk, ("step", "chunks", at))
    for key in ("decode_sequences", "decode_keys"):
        for at, count in enumerate(step[key]):
            yield from others(count, int, ("step", key, at))
    for window, counts in step["windowed_keys"].items():
        for at, count in enumerate(counts):
            yield from others(count, int, ("step", "windowed_keys", window, at))
    yield ("step", "windowed_keys"), {"7": [0] * len(step["decode_keys"])}
    yield ("step", "halves"), [{"decode_sequences": [1], "decode_keys": [3]}]
    yield from ((("stages",), other) for other in ([0], [1], [0, 1]))
    yield from ((("replica",), other) for other in (plan["dp"], "x", -1))
