"""Where the sequences of a step are cut into two halves that overlap.

No sequence is divided, so that a prompt's later tokens never need what the other half has not written yet. SGLang cuts
prompts by the rule below and decodes by their number, which is the same (python/sglang/srt/two_batch_overlap.py,
``compute_split_seq_index``, 2025); vLLM cuts at half of the tokens, through a prompt if need be
(vllm/v1/worker/ubatch_utils.py, 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def cut_of(tokens: Sequence[int]) -> int:
    """Return how many of a step's sequences are in the first half: so that both have as equal tokens as possible.

    Parameters
    ----------
    tokens : sequence of int
        New tokens of each sequence, at least two, in the order of the step. Of two places as good the first is taken.

    Examples
    --------
    >>> cut_of([1, 1, 1, 1]), cut_of([1, 6, 7]), cut_of([1, 1, 512])
    (2, 2, 2)
    """
    total = sum(tokens)
    before = list(accumulate(tokens))[:-1]
    return 1 + min(range(len(before)), key=lambda at: abs(total - 2 * before[at]))
