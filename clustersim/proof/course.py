"""Whether the steps of a script compute each of its sequences once: prompt, then token after token, and all of them.

What is executed relies on it. Steps that a run recorded are looked at first: whoever decided or recorded them may be
wrong. A sequence that starts anew at token 0 was preempted; its known tokens are then computed as a prompt is.
"""

from __future__ import annotations

from typing import Final

from clustersim.legality.rule import Violation
from clustersim.proof.script import Part, Script

_FIX: Final = {
    "PH-1": "decode a sequence when all of its prompt is computed",
    "PH-2": "let a sequence be in a step once, and decode one token of it",
    "PH-4": "give each sequence its output tokens, each after the first one in a decode step of its own",
    "KV-1": "compute the tokens of a sequence one after the other, each once",
    "RUN-4": "carry the sequences that were asked for, and no others",
}
"""Rule that a course can break → what would mend it."""


def gone_astray(script: Script) -> Violation | None:
    """Return what is first wrong with the courses of the sequences of a script; None where nothing is.

    Parameters
    ----------
    script : Script
        Of whatever steps: nothing of it is executed.
    """
    lengths = [len(prompt) for prompt in script.prompts]
    known, computed = list(lengths), [0] * len(lengths)
    for number, parts in enumerate(script.steps):
        if not parts:
            return _violation("PH-4", f"step {number}", "carries nothing")
        for place, part in enumerate(parts):
            one = part.sequence
            if not 0 <= one < len(lengths):
                return _violation("RUN-4", f"step {number}", f"carries sequence {one}, which is none of {len(lengths)}")
            where = f"step {number}, sequence {one}"
            if any(part.sequence == other.sequence for other in parts[:place]):
                return _violation("PH-2", where, "is in the step twice")
            if part.start == 0 and not part.decodes:
                computed[one] = 0
            wrong = _wrong(part, computed[one], known[one], lengths[one])
            if wrong is not None:
                return _violation(wrong[0], where, wrong[1])
            computed[one] += part.count
            known[one] += computed[one] == known[one]  # and is sampled
    for one, (length, found) in enumerate(zip(lengths, known, strict=True)):
        if found - length != script.output_tokens:
            message = f"gets {found - length} tokens; expected {script.output_tokens}"
            return _violation("PH-4", f"sequence {one}", message)
    return None


def _wrong(part: Part, computed: int, known: int, length: int) -> tuple[str, str] | None:
    """Return the rule that a part of a step breaks, and how."""
    if part.decodes and part.count != 1:
        return "PH-2", f"decodes {part.count} tokens"
    if part.decodes and computed < length:
        return "PH-1", f"decodes when {computed} of the {length} tokens of its prompt are computed"
    if part.start != computed or part.count < 1:
        past = part.start + part.count
        return "KV-1", f"computes tokens [{part.start}, {past}) when it has computed [0, {computed})"
    if computed + part.count > known:
        return "KV-1", f"computes {part.count} tokens after {computed}, of which it knows {known}"
    return None


def _violation(rule: str, where: str, message: str) -> Violation:
    return Violation(rule=rule, level="X", where=where, message=message, fix=_FIX[rule])
