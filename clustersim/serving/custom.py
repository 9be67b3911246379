"""A user's scheduler: it is asked, what it answers is read, and what no scheduler may decide is refused by its rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import countOf
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from clustersim.errors import IllegalDecisionError, InputError, Problem
from clustersim.serving.config import ServingConfig
from clustersim.serving.user_class import UserClass, whole_number
from clustersim.serving.user_class import shown as told
from clustersim.serving.view import Choice, DecidesSteps, SchedulerView
from clustersim.units import plural

MOST_VAIN_PREEMPTIONS: Final = 10_000
"""Preemptions of one request, none of which finds it further than before, after which a run is taken to be endless."""
PLAIN: Final = frozenset((int,))
"""Of what type requests are in most answers."""

Answer = tuple[dict[int, int], tuple[int, ...], bool, bool]
"""``Choice.tokens``, ``preempt`` and ``again``; whether all tokens are whole numbers."""


class Candidate(Protocol):
    """A sequence as answers are checked against it."""

    @property
    def in_flight(self) -> bool:
        """Whether a step carries it."""
        ...

    @property
    def decodes(self) -> bool:
        """Whether its next step is a decode step."""
        ...

    @property
    def to_compute(self) -> int:
        """Tokens that a step may compute now."""
        ...


One = TypeVar("One", bound=Candidate)


class Asked(Generic[One]):
    """What an answer is checked against.

    Parameters
    ----------
    running : callable
        Request → what runs of it, or None.
    waiting : mapping
        Request → what waits of it.
    left : callable
        (one that waits) → tokens that a step may compute of it.
    others : list of (int, int, sequence or None)
        Request, tokens of it and what runs of it; what is not among these is a decode of one token.
    kept : int
        Sequences that run.
    decodes_in_flight : int
    """

    __slots__ = ("decodes_in_flight", "kept", "left", "others", "running", "waiting")

    def __init__(
        self,
        running: Callable[[int], One | None],
        waiting: Mapping[int, One],
        left: Callable[[One], int],
        others: list[tuple[int, int, One | None]],
        kept: int,
        decodes_in_flight: int,
    ) -> None:
        self.running = running
        self.waiting = waiting
        self.left = left
        self.others = others
        self.kept = kept
        self.decodes_in_flight = decodes_in_flight


class CustomDecisions:
    """A user's scheduler of one replica.

    Parameters
    ----------
    user : UserClass
        It has the method ``decide``.
    config : ServingConfig
    decode_overlap : bool
    """

    def __init__(self, user: UserClass, config: ServingConfig, *, decode_overlap: bool) -> None:
        self.user = user
        self.config = config
        self.decode_overlap = decode_overlap
        self.decider: DecidesSteps = user.made()
        self.vain: dict[int, tuple[int, int]] = {}
        """Request → most tokens it ever had computed when it was preempted, and preemptions since then."""

    @property
    def who(self) -> str:
        """Class and method that are asked."""
        return f"{self.user.name}.{self.user.method}"

    def answer(self, view: SchedulerView) -> Answer:
        """Ask it.

        Raises
        ------
        InputError
            When it raises, or answers no choice.
        """
        decided, answer = self.user.asked(partial(_answered, self.decider, view))
        if answer is None:
            expected = (
                "expected Choice(tokens={request: tokens}, preempt=(request, …), again=True or False), "
                "requests as whole numbers"
            )
            raise self.user.wrong_answer(view.now_ns, f"decided {told(decided)}; {expected}")
        return answer

    def refuse(self, now: int, fault: str) -> NoReturn:
        """Refuse what it decided.

        Raises
        ------
        IllegalDecisionError
        """
        rule, colon, _ = fault.partition(":")
        explained = f" (clustersim rules {rule} explains)" if colon and re.fullmatch(r"[A-Z]+-\d+", rule) else ""
        raise IllegalDecisionError(f"{self.user} at {now / 1e6:.6f} ms: {fault}{explained}")

    def refuse_blocks(self, now: int, request: int, count: int, missing: int, free: int) -> NoReturn:
        """Refuse tokens whose blocks are not there; see :meth:`refuse`."""
        self.refuse(
            now,
            f"KV-6: {plural(count, 'token')} of request {request} need{'s' if count == 1 else ''} "
            f"{plural(missing, 'more block')}, and {free} {'is' if free == 1 else 'are'} free",
        )

    def count_preemption(self, request: int, computed: int) -> None:
        """End a run in which a request is preempted again and again, and never gets further than before.

        Raises
        ------
        InputError
        """
        furthest, count = self.vain.get(request, (0, 0))
        count = 0 if computed > furthest else count + 1
        self.vain[request] = max(furthest, computed), count
        if count >= MOST_VAIN_PREEMPTIONS:
            message = (
                f"{self.who} preempted request {request} "
                f"{MOST_VAIN_PREEMPTIONS:,} times without letting it get a token further in between; "
                f"the simulation would never end"
            )
            raise InputError(Problem(file=self.user.path, message=message))

    def fault(self, tokens: Mapping[int, int], victims: tuple[int, ...], asked: Asked[One]) -> str:
        """Return what is illegal in an answer, its rule first."""
        for place, request in enumerate(victims):
            victim = asked.running(request)
            if victim is None:
                return f"KV-7: request {told(request)} is preempted, but is not running"
            if victim.in_flight:
                return f"PH-3: request {request} is preempted while a step carries it"
            if request in victims[:place]:
                return f"KV-7: request {request} is preempted twice"
            if request in tokens:
                return f"KV-2: request {request} is preempted and computed in one decision"
        kept = asked.kept - len(victims)
        for request, count, found in asked.others:
            sequence = found or asked.waiting.get(request)
            kept += found is None
            if sequence is None:
                return (
                    f"RUN-4: request {told(request)}"
                    " is not here: it has not come, has finished, or is on another replica"
                )
            if sequence.in_flight:
                return f"PH-3: request {request} is computed while a step carries it"
            if type(count) is not int or count < 1:
                return f"KV-3: {told(count)} tokens of request {request} are computed; expected a whole number from 1"
            if sequence.decodes and count > 1:
                return (
                    f"PH-2: {told(count)} tokens of request {request} are computed in a decode step, which carries one"
                )
            if count > (left := sequence.to_compute if found else asked.left(sequence)):
                return (
                    f"KV-1: {told(count)} tokens of request {request} are asked for, but only {left} are known and not "
                    f"computed; ask for at most {left}"
                )
        return self._excess(tokens, kept, asked)

    def _excess(self, tokens: Mapping[int, int], kept: int, asked: Asked[One]) -> str:
        """Return which limit of a step an answer exceeds, in which ``kept`` sequences run."""
        total = sum(tokens.values())
        if total > self.config.max_batch_tokens:
            return f"KV-6: {total} tokens in one step, more than max_batch_tokens ({self.config.max_batch_tokens})"
        if kept > self.config.max_batch_requests:
            return f"KV-6: {kept} sequences running, more than max_batch_requests ({self.config.max_batch_requests})"
        if asked.decodes_in_flight and not self.decode_overlap:
            known = [asked.running(request) for request in tokens]
            if any(one.decodes for one in known if one is not None):
                return "PP-3: a decode step is decided while another one is in flight, and decode_overlap is none"
        return ""


def _answered(decider: DecidesSteps, view: SchedulerView) -> tuple[object, Answer | None]:
    """Return what is decided, and what is read of that."""
    decided = decider.decide(view)
    return decided, _exact(decided) or _plain(decided)


def _exact(decided: object) -> Answer | None:
    """Return an answer that is made of a dict, a tuple and numbers alone, which takes no call to check."""
    if type(decided) is not Choice:
        return None
    tokens, victims, again = decided.tokens, decided.preempt, decided.again
    if type(tokens) is not dict or type(victims) is not tuple or type(again) is not bool:
        return None
    whole = countOf(map(type, tokens), int) + countOf(map(type, tokens.values()), int) == 2 * len(tokens)
    return (tokens, victims, again, True) if whole and {*map(type, victims)} <= PLAIN else None


def _plain(decided: object) -> Answer | None:
    """Return any answer made of these; None where that is not what a user's scheduler decided.

    What is no number of tokens stays as it is.
    """
    if not isinstance(decided, Choice):
        return None
    tokens: object = decided.tokens
    preempt: object = decided.preempt
    again: object = decided.again
    if not isinstance(tokens, Mapping) or not isinstance(preempt, Iterable) or not isinstance(again, bool):
        return None
    asked, victims = dict(tokens), tuple(preempt)
    numbers, given = [*map(whole_number, asked)], [*map(whole_number, victims)]
    plain = {number: count for number, count in zip(numbers, asked.values(), strict=True) if number is not None}
    preempted = tuple([number for number in given if number is not None])
    if len(plain) < len(asked) or len(preempted) < len(given):
        return None
    counts = {number: whole_number(count) for number, count in plain.items()}
    plain |= {number: count for number, count in counts.items() if count is not None}
    return plain, preempted, again, None not in counts.values()
