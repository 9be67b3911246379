"""The options of a command, read one by one, and the numbers that engines accept."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from clustersim.errors import Problem, did_you_mean
from clustersim.interop.command import Choice, Command
from clustersim.interop.entries import Draft
from clustersim.interop.flags import KERNELS, STORED, Flag
from clustersim.scenario.build.engines import standing_for

Value = TypeVar("Value")

MOST: Final = 10**9
"""More tokens, requests or devices than anyone has; a typing error is more likely than a wish."""
_VARIABLES: Final[Mapping[str, str]] = {
    "LMCACHE_|MOONCAKE_|FLEXKV_|SGLANG_HICACHE_": STORED,
    "VLLM_.*(ATTENTION|BACKEND|FLASH|MOE|GEMM|USE_(?!V1$|MODELSCOPE))|SGL(ANG)?_.*(ATTENTION|BACKEND|GEMM|MOE|USE_|DEEPEP)":
        f"{KERNELS}; so do collectives",
    "NCCL_(?!DEBUG|SOCKET)": f"{KERNELS}; so do collectives",
}  # fmt: skip
"""Beginning of a variable of the environment → what is not simulated."""
_STORES: Final = ("lmcache", "offloading", "mooncakestore", "sharedstorage", "hf3fs", "flexkv")
"""In names of connectors that keep K/V beyond the device, not for another pool."""


def whole(text: str) -> int:
    """Read a whole number as vLLM does: ``8``, ``1k`` (1,000), ``2K`` (2,048), ``25.6k``."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmgt])|([0-9]+)([KMGT]?)", text.strip())
    if found is None:
        raise ValueError("expected a whole number such as 8, 2k (2,000) or 2K (2,048)")
    if found[2]:
        number = int(float(found[1]) * 1000.0 ** ("kmgt".index(found[2]) + 1))
    else:
        number = int(found[3]) << (10 * " KMGT".index(found[4] or " "))
    if number > MOST:
        raise ValueError(f"must be at most {MOST:,}")
    return number


def count(text: str) -> int:
    """Read a whole number from 1."""
    if (number := whole(text)) < 1:
        raise ValueError("must be at least 1")
    return number


def number_or_nan(text: str) -> float:
    """Read a number in digits from 0 to 9; what is none is NaN."""
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def share(text: str) -> float:
    """Read a number in (0, 1]."""
    number = number_or_nan(text)
    if not 0 < number <= 1:
        raise ValueError("expected a number above 0 and up to 1, such as 0.9")
    return number


def choice_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def read(text: str) -> str:
        if text not in known:
            hint = did_you_mean(text, known)
            raise ValueError(f"expected one of {', '.join(known)}{hint if 'did you mean' in hint else ''}")
        return text

    return read


def left_out_by(variable: str) -> str:
    """Return what is not simulated of a variable of the environment; empty where it changes nothing that is."""
    return next((words for pattern, words in _VARIABLES.items() if re.match(pattern, variable)), "")


class Options:
    """The options of a command, read one by one; what is wrong is gathered."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.keys = command.grammar.keys
        self.problems: list[Problem] = []

    def fates(self, draft: Draft) -> None:
        """Refuse what a scenario cannot say, and note what it leaves out."""
        for choice in self.command.choices.values():
            flag = choice.flag
            if flag.name == "--kv-transfer-config" and self._only_stores(flag):
                draft.leave_out(choice.name, STORED)
            elif flag.fate == "refused" and choice.asks:
                self.wrong(choice, flag.words)
            elif flag.fate == "left_out" and choice.asks:
                draft.leave_out(choice.name, flag.words)
        for name in self.command.environment:
            if what := left_out_by(name):
                draft.leave_out(name, what)
        for name in self.command.twice:
            draft.note(f"{name} is given twice; as in {self.command.grammar.engine}, the last one counts.")

    def _only_stores(self, flag: Flag) -> bool:
        """Tell whether all connectors that an option names keep K/V for the same server, and none is of two pools."""
        said = " ".join(f"{one.part} {one.text}" for one in self.command.choices.values() if one.flag is flag)
        named = [name for name in re.findall(r"kv_connector\W+(\w+)", said) if name != "MultiConnector"]
        stores = all(any(store in name.lower() for store in _STORES) for name in named)
        return bool(named) and stores and re.search("kv_(producer|consumer)", said) is None

    def engine(self, profile: str, origin: str, draft: Draft) -> None:
        """Write the engine: a profile, or the release of the container's image where another one describes that."""
        for word in self.command.before:
            stands, asked = standing_for(word.text)
            named = asked or stands
            if named != word.text and stands != profile and "run" in (one.text for one in self.command.before):
                draft.set("serving.engine.name", named, f"the image {word.text}")
                grammar = self.command.grammar
                draft.note(f"the image is of {named}: its host overheads are taken, but options and their defaults are "
                           f"those of {grammar.engine} {grammar.version}.")  # fmt: skip
                return
        draft.set("serving.engine.name", profile, origin)

    def given(self, name: str) -> Choice | None:
        """Return the option if it was given with a value that can be read."""
        choice = self.command.choices.get(name)
        if choice is not None and any(value.expands for value in choice.values):
            self.wrong(choice, "a shell would put something else here; write its value")
            return None
        return choice

    def value(self, name: str, read: Callable[[str], Value], default: Value) -> tuple[Value, str]:
        """Return the value of an option and its origin: the option, or the engine's default."""
        choice = self.given(name)
        if choice is None:
            return default, self.default(name)
        try:
            return read(choice.text), name
        except ValueError as error:
            self.wrong(choice, f"{error}, but found {choice.text!r}")
            return default, name

    def on(self, name: str, default: bool) -> tuple[bool, str]:
        """Return whether a switch is on, and the origin."""
        choice = self.command.choices.get(name)
        if choice is None:
            return default, self.default(name)
        return choice.on, choice.name

    def default(self, name: str) -> str:
        """Return the origin of what an engine takes without an option."""
        return f"{name}: {self.command.grammar.engine}'s default"

    def wrong(self, choice: Choice, message: str) -> None:
        """Add a problem of an option, which a switch names by its place."""
        named = choice.place.text == choice.flag.name
        self.problems.append(choice.place.problem(message if named else f"{choice.flag.name}: {message}"))
