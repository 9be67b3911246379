"""The tree of a YAML text: nodes with positions, made from the parser's events.

Own composition, since PyYAML's (1) takes the last of two equal keys, (2) follows aliases into cycles and into
expansions of any size, and (3) overflows the C stack on deep nesting (before 6.0.4). A merge (``<<: *base``) keeps the
positions that the merged values have where they are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

import yaml

from clustersim.errors import InputError, Problem
from clustersim.scenario.text.scalars import Scalar, plain_scalar
from clustersim.values import dataclass

MOST_NODES: Final = 1_000_000
"""A document that expands to more values than this (by aliases of aliases) is refused."""
DEEPEST: Final = 60

_Parser: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CORE: Final = "tag:yaml.org,2002:"
_NO_VALUE: Final = "mapping values are not allowed in this context"
_NO_COLON: Final = "could not find expected ':'"
_WORDS: Final = {
    _NO_VALUE: "a ':' does not fit here; quote the text, or check the indentation of this line",
    "found character that cannot start any token": "this character cannot start a value; quote the text "
    "(and indent with spaces, not tabs)",
    "did not find expected key": "expected a key here; check the indentation of this and the lines before",
    "did not find expected ',' or ']'": "expected ',' or ']': the list opened at line {line} has no end",
    "did not find expected ',' or '}'": "expected ',' or '}}': the mapping opened at line {line} has no end",
    "found unexpected end of stream": "the quoted text opened at line {line} has no end",
    _NO_COLON: "expected a key followed by ': '",
    "did not find expected '-' indicator": "expected '- ' of a list item; check the indentation of this line",
    "did not find expected node content": "expected a value here",
    "exceeded maximum nesting depth": f"nested deeper than {DEEPEST} levels",
    "found unexpected ':'": "a ':' that ends a key is followed by a blank, as in 'trace: {{path: x.csv}}'",
}


@dataclass(slots=True, kw_only=True)
class Node:
    """A value of the document with the place where it is written (line and column count from 1).

    ``value`` is a scalar, a list of nodes, or a dict from key text to (key node, value node). ``size`` counts
    this value and those below it, aliases expanded.
    """

    line: int
    column: int
    value: Scalar | list[Node] | dict[str, tuple[Node, Node]] = None
    size: int = 1


@dataclass(slots=True)
class _Composer:
    parser: Any
    file: str
    anchors: dict[str, Node] = field(default_factory=dict)
    open_anchors: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def error(self, place: Node, message: str) -> InputError:
        self.problems.append(Problem(message=message, file=self.file, line=place.line, column=place.column))
        return InputError(self.problems)

    def note(self, place: Node, message: str) -> None:
        self.error(place, message)

    def document(self) -> Node:
        self.parser.get_event()  # start of stream
        if self.parser.check_event(yaml.StreamEndEvent):
            return Node(line=1, column=1)
        self.parser.get_event()  # start of document
        root = self.node(0)
        self.parser.get_event()  # end of document
        event = self.parser.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.error(_place(event), "a second document starts here; a file holds one")
        if self.problems:
            raise InputError(self.problems)
        return root

    def node(self, depth: int) -> Node:
        event = self.parser.get_event()
        node = _place(event)
        if depth > DEEPEST:
            raise self.error(node, f"nested deeper than {DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, node)
        anchor = event.anchor
        if anchor is not None:
            self.open_anchors[anchor] = (node.line, node.column)
            self.anchors.pop(anchor, None)
        if isinstance(event, yaml.ScalarEvent):
            node.value = self.scalar(event, node)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.check_tag(event, node, "seq")
            self.sequence(node, depth)
        else:
            self.check_tag(event, node, "map")
            self.mapping(node, depth)
        if node.size > MOST_NODES:
            raise self.error(node, f"its aliases expand to {node.size:,} values; at most {MOST_NODES:,} are read")
        if anchor is not None:
            del self.open_anchors[anchor]
            self.anchors[anchor] = node
        return node

    def alias(self, event: Any, place: Node) -> Node:
        if event.anchor in self.open_anchors:
            line, column = self.open_anchors[event.anchor]
            raise self.error(place, f"*{event.anchor} lies inside &{event.anchor} ({line}:{column}): a cycle")
        if event.anchor not in self.anchors:
            raise self.error(place, f"*{event.anchor} names no anchor; write &{event.anchor} before it")
        return self.anchors[event.anchor]

    def scalar(self, event: Any, node: Node) -> Scalar:
        plain, _ = event.implicit
        if plain:
            try:
                return plain_scalar(event.value)
            except ValueError as error:
                self.note(node, str(error))
                return None
        if event.tag not in (None, "!", f"{_CORE}str"):
            self.note(node, f"the tag {_tag(event.tag)} is not known here; remove it")
        return str(event.value)

    def check_tag(self, event: Any, node: Node, kind: str) -> None:
        if event.tag not in (None, f"{_CORE}{kind}"):
            self.note(node, f"the tag {_tag(event.tag)} is not known here; remove it")

    def sequence(self, node: Node, depth: int) -> None:
        items: list[Node] = []
        while not self.parser.check_event(yaml.SequenceEndEvent):
            items.append(self.node(depth + 1))
            node.size += items[-1].size
        self.parser.get_event()
        node.value = items

    def mapping(self, node: Node, depth: int) -> None:
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        while not self.parser.check_event(yaml.MappingEndEvent):
            event = self.parser.peek_event()
            written = _place(event)
            is_merge = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "<<"
            text = event.value if isinstance(event, yaml.ScalarEvent) else None
            key = self.node(depth + 1)
            value = self.node(depth + 1)
            if is_merge:
                for inherited, pair in self.merge(value, written).items():
                    merged.setdefault(inherited, pair)
                continue
            name = text if text is not None else key.value
            if not isinstance(name, str):
                self.note(written, "a key must be text, such as 'name'")
                continue
            if name in own:
                first = own[name][0]
                self.note(written, f"key {name!r} is here twice (first at {first.line}:{first.column})")
                continue
            own[name] = (Node(line=written.line, column=written.column, value=name), value)
        self.parser.get_event()
        pairs = own | {name: pair for name, pair in merged.items() if name not in own}
        node.size += sum(value.size for _, value in pairs.values())
        node.value = pairs

    def merge(self, value: Node, place: Node) -> dict[str, tuple[Node, Node]]:
        sources = value.value if isinstance(value.value, list) else [value]
        pairs: dict[str, tuple[Node, Node]] = {}
        for source in sources:
            if not isinstance(source.value, dict):
                self.note(place, "'<<' merges a mapping or a list of mappings, such as '<<: *base'")
                return {}
            for name, pair in source.value.items():
                pairs.setdefault(name, pair)
        return pairs


def _place(event: Any) -> Node:
    return Node(line=event.start_mark.line + 1, column=event.start_mark.column + 1)


def _tag(tag: str) -> str:
    return f"!!{tag.removeprefix(_CORE)}" if tag.startswith(_CORE) else tag


def _check_characters(text: str, file: str) -> None:
    found = _UNPRINTABLE.search(text)
    if found is not None:
        before = text[: found.start()]
        line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
        message = f"the character U+{ord(found.group()):04X} is not allowed; is this a text file?"
        raise InputError(Problem(message=message, file=file, line=line, column=column))


def _syntax_problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    context_mark = getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or error)
    opened = context_mark.line + 1 if context_mark is not None else (mark.line + 1 if mark is not None else 1)
    words = _WORDS[problem].format(line=opened) if problem in _WORDS else problem
    if mark is None:
        return Problem(message=f"not valid YAML: {words}", file=file)
    if problem in (_NO_COLON, _NO_VALUE) and (place := _keyless([*text.splitlines(), ""], mark)):
        return Problem(message=f"not valid YAML: {_WORDS[_NO_COLON]}", file=file, line=place[0], column=place[1])
    return Problem(message=f"not valid YAML: {words}", file=file, line=mark.line + 1, column=mark.column + 1)


def _keyless(lines: Sequence[str], mark: Any) -> tuple[int, int] | None:
    """Return where the line before a key that does not fit begins, if it is neither a key nor an item of a list."""
    if ":" in lines[mark.line][: mark.column]:
        return None
    for number, line in reversed(list(enumerate(lines[: mark.line], start=1))):
        words = line.split("#")[0].strip()
        if words:
            is_key = ":" in words or words[0] in "-[]{},|>\"'%&*!"
            return None if is_key else (number, line.index(words[0]) + 1)
    return None


def compose(text: str, file: str) -> Node:
    """Return the root node of a YAML text.

    Raises
    ------
    InputError
        On a syntax error, equal keys, an unknown tag, a cycle or a huge expansion of aliases.
    """
    text = text.removeprefix("\ufeff")
    _check_characters(text, file)
    parser = _Parser(text)
    try:
        return _Composer(parser, file).document()
    except yaml.YAMLError as error:
        raise InputError(_syntax_problem(error, text, file)) from None
    finally:
        parser.dispose()
