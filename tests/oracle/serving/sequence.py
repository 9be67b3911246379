"""One request on its way through a replica: computed tokens catch up with known ones.

::

    prompt tokens ─┬─ generated tokens
    [==== computed ====|---- to compute ----]     a step computes some of what is left
                                                  when nothing is left, it samples the next token
"""

from __future__ import annotations

from dataclasses import field

from clustersim.serving.prefix_keys import Keys
from clustersim.values import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request; its owner is the SP coordinate that keeps its K/V.

    Parameters
    ----------
    request : int
    prompt_tokens, output_tokens : int
        Tokens of the prompt, and tokens to generate.
    computed : int
        Tokens whose K/V is cached.
    generated : int
        Tokens sampled so far.
    blocks : int
        K/V blocks held.
    owner : int
    in_flight : bool
        Whether a micro-batch carries it now.
    admitted : bool
        Whether it was ever taken up.
    leaving : bool
        Whether its client gave it up while a micro-batch carried it, so that it leaves when that step ends.
    preemptions : int
    hands_over : bool
        Whether it goes on at another replica after its last token here, and keeps its blocks until its K/V is there.
    arrived_ns, priority : int
        When it came, and how urgent it is: lower numbers go first.
    rank : tuple of int
        Its place in the order of the queue (``serving.order``).
    keys : list of (int, int)
        Runs of the full blocks of the prompt, where prefixes are cached (``serving.prefix_keys``).
    shared : int
        How many of the blocks held are cached under their keys: the first ones.
    """

    request: int
    prompt_tokens: int
    output_tokens: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    owner: int = 0
    in_flight: bool = False
    admitted: bool = False
    leaving: bool = False
    preemptions: int = 0
    arrived_ns: int = 0
    priority: int = 0
    rank: tuple[int, int, int] = (0, 0, 0)
    hands_over: bool = False
    keys: Keys = field(default_factory=list)
    shared: int = 0

    @property
    def known(self) -> int:
        """Tokens that exist: prompt and generated."""
        return self.prompt_tokens + self.generated

    @property
    def most_tokens(self) -> int:
        """Tokens whose K/V it has at its end: that of the last one is not computed."""
        return self.prompt_tokens + max(0, self.output_tokens - 1)

    @property
    def answered(self) -> bool:
        """Whether its client has all that it asked for."""
        return self.generated >= self.output_tokens and not self.hands_over

    @property
    def to_compute(self) -> int:
        """Known tokens without K/V: 1 in decode, more in prefill."""
        return self.prompt_tokens + self.generated - self.computed

    @property
    def decodes(self) -> bool:
        """Whether the next step of this sequence is a decode step."""
        return self.generated > 0 and self.prompt_tokens + self.generated == self.computed + 1
