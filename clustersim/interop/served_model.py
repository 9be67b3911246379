"""The model that the command of a server names: one that ships, or a ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from clustersim import catalog
from clustersim.errors import InputError
from clustersim.interop.entries import Draft
from clustersim.interop.options import Options
from clustersim.interop.words import Word
from clustersim.model.architecture import ModelSpec
from clustersim.model.hub import nearest_shipped, shipped_model, why_unknown
from clustersim.scenario.lookup import referred
from clustersim.scenario.parts import load_model
from clustersim.values import dataclass


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """A model and how a scenario refers to it.

    Parameters
    ----------
    asked : str
        As the command names it.
    reference : str
        What the scenario names: a model that ships, or the path of a ``config.json``.
    origin : str
        Why that one.
    spec : ModelSpec
    quantized : str or None
        Format of the weights that the name tells.
    changes : dict
        What of the configuration is another.
    """

    asked: str
    reference: str
    origin: str
    spec: ModelSpec
    quantized: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Options, instead: str | None) -> ServedModel | None:
        """Find the model of a command; problems go to the options.

        Parameters
        ----------
        options : Options
        instead : str or None
            What stands for the model that the command names.
        """
        word = _named(options)
        if word is None:
            return None
        reference, origin, quantized, changes = instead, "--model", None, {}
        if reference is None:
            config = options.given("--hf-config-path")
            file = local_config(config.text if config is not None else word.text)
            known = shipped_model(word.text)
            if file is not None:
                reference, origin = referred(file, Path()), word.text
            elif word.text in catalog.names("scenarios/models"):
                reference, origin = word.text, word.text
            elif known is not None:
                reference, origin, quantized = known.name, word.text, known.weights
                changes = dict(known.changes)
            else:
                options.problems.append(word.problem(_unknown(word.text)))
                return None
        else:
            file = local_config(reference)
            reference = referred(file, Path()) if file is not None else reference
        try:
            spec = load_model(reference)
        except InputError as error:
            options.problems.extend(error.problems)
            return None
        return cls(asked=word.text, reference=reference, origin=origin, spec=spec, quantized=quantized, changes=changes)

    @property
    def short_name(self) -> str:
        """The name of a scenario that serves it."""
        bare = self.asked.rstrip("/").removesuffix("/config.json").rsplit("/", 1)[-1]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", bare).lstrip("._-")[:100] or "served"

    @property
    def dtype(self) -> str:
        """Format of the published weights."""
        return self.spec.default_weight_dtype

    @property
    def positions(self) -> int | None:
        """The longest sequence."""
        return self.changes.get("max_position_embeddings", self.spec.max_positions)

    def limit(self, longest: int) -> None:
        """Take sequences of at most so many tokens."""
        self.changes["max_position_embeddings"] = longest

    def write(self, draft: Draft, limit_origin: str) -> None:
        """Write ``model`` into a draft."""
        if not self.changes:
            draft.set("model", self.reference, self.origin)
            return
        draft.set("model.name", self.reference, self.origin)
        for key, value in self.changes.items():
            origin = limit_origin if key == "max_position_embeddings" else self.origin
            inside = (
                {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, Mapping) else {key: value}
            )
            for path, one in inside.items():
                draft.set(f"model.config.{path}", one, origin)


def local_config(text: str) -> Path | None:
    """Return the ``config.json`` of a folder, or the file itself, where there is one."""
    path = Path(text).expanduser()
    try:
        file = path / "config.json" if path.is_dir() else path
        return file if file.is_file() else None
    except OSError:  # a name that is too long for any file
        return None


def _named(options: Options) -> Word | None:
    command = options.command
    choice = options.given(options.keys["model"])
    words = [*command.positional, *(choice.values if choice is not None else ())]
    for word in words[1:]:
        options.problems.append(word.problem(f"a second model beside {words[0].text!r}; expected one"))
    if not words:
        options.problems.append(command.start.problem("names no model; expected such as `meta-llama/Llama-3.1-8B`"))
    elif words[0].expands:
        options.problems.append(words[0].problem("a shell would put something else here; write the model's name"))
    return words[0] if words and not words[0].expands else None


def _unknown(name: str) -> str:
    if (why := why_unknown(name)) is not None:
        return why.replace("name it, and say precision.weights", "take it with --model, or the model's own config.json")
    guess = nearest_shipped(name)
    return (
        f"no architecture that ships is known under this name{f' (the nearest is {guess})' if guess else ''}; take one "
        "with --model NAME (`clustersim models` lists them), or the model's own config.json with --model PATH"
    )
