"""From the words of a row to a plan: ``TP4 PP2``, ``2 x TP4``, ``4DP2TP``, ``TP4 moe_ep4``, ``ctx TP2, dec TP1``.

Experts inside one TP group: engines that do not run attention data-parallel replicate the activations there and end
with one all-reduce (vLLM: ``fused_moe``, no all-to-all at DP 1; TensorRT-LLM: none without attention DP): no rank gets
another one's tokens. With replicas, experts are spread over all of them.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from clustersim.accuracy.row import Inexpressible, Row, nearest_first

Plan = dict[str, Any]

_PREFILL: Final = r"(?:context|ctx|prefill)[\s:=]*(.+?)"
_DECODE: Final = r"(?:generation|decode|gen|dec)[\s:=]*(.+)"
_POOLS: Final = re.compile(rf"(?:disagg\w*[\s:,]*)?{_PREFILL}(?:\s*[,;/+]|\s)\s*{_DECODE}", re.I)
_POOLS_BEHIND: Final = re.compile(
    r"(.+?)[\s(]+(?:context|ctx|prefill)\)?\s*[,;/+]\s*(.+?)[\s(]+(?:generation|decode|gen|dec)\)?", re.I
)
_POOL: Final = r"(?<![a-wyz])(context|ctx|prefill|generation|decode|gen|dec|[PD](?=\s*[:=(]))"
_IN_BRACKETS: Final = re.compile(rf"(?:(?<![a-z\d])(\d+)\s*[x×]?\s*)?{_POOL}\s*[:=]?\s*\(([^()]*)\)", re.I)
_BEFORE_POOL: Final = re.compile(rf"(?:(?<![a-z\d])(\d+)\s*[x×]\s*)?{_POOL}\s*[:=]?\s*()", re.I)
_REPLICAS_OF_POOLS: Final = re.compile(r"(?:disagg\w*[\s:,]*)?(\d+)P(\d+)D\b[\s,:x×]*(.*)", re.I)
_ONE_DEVICE: Final = re.compile(r"(?:-|none|n/?a|nan|1|(?:single|one|1)[\s-]*(?:x\s*)?(?:GPU|chip|device))?", re.I)
_TIMES: Final = re.compile(r"(\d+)\s*(?:replicas?\s*)?[x×]\s*(?=\D)", re.I)
_COMPACT: Final = re.compile(r"\b(?:\d+(?:TP|PP|DP|EP))+\b", re.I)
_BEFORE: Final = re.compile(r"(\d+)(TP|PP|DP|EP)", re.I)
_AFTER: Final = re.compile(r"(?<![a-z_])(moe_tp|moe_ep|attn_dp|attention_dp|TP|PP|DP|EP)[\s=_-]?(\d+)", re.I)
_BEHIND: Final = re.compile(r"(.*?)\s*[x×]\s*(\d+)", re.I)
_SHORT: Final = re.compile(r"\b(T|D)EP[\s=_-]?(\d+)\b", re.I)
_RANKS_APART: Final = re.compile(r"\b(?:attention|attn)[\s_-]?DP[\s=_-]?(\d+)\b|\bADP[\s=_-]?(\d+)\b", re.I)
_SILENT: Final = re.compile(
    r"\([^)]*\)|\b(?:over|on|via)\s+(?:PCIe|NVLink|one node)\b|\bSP1\b|\bCP1\b|\bepnone\b", re.I
)
_ATTENTION_DP: Final = re.compile(r"\b(?:attention|attn)[\s_-]?(?:DP|data[\s-]parallel)\b(?![\s=_-]?\d)", re.I)
_TOGETHER: Final = re.compile(
    r"\(?\b(?:(?:no|without)\s+(?:attention|attn)[\s_-]?DP|(?:attention|attn)[\s_-]?DP\s*[=:]?\s*(?:off|no|false|disabled))\b\)?",
    re.I,
)
"""What says that ranks attend to the same requests, as they do unless it is said otherwise."""
_BRACKETS: Final = re.compile(r"\([^)]*\)")
_OF_PLAN: Final = re.compile(
    r"\b(?:moe_)?(?:TP|PP|DP|EP)[\s=_-]?\d|\d(?:TP|PP|DP|EP)\b|disagg|\bDP attention|\d+P\d+D\b", re.I
)
"""What brackets may not say, since they say nothing."""
_DEGREES: Final = ("tp", "pp", "dp", "ep")
FORMS: Final = (
    ("TP4 PP2", "degrees of axes, in any order: `TP`, `PP`, `DP`, `EP`; those that are not said are 1"),
    ("TP4 moe_ep4", "experts over the ranks of a TP group; `moe_tp` says nothing"),
    ("DP4 EP4", "experts over all replicas"),
    (
        "attention DP TP4 EP4",
        "each rank attends to requests of its own, also `attention DP 4`, `ADP4`, `DEP4`; without "
        "`EP` experts are spread over all of them (assumed)",
    ),
    ("TEP4", "`TP4 EP4`"),
    ("2 x TP4", "two replicas, also `2 replicas x TP4`, `TP4 x 2`"),
    ("2DP4TP", "numbers before the axes"),
    (
        "ctx TP2, dec TP1",
        "a pool for prefill and one for decode, also `prefill`, `context`, `decode`, `generation`, "
        "`prefill(TP2) decode(TP1)`, `P:TP2 D:TP1`, `2 x prefill TP2 + decode TP1`, `TP2 prefill + TP1 decode`",
    ),
    ("2P4D TP2", "two replicas for prefill and four for decode, each of `TP2`"),
    (
        "TP2 over PCIe",
        "what joins the devices of the topology, else the row is not expressed: also `NVLink`, `(PCIe)`, `on one node`",
    ),
)
"""How plans are written, and what each is."""


def plan_of(row: Row) -> Plan:
    """Return the ``plan`` of a row's scenario.

    Raises
    ------
    Inexpressible
        When some of its words are not understood, or degrees do not fit together.
    """
    return {} if row.num_gpus == 1 and _ONE_DEVICE.fullmatch(row.parallel.strip()) else plan_in(row.parallel)


def plan_in(text: str) -> Plan:
    """Return the plan that a text gives.

    Examples
    --------
    >>> plan_in("2 replicas x TP4")
    {'dp': 2, 'tp': 4}
    >>> plan_in("ctx TP2 PP1, dec TP1 PP1")
    {'prefill': {'tp': 2}, 'decode': {}}
    >>> plan_in("DP4 EP4")
    {'dp': 4, 'ep': {'degree': 4, 'scope': 'global'}}
    """
    if count := _REPLICAS_OF_POOLS.fullmatch(text.strip()):
        each = plan_in(count[3]) if count[3] else {}
        both = each if each.keys() & {"prefill", "decode"} else {"prefill": each, "decode": each}
        counts = {"prefill": int(count[1]), "decode": int(count[2])}
        return {name: _replicas(many, both[name], text) for name, many in counts.items()}
    spelled = _BEFORE_POOL.sub(_spelled, _IN_BRACKETS.sub(_spelled, text)).strip()
    pools = _POOLS.fullmatch(spelled) or _POOLS_BEHIND.fullmatch(spelled)
    if pools:
        return {name: _part(part, text) for name, part in zip(("prefill", "decode"), pools.groups(), strict=True)}
    return _part(text, text)


def _spelled(found: re.Match[str]) -> str:
    """Return a pool in the order and the words that are read: ``prefill 2 x TP4`` of ``2xP(TP4)``."""
    count, name, plan = found.groups()
    name = {"p": "prefill", "d": "decode"}.get(name.lower(), name)
    return f" {name} {f'{count} x ' if count else ''}{plan} "


def _replicas(count: int, plan: Plan, whole: str) -> Plan:
    if count < 1 or "dp" in plan:
        raise Inexpressible(f"not understood: {whole!r} has replicas twice, or none")
    return {"dp": count, **plan} if count > 1 else dict(plan)


def _part(text: str, whole: str) -> Plan:
    degrees: dict[str, int] = {}

    def note(name: str, degree: int) -> None:
        if degree < 1:
            raise Inexpressible(f"not understood: {whole!r} has {name} {degree}; a degree is 1 or more")
        if degrees.setdefault(name, degree) != degree:
            raise Inexpressible(f"not understood: {whole!r} has {name} twice")

    text = _SHORT.sub(lambda short: f"{'' if short[1] in 'tT' else 'attention DP '}TP{short[2]} EP{short[2]}", text)
    text = _RANKS_APART.sub(lambda ranks: f"attention DP TP{ranks[1] or ranks[2]}", text)
    text = _TOGETHER.sub(" ", text)
    if silent := next((one for one in _BRACKETS.findall(text) if _OF_PLAN.search(one)), None):
        raise Inexpressible(f"not understood: {whole!r}; write what {silent!r} says of the plan without brackets")
    apart = bool(_ATTENTION_DP.search(text))
    left = _SILENT.sub(" ", _ATTENTION_DP.sub(" ", text))
    if behind := _BEHIND.fullmatch(left.strip()):
        left = f"{behind[2]} x {behind[1]}"
    if times := _TIMES.match(left.strip()):
        note("dp", int(times[1]))
        left = left.strip()[times.end() :]
    for compact in _COMPACT.findall(left):
        for degree, name in _BEFORE.findall(compact):
            note(name.lower(), int(degree))
    left = _COMPACT.sub(" ", left)
    for name, degree in _AFTER.findall(left):
        short = name.lower().replace("attention_dp", "dp").replace("attn_dp", "dp").removeprefix("moe_")
        if name.lower() != "moe_tp":
            note(short, int(degree))
    left = _AFTER.sub(" ", left)
    if re.sub(r"[\s,;x×+/]+", "", left) or not degrees:
        raise Inexpressible(
            f"not understood: {whole!r}; plans are written as {nearest_first(whole, (form for form, _ in FORMS))}"
        )
    return _checked(degrees, whole, apart=apart)


def ranks_of(plan: Plan) -> int:
    """Return how many ranks a plan has, of all pools.

    Examples
    --------
    >>> ranks_of({"prefill": {"tp": 2}, "decode": {"dp": 3}})
    5
    """
    pools = [plan[name] for name in ("prefill", "decode") if name in plan]
    return sum(map(ranks_of, pools)) if pools else math.prod(plan.get(name, 1) for name in ("dp", "pp", "tp"))


def check_devices(row: Row, plan: Plan) -> None:
    """Raise where a plan has another number of ranks than a row has devices; a mean that is not whole is let be.

    Raises
    ------
    Inexpressible
    """
    ranks = ranks_of(plan)
    if float(row.num_gpus).is_integer() and ranks != row.num_gpus:
        raise Inexpressible(f"the plan {row.parallel!r} has {ranks} ranks, and num_gpus says {row.num_gpus:g}")


def _checked(degrees: dict[str, int], whole: str, *, apart: bool) -> Plan:
    """Return a plan of some degrees; with ``apart`` the ranks of a TP group attend each to requests of their own."""
    tp, pp, dp, ep = (degrees.get(name, 1) for name in _DEGREES)
    if apart:
        tp, dp = 1, tp * dp
        ep = ep if "ep" in degrees else dp
    if ep > 1 and ep != tp * dp and tp % ep:
        ranks = f"not understood: {whole!r} spreads experts over {ep} ranks, and has {tp * dp} of a stage"
        raise Inexpressible(f"{ranks}; write such as 'TP{ep} EP{ep}', 'DP{ep} EP{ep}' or 'attention DP TP{ep} EP{ep}'")
    plan: Plan = {name: degree for name, degree in (("dp", dp), ("pp", pp), ("tp", tp)) if degree > 1}
    if ep > 1 and dp > 1 and ep == tp * dp:
        plan["ep"] = {"degree": ep, "scope": "global"}
    elif ep > 1:  # inside a TP group engines replicate the activations, and share its all-reduce
        plan["ep"] = {"degree": ep, "exchange": "all_reduce"}
    return plan
