"""What an engine itself refuses of a command, each rule at the last of the options that it looks at.

The rules are those of :mod:`clustersim.interop.launch.refusals`, which hold for what ``launch`` writes, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.interop.launch.asked import asked_of_model
from clustersim.interop.launch.refusals import REFUSALS
from clustersim.interop.options import Options
from clustersim.model.architecture import ModelSpec


class _Looked(dict[str, str]):
    """Options that remember which of them were looked at."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.names: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.names.append(name)
        return super().get(name, default)


def refuse(options: Options, model: ModelSpec, engine: str, texts: Mapping[str, str]) -> None:
    """Add to the problems of options what an engine refuses of them.

    Parameters
    ----------
    options : Options
    model : ModelSpec
        As published.
    engine : str
        Whose rules they are, such as ``sglang``.
    texts : Mapping of str to str
        Option → value as the engine settles it, numbers without suffixes.
    """
    for rule in REFUSALS:
        looked = _Looked(texts)
        if rule.engine == engine and rule.breaks(asked_of_model(model, engine=engine, options=looked)):
            command = options.command
            places = [command.choices[name].place for name in looked.names if name in command.choices]
            message = f"{command.grammar.engine} refuses it: {rule.message} ({rule.source})"
            options.problems.append((places or [command.start])[-1].problem(message))
