"""What a step carries of one request, as who runs and prices the step sees it."""

from __future__ import annotations

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
    owner : int
    """

    request: int
    prompt_tokens: int
    output_tokens: int
    computed: int = 0
    generated: int = 0
    owner: int = 0
