"""A command of an engine taken apart: what starts it, its environment, and the options that were chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.interop.flags import Flag
from clustersim.interop.gone import Gone
from clustersim.interop.launch.versions import Version, numbers
from clustersim.interop.words import Word, commands
from clustersim.values import dataclass

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_NODES: Final = {"--headless", "--node-rank"}
"""Options by which the command for a further node of the same server is known."""
_NEGATIVE: Final = re.compile(r"-[0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option that was given: its word, its values, and whether a switch is on."""

    flag: Flag
    word: Word
    values: tuple[Word, ...] = ()
    on: bool = True

    @property
    def name(self) -> str:
        """The option as it was meant: of a switch that is off, its opposite."""
        return self.flag.name if self.on else f"--no-{self.flag.name[2:]}"

    @property
    def part(self) -> str:
        """Which part of a value is set, with its dot: ``.level`` of ``--compilation-config.level=3``; else empty."""
        name = self.word.text.partition("=")[0]
        return name[len(name.partition(".")[0]) :]

    @property
    def text(self) -> str:
        """The value as text; ``true`` or ``false`` for a switch."""
        if self.flag.takes == "switch":
            return "true" if self.on else "false"
        return " ".join(value.text for value in self.values)

    @property
    def place(self) -> Word:
        """The word that a message about the value points at."""
        return self.values[0] if self.values else self.word

    @property
    def asks(self) -> bool:
        """Whether the value asks for anything."""
        return self.text not in self.flag.neutral


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A program: what starts it, and its options.

    Parameters
    ----------
    engine, version : str
        Whose program it is, and the release whose options these are.
    starts : tuple of tuple of str
        Words that start it; of the first one the last part of a path counts.
    example : str
        A whole command.
    flags : Mapping of str to Flag
        By name.
    aliases : Mapping of str to str
        Other names, short ones among them → name.
    image : str
        Pattern of the container image whose entry point it is; empty where there is none.
    is_exact : bool
        Whether names are read as ``argparse`` does, not also with underscores, with parts behind a dot, and, of
        switches, as their opposites ``--no-…``.
    keys : Mapping of str to str
        Key of a scenario → option (:mod:`clustersim.interop.keys`).
    gone : Mapping of str to Gone
        Options that earlier releases had.
    """

    engine: str
    version: str
    starts: tuple[tuple[str, ...], ...]
    example: str
    flags: Mapping[str, Flag]
    aliases: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    is_exact: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, Gone] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The words that start it."""
        return " ".join(("python", *self.starts[0]) if self.starts[0][0] == "-m" else self.starts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command.

    Parameters
    ----------
    grammar : Grammar
        Of its program.
    start : Word
        What starts the program, for messages about what is missing.
    environment : Mapping of str to Word
        Variables that are set for it, with the words that set them.
    positional : tuple of Word
        What stands there without an option.
    choices : Mapping of str to Choice
        By the option's name, with the part of its value that is set; of one that is given twice the last counts.
    twice : tuple of str
        Options that were.
    before : tuple of Word
        What stands in front of the options, such as the image of a container.
    """

    grammar: Grammar
    start: Word
    environment: Mapping[str, Word] = field(default_factory=dict)
    positional: tuple[Word, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    twice: tuple[str, ...] = ()
    before: tuple[Word, ...] = ()


def read_command(text: str, file: str, grammar: Grammar) -> Command:
    """Find the one command of a program in a text, and take it apart.

    Parameters
    ----------
    text : str
        What would be typed into a shell; other commands may stand around it, also the same one for other nodes.
    file : str
        What the text is called in messages.
    grammar : Grammar
        Of the program.

    Raises
    ------
    InputError
        With every word that cannot be understood.
    """
    found = []
    exported: dict[str, Word] = {}
    for words in commands(text, file):
        begin = _begin(words, grammar)
        if begin is None:
            exported.update(_variables(words) if words[0].text == "export" else {})
        else:
            found.append((words, begin))
    if not found:
        raise InputError(Problem(file=file, message=f"found no `{grammar.name}`; expected such as `{grammar.example}`"))
    read = [_command(words, begin, exported, grammar) for words, begin in found]
    for other, (words, _) in zip(read[1:], found[1:], strict=True):
        if not _NODES & other.choices.keys() or _asked(other) != _asked(read[0]):
            raise InputError(
                words[0].problem(f"a second `{grammar.name}`; a scenario is one of them; two pools are not read back")
            )
    return read[0]


def _command(words: list[Word], begin: int, exported: Mapping[str, Word], grammar: Grammar) -> Command:
    positional, choices, twice = _Arguments(grammar, _release(words[:begin], grammar)).read(words[begin:])
    return Command(
        grammar=grammar,
        start=words[begin - 1],
        environment={**exported, **_variables(words[:begin])},
        positional=positional,
        choices=choices,
        twice=twice,
        before=tuple(words[:begin]),
    )


def _release(words: Sequence[Word], grammar: Grammar) -> Version | None:
    """Return the release that the tag of a container's image names; None where there is none."""
    image = rf"(?:.*/)?{grammar.engine.lower()}[\w-]*:v?([0-9]+(?:\.[0-9]+)+).*"
    found = [re.fullmatch(image, word.text) for word in words]
    return next((numbers(one[1]) for one in found if one), None)


def _asked(command: Command) -> tuple[object, ...]:
    """Return what a command asks for: the same for each node of one server."""
    asked = {name: choice.text for name, choice in command.choices.items() if choice.flag.fate != "ignored"}
    return ([word.text for word in command.positional], asked)


def mentions(text: str, file: str, grammar: Grammar) -> bool:
    """Tell whether a text has a command of a program."""
    return any(_begin(words, grammar) is not None for words in commands(text, file))


def _begin(words: Sequence[Word], grammar: Grammar) -> int | None:
    """Return where the options of a program begin; None when the words start another one."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        for start in grammar.starts:
            if (PurePosixPath(text).name, *texts[at + 1 : at + len(start)]) == start:
                return at + len(start)
    for at, text in enumerate(texts):
        if grammar.image and "run" in texts[:at] and re.fullmatch(grammar.image, text):  # its entry point is the server
            return at + 1
    return None


def _variables(words: Sequence[Word]) -> dict[str, Word]:
    """Return the variables that are set: ``NAME=value`` in front of a program, or with ``-e`` for a container."""
    found = {}
    leading = True
    for at, word in enumerate(words):
        text = word.text.removeprefix("--env=")
        assigned = _ASSIGNED.fullmatch(text)
        leading = leading and (assigned is not None or word.text in ("env", "export", "sudo", "nohup", "exec"))
        if assigned and (leading or text != word.text or (at and words[at - 1].text in ("-e", "--env"))):
            found[assigned[1]] = word
    return found


_STORED_BOOLEAN: Final = "--enable-chunked-prefill"
"""A switch that vLLM 0.5 to 0.8 gives a value (``StoreBoolean``)."""


class _Arguments:
    """Reads words as ``argparse`` would, gathering the problems."""

    def __init__(self, grammar: Grammar, release: Version | None) -> None:
        self._grammar = grammar
        self._release = release
        self._problems: list[Problem] = []

    def read(self, words: Sequence[Word]) -> tuple[tuple[Word, ...], dict[str, Choice], tuple[str, ...]]:
        positional: list[Word] = []
        choices: dict[str, Choice] = {}
        twice: list[str] = []
        at = 0
        while at < len(words):
            if not _is_option(words[at]):
                positional.append(words[at])
                at += 1
                continue
            choice, at = self._option(words, at)
            if choice is not None:
                name = choice.flag.name + choice.part
                twice += [name] if name in choices else []
                choices[name] = choice
        if self._problems:
            raise InputError(self._problems)
        return tuple(positional), choices, tuple(dict.fromkeys(twice))

    def _option(self, words: Sequence[Word], at: int) -> tuple[Choice | None, int]:
        word = words[at]
        name, equals, value = word.text.partition("=")
        if not self._grammar.is_exact and re.fullmatch(r"-O[0-3]", name):
            name, equals, value = "-O", "=", name[2:]
        flag, on = self._flag(word, name)
        stored = flag is not None and flag.name == _STORED_BOOLEAN and on and not equals and at + 1 < len(words)
        told = words[at + 1].text if stored else ""
        if told.lower() in ("true", "false") and (self._release or (1,)) < (0, 9):
            at, equals, value = at + 1, "=", told
        following = _values(words, at + 1, flag.takes if flag is not None else "optional") if not equals else []
        if flag is None:
            return None, at + 1 + len(following)
        values = [_inner(word, value)] if equals else following
        opposite = "" if self._grammar.is_exact else f", or --no-{flag.name[2:]}"
        if flag.name == _STORED_BOOLEAN and value.lower() in ("true", "false"):
            values, on = [], on == (value.lower() == "true")
        elif flag.takes == "switch" and equals:
            self._problems.append(word.problem(f"takes no value; give {flag.name}{opposite}"))
        elif flag.takes in ("value", "values") and not values:
            self._problems.append(word.problem("needs a value, and has none"))
        elif flag.is_number and not values[0].expands and _NUMBER.fullmatch(values[0].text) is None:
            self._problems.append(
                values[0].problem(f"{flag.name}: expected a number, but found {values[0].text!r:.60}")
            )
        return Choice(flag=flag, word=word, values=tuple(values), on=on), at + 1 + len(following)

    def _flag(self, word: Word, name: str) -> tuple[Flag | None, bool]:
        """Return the option that a word names: whole, shortened, or the opposite of a switch."""
        flags, aliases, exact = self._grammar.flags, self._grammar.aliases, self._grammar.is_exact
        name = name if exact else name.partition(".")[0]  # --compilation-config.level=3 sets a part of one
        long = aliases.get(name) or (name.replace("_", "-") if name.startswith("--") and not exact else name)
        if long in flags:
            return flags[long], True
        positive = flags.get(f"--{long.removeprefix('--no-')}") if long.startswith("--no-") and not exact else None
        if positive is not None and positive.takes == "switch":
            return positive, False
        if gone := self._grammar.gone.get(long):
            if gone.is_in(self._release):
                return flags[gone.instead] if gone.is_renamed else gone.flag, True
            now = f"{self._grammar.engine} {self._grammar.version}"
            self._problems.append(word.problem(f"{now} has no such option; {gone.words}"))
            return None, True
        named = [known for known in (*flags, *aliases) if known.startswith("--") == name.startswith("--")]
        longer = [known for known in named if long.startswith("--") and len(long) > 2 and known.startswith(long)]
        if len(whole := {aliases.get(known, known) for known in longer}) == 1:
            return flags[whole.pop()], True
        hint = f"; could be {', '.join(sorted(longer))}" if longer else did_you_mean(long, named)
        hint = f"; did you mean '-{long.lstrip('-')}'?" if f"-{long.lstrip('-')}" in aliases else hint
        hint = hint if "could be" in hint or "did you mean" in hint else ""
        self._problems.append(word.problem(f"no option {name!r}{hint}"))
        return None, True


def _is_option(word: Word) -> bool:
    return word.text.startswith("-") and len(word.text) > 1 and not _NEGATIVE.match(word.text)


def _values(words: Sequence[Word], at: int, takes: str) -> list[Word]:
    most = {"switch": 0, "value": 1, "optional": 1, "values": len(words)}[takes]
    found: list[Word] = []
    for word in words[at : at + most]:
        if _is_option(word):
            break
        found.append(word)
    return found


def _inner(word: Word, value: str) -> Word:
    """Return the part of a word behind its equals sign; it is pointed at as a whole."""
    return Word(text=value, file=word.file, line=word.line, column=word.column, expands=word.expands)
