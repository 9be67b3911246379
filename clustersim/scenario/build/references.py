"""What a scenario refers to, and its model: by name, by path, by name with changes, or written out in the scenario.

A mapping with ``source`` is written out; one without changes what its ``name`` refers to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clustersim import catalog
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.model.architecture import ModelSpec
from clustersim.model.hub import Shipped, nearest_shipped, shipped_model, why_unknown
from clustersim.model.hugging_face import model_from_config
from clustersim.scenario.document import Document, KeyPath, dotted, read_mapping
from clustersim.scenario.lookup import find
from clustersim.scenario.text.scalars import kind_of
from clustersim.scenario.validate import known_as

_MODEL_KEYS: Final = ("name", "source", "published", "config")
_TELLING: Final = (
    "config", "model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd",
    "n_layer", "n_head", "d_model", "vocab_size", "text_config",
)  # fmt: skip
"""Keys by which a file is recognised as a model's, ours or Hugging Face's."""
_ON_A_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.json)(?<!\.yaml)(?<!\.yml)")


def name_in(document: Document, path: KeyPath, example: str) -> str:
    """Return the ``name`` of a mapping in the document; it must be text.

    Raises
    ------
    InputError
        When it is absent or no text.
    """
    name = mapping_at(document, path).get("name")
    if not isinstance(name, str) or not name:
        found = "it is missing" if name is None else f"found {kind_of(name)}"
        where = (*path, "name") if (*path, "name") in document.marks else path
        raise InputError(document.problem(where, f"expected a name such as {example}, but {found}"))
    return name


def referred_file(document: Document, path: KeyPath, *, folder: str, kind: str, example: str) -> Path:
    """Return the file that a mapping of the document refers to by its ``name``.

    Raises
    ------
    InputError
        With the nearest name.
    """
    name = name_in(document, path, example)
    where: KeyPath = (*path, "name") if (*path, "name") in document.marks else path
    return find(
        name,
        folder=folder,
        kind=kind,
        mark=document.mark(where),
        path=dotted(path),
        base=Path(document.file).parent,
    )


def build_model(document: Document, path: KeyPath) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the model of a scenario, and its mapping with everything written out.

    Raises
    ------
    InputError
        With every problem, placed in the scenario or in the file that it refers to.
    """
    written = mapping_at(document, path)
    _known_keys(document, path, _MODEL_KEYS if "config" in written or "name" in written else None)
    if "source" in written or "name" not in written:
        return _inline_model(document, path)
    file, shipped = _model_file(document, path)
    read = read_mapping(file, "model", _TELLING)
    bare = "config" not in read.data
    _known_keys(read, (), None if bare else _MODEL_KEYS)
    base = read.data if bare else read.data["config"]
    _expect_mapping(read, () if bare else ("config",), base)
    changes = written.get("config") or {}
    _expect_mapping(document, (*path, "config"), changes)
    name = shipped.name or _model_name(file, written["name"])
    source = str(read.data.get("source", file.name)) if not bare else file.name
    config = {**base, **shipped.changes, **changes}
    try:
        model = model_from_config(config, name, source)
        if shipped.weights is not None:
            model = model.published_in(shipped.weights)
        unread = [key for key in model.unused_keys if key in changes]  # a slip: it would change nothing
        if unread:
            raise InputError(
                Problem(path=key, message=f"unknown key {key!r}{known_as(key) or did_you_mean(key, list(base))}")
                for key in unread
            )
    except InputError as error:
        own = [problem for problem in error.problems if problem.path in changes]
        other = [problem for problem in error.problems if problem.path not in changes]
        raise InputError(
            document.placed(own, (*path, "config")) + read.placed(other, () if bare else ("config",))
        ) from None
    return model, {"name": name, "source": source, "config": config}


def _model_file(document: Document, path: KeyPath) -> tuple[Path, Shipped]:
    """Return the file of a model: of one that ships, a path, or what a name on the Hugging Face hub stands for."""
    try:
        file = referred_file(document, path, folder="scenarios/models", kind="model", example="llama-3.1-8b")
    except InputError:
        named = mapping_at(document, path).get("name")
        if not isinstance(named, str):
            raise
        shipped = shipped_model(named)
        if shipped is None and (why := why_unknown(named)) is not None:
            raise InputError(document.problem(path, why)) from None
        if shipped is None and _ON_A_HUB.fullmatch(named):
            raise InputError(document.problem(path, _no_architecture(named))) from None
        if shipped is None:
            raise
        return catalog.path_of("scenarios/models", shipped.name), shipped
    return file / "config.json" if file.is_dir() else file, Shipped(name="")


def _no_architecture(name: str) -> str:
    guess = nearest_shipped(name)
    file = f"./{name.rpartition('/')[2]}/config.json"
    hint = f" (the nearest is {guess!r}; `clustersim models` lists all)" if guess else ""
    return (
        f"no model file {name!r}, and no architecture that ships is known under this name{hint}; any other is read "
        f"from its config.json of Hugging Face: give that file or its folder, such as {file}"
    )


def _inline_model(document: Document, path: KeyPath) -> tuple[ModelSpec, dict[str, Any]]:
    written = mapping_at(document, path)
    bare = "config" not in written
    name = str(written.get("name", "inline")) if not bare else "inline"
    source = str(written.get("source", "")) if not bare else ""
    config = written if bare else written["config"]
    inside = path if bare else (*path, "config")
    _expect_mapping(document, inside, config)
    try:
        model = model_from_config(config, name, source)
    except InputError as error:
        raise InputError(document.placed(error.problems, inside)) from None
    return model, {"name": name, "source": source, "config": dict(config)}


def _model_name(file: Path, written: str) -> str:
    """Return the name of a model's file: of a ``config.json``, the folder that is written before it.

    Where none is written, the name does not tell in which folder it happens to lie.
    """
    if file.name != "config.json":
        return file.stem
    reference = Path(written)
    folder = (reference.parent if reference.name == file.name else reference).name
    return folder if folder not in ("", "..") else file.stem


def mapping_at(document: Document, path: KeyPath) -> Mapping[str, Any]:
    """Return the mapping at a path; a lone value stands for its name."""
    data: Any = document.data
    for part in path:
        data = data[part]
    return data if isinstance(data, dict) else {"name": data}


def _expect_mapping(document: Document, path: KeyPath, value: object) -> None:
    if not isinstance(value, dict):
        message = f"expected the keys of a Hugging Face config.json, but found {kind_of(value)}"
        raise InputError(document.problem(path, message))


def _known_keys(document: Document, path: KeyPath, known: tuple[str, ...] | None) -> None:
    if known is None:
        return
    problems: list[Problem] = [
        document.problem((*path, key), f"unknown key {key!r}{known_as(key) or did_you_mean(key, known)}", key=True)
        for key in mapping_at(document, path)
        if key not in known
    ]
    if problems:
        raise InputError(problems)
