"""Small histories as text that a person reads at a glance.

A file starts with a sentence of comment and the plan; then lines in any order, times in ns::

    # PH-1: the first decode step starts while the prompt is still in flight.
    plan tp 1 block 4 pool 8                     degrees, tokens per block, blocks; also: sp 2 ring zigzag-free, …
    request 0: prompt 8 output 3 at 0            it arrives at 0; without `at` it never does
    request 1: prompt 8 output 3 at 0 waits 50   its client gives it up 50 ns later
    step 0 [0, 100] prefills 0:0-8*              tokens 0 … 7 of request 0; * a token is sampled
    step 1 [90, 120] decodes 0 blocks 3          K/V blocks in use when it was decided
    step 2 [120, 150] decodes 0 slot 1           of the second micro-batch; also: replica 1, context 9
    step 3 [150, 160] decode                     its kind, where it does not matter whom it carries
    down replica 0 [150, 190]                    what it needs has failed meanwhile
    preempted 0 at 150                           also: admitted, rejected, finished; `used 3`, `replica 1`
    reused 0 at 150 tokens 16                    tokens that it takes over from the prefix cache
    op a: rank 0 step 0 layer 2 attention.o_proj [0, 10]
    op b: ranks 0 1 step 0 layer 2 attention.o_proj_all_reduce comm [10, 20] after a
    op  : ranks 0 1 step 0 layer 2 ffn.all_reduce comm [20, 30] [20, 31]     rank by rank, where these differ
    op  : rank 0 step 0 pipeline.send send [0, 5] bytes 64 costs 5           what it carries, what it takes at least
    route step 0 layer 1 request 0 token 5 to 3 7                            also: selected 3 6, by its gate
    block 9 held by 0 [0, 100]                   also: [0, never]; content 5, where equal content is shared
    link 3 carries 60 of 100 [0, 10]             bytes per second
    digest recorded abc
    other tp 2: request 0 got 3 with 10 entries  the same request under another plan

A request is admitted when the first step that carries it starts, where no line says otherwise. ``says prefill 7`` and
``says decode 2`` in a step contradict what is listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.legality.declared.faults import Outage
from clustersim.legality.history import FACTS, KINDS, STREAMS, Declared, History, Outcome, SpanTable

NUMBERS = {
    "tp": "tp", "sp": "sp", "pp": "pp", "dp": "dp", "ep": "ep", "block": "block_tokens", "pool": "pool_blocks",
    "tokens": "max_batch_tokens", "requests": "max_batch_requests", "top_k": "top_k", "horizon": "horizon_ns",
    "hidden_bytes": "hidden_bytes",
}  # fmt: skip
WORDS: dict[str, tuple[str, Any]] = {
    "ring": ("sp_scheme", "ring"),
    "all_gather": ("sp_scheme", "all_gather"),
    "all_to_all": ("sp_scheme", "all_to_all"),
    "idle": ("sp_decode", "idle"),
    "spread": ("sp_decode", "dp"),
    "global": ("ep_scope", "global"),
    "no_overlap": ("decode_overlap", "none"),
    "caching": ("prefix_caching", True),
    "perhaps_caching": ("prefix_caching", None),
}


@dataclass
class _Step:
    number: int
    start: int
    end: int
    replica: int = 0
    slot: int = 0
    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=dict)
    kind: int | None = None
    listed: bool = False


def history_in(path: Path) -> History:
    """Read a history."""
    return parsed(path.read_text(encoding="utf-8"))


def declaring(history: History, **changes: Any) -> History:
    """Return a history whose replicas, or those of its first pool, were declared otherwise."""
    return replace(history, pools=(replace(history.declared, **changes), *history.pools[1:]))


def parsed(text: str) -> History:
    """Parse a history."""
    reader = _Reader()
    for line in text.splitlines():
        words = line.split("#")[0].strip()
        if words:
            reader.line(words)
    return reader.history()


class _Reader:
    def __init__(self) -> None:
        self.declared: dict[str, Any] = {}
        self.requests: dict[int, tuple[int, int, int | None]] = {}
        self.waits: dict[int, int] = {}
        self.explained: set[int] = set()
        self.steps: list[_Step] = []
        self.facts: list[tuple[int, int, int, int, int, int]] = []
        self.ops: list[tuple[list[dict[str, Any]], str, list[str]]] = []
        self.routes: list[tuple[int, ...]] = []
        self.held: list[tuple[int, ...]] = []
        self.flows: list[tuple[int, ...]] = []
        self.digests: list[tuple[str, str]] = []
        self.other: list[tuple[str, int, int, int, int]] = []

    def line(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word in FACTS:
            self._fact(text)
        elif word.rstrip(":") == "op":
            self._op(text.removeprefix("op"))
        else:
            getattr(self, f"_{word}")(rest.strip())

    def _plan(self, text: str) -> None:
        words = iter(text.split())
        for word in words:
            if word in NUMBERS:
                self.declared[NUMBERS[word]] = int(next(words))
            else:
                name, value = WORDS[word]
                self.declared[name] = value

    def _down(self, text: str) -> None:
        found = re.fullmatch(r"replica (\d+) \[(\d+), (\d+)\]", text)
        assert found, text
        replica, since, until = (int(part) for part in found.groups())
        self.declared["down"] = (*self.declared.get("down", ()), Outage(replica, since, until))

    def _request(self, text: str) -> None:
        found = re.fullmatch(r"(\d+): prompt (\d+) output (\d+)(?: at (\d+))?(?: waits (\d+))?", text)
        assert found, text
        number, prompt, output, at, waits = found.groups()
        if waits is not None:
            self.waits[int(number)] = int(waits)
        self.requests[int(number)] = (int(prompt), int(output), None if at is None else int(at))

    def _step(self, text: str) -> None:
        found = re.match(r"(\d+) \[(\d+), (\d+)\]", text)
        assert found, text
        step = _Step(*(int(part) for part in found.groups()))
        mode = ""
        words = iter(text[found.end() :].split())
        for word in words:
            if word in KINDS:
                step.kind = KINDS.index(word)
            elif word in ("prefills", "decodes"):
                mode, step.listed = word, True
            elif word in ("replica", "slot"):
                setattr(step, word, int(next(words)))
            elif word in ("blocks", "context"):
                step.said[word] = int(next(words))
            elif word == "says":
                noun = next(words)
                step.said[noun] = int(next(words))
            elif mode == "prefills":
                request, first, last, star = re.fullmatch(r"(\d+):(\d+)-(\d+)(\*?)", word).groups()  # type: ignore[union-attr]  # a mistake in a test's file
                step.chunks.append((int(request), int(first), int(last) - int(first), int(bool(star))))
            else:
                assert mode == "decodes", text
                step.decodes.append(int(word))
        self.steps.append(step)

    def _fact(self, text: str) -> None:
        found = re.fullmatch(r"(\w+) (\d+) at (\d+)(.*)", text)
        assert found, text
        word, request, time, rest = found.groups()
        words = rest.split()
        said = dict(zip(words[::2], words[1::2], strict=False))
        if "because" in words:
            self.explained.add(int(request))
        replica, value, used = (int(said.get(key, none)) for key, none in (("replica", 0), ("tokens", 0), ("used", -1)))
        self.facts.append((replica, int(time), FACTS.index(word), int(request), value, used))

    def _op(self, text: str) -> None:
        label, _, rest = text.partition(":")
        rest, _, after = rest.partition(" after ")
        times = [(int(a), int(b)) for a, b in re.findall(r"\[(\d+), (\d+)\]", rest)]
        words = re.sub(r"\[\d+, \d+\]", "", rest).split()
        lists: dict[str, list[int]] = {}
        name, stream, mode = "", "compute", ""
        for word in words:
            if word.rstrip("s") in ("rank", "step", "layer"):
                mode = word.rstrip("s")
                lists[mode] = []
            elif word in ("bytes", "costs"):
                mode = word
                lists[mode] = []
            elif word.lstrip("-").isdigit():
                lists[mode].append(int(word))
            elif word in STREAMS:
                stream = word
            else:
                name = word
        ranks = lists["rank"]
        many = len(ranks)
        rows = [
            {
                "rank": rank,
                "step": (lists["step"] * many)[index],
                "layer": (lists.get("layer", [-1]) * many)[index],
                "time": (times * many)[index],
                "name": name,
                "stream": stream,
                "group": many > 1,
                "bytes": (lists.get("bytes", [-1]) * many)[index],
                "costs": (lists.get("costs", [-1]) * many)[index],
            }
            for index, rank in enumerate(ranks)
        ]
        self.ops.append((rows, label.strip(), after.split()))

    def _route(self, text: str) -> None:
        step, layer, request, token, rest = re.fullmatch(  # type: ignore[union-attr]
            r"step (\d+) layer (\d+) request (\d+) token (\d+) to (.*)", text
        ).groups()
        sent, _, selected = rest.partition(" selected ")
        gate = selected.split() or ["-1"] * len(sent.split())
        for expert, chosen in zip(sent.split(), gate, strict=True):
            self.routes.append((0, int(step), int(layer), int(request), int(token), int(expert), int(chosen)))

    def _block(self, text: str) -> None:
        found = re.fullmatch(r"(\d+) held by (\d+) \[(\d+), (\d+|never)\](?: content (\d+))?", text)
        assert found, text
        block, request, taken, freed, content = found.groups()
        until = -1 if freed == "never" else int(freed)
        self.held.append((0, int(block), int(request), int(taken), until, -1 if content is None else int(content)))

    def _link(self, text: str) -> None:
        found = re.fullmatch(r"(\d+) carries (\d+) of (\d+) \[(\d+), (\d+)\]", text)
        assert found, text
        link, rate, capacity, start, end = (int(part) for part in found.groups())
        self.flows.append((link, start, end, rate, capacity))

    def _digest(self, text: str) -> None:
        name, value = text.split()
        self.digests.append((name, value))

    def _other(self, text: str) -> None:
        found = re.fullmatch(r"(\w+) (\d+): request (\d+) got (\d+) with (\d+) entries", text)
        assert found, text
        self.other.append((found[1], int(found[2]), int(found[3]), int(found[4]), int(found[5])))

    def history(self) -> History:
        """Return what was read."""
        declared = Declared(**self.declared)
        listed = any(step.listed for step in self.steps)
        return History(
            pools=(declared,),
            requests=self._request_table() if self.requests else None,
            steps=self._step_table(listed) if self.steps else None,
            chunks=self._chunk_table() if listed else None,
            decodes=self._decode_table() if listed else None,
            facts=self._fact_table() if self.requests else None,
            spans=self._span_table(declared) if self.ops else None,
            routes=_table("replica step layer request token expert selected", self.routes),
            held=_table("replica block request taken_ns freed_ns content", self.held),
            flows=_table("link start_ns end_ns rate capacity", self.flows),
            digests=tuple(self.digests),
            other=self._outcome(declared) if self.other else None,
        )

    def _request_table(self) -> dict[str, Any]:
        count = max(self.requests) + 1
        columns = {name: np.zeros(count, np.int64) for name in ("prompt_tokens", "output_tokens", "explained")}
        for number, (prompt, output, _) in self.requests.items():
            columns["prompt_tokens"][number], columns["output_tokens"][number] = prompt, output
            columns["explained"][number] = number in self.explained
            if self.waits:
                columns.setdefault("cancels_ns", np.full(count, -1, np.int64))[number] = self.waits.get(number, -1)
        return columns

    def _step_table(self, listed: bool) -> dict[str, Any]:
        steps = self.steps
        columns: dict[str, list[int]] = {
            "replica": [s.replica for s in steps],
            "step": [s.number for s in steps],
            "count": [1] * len(steps),
            "slot": [s.slot if s.decodes else -1 for s in steps],
            "start_ns": [s.start for s in steps],
            "end_ns": [s.end for s in steps],
            "kind": [
                s.kind if s.kind is not None else KINDS.index(
                    "mixed" if s.chunks and s.decodes else "prefill" if s.chunks else "decode"
                )
                for s in steps
            ],
        }  # fmt: skip
        if listed:
            columns["prefill_tokens"] = [s.said.get("prefill", sum(c[2] for c in s.chunks)) for s in steps]
            columns["decode_tokens"] = [s.said.get("decode", len(s.decodes)) for s in steps]
            columns["batch_requests"] = [len(s.chunks) + len(s.decodes) for s in steps]
            for word, name in (("context", "context_tokens"), ("blocks", "kv_blocks_used")):
                if all(word in s.said for s in steps):
                    columns[name] = [s.said[word] for s in steps]
        return {name: np.array(values, np.int64) for name, values in columns.items()}

    def _chunk_table(self) -> Any:
        rows = [(s.replica, s.number, *chunk) for s in self.steps for chunk in s.chunks]
        return _table("replica step request start count sampled", rows, empty=True)

    def _decode_table(self) -> Any:
        """Fold decodes of one slot, step after step, into episodes."""
        rows: list[tuple[int, int, int, int, int]] = []
        broken = sorted({(s.replica, c[0], s.number) for s in self.steps for c in s.chunks})
        for replica, slot in sorted({(s.replica, s.slot) for s in self.steps if s.decodes}):
            mine = [s for s in self.steps if (s.replica, s.slot) == (replica, slot) and s.decodes]
            open_at: dict[tuple[int, int], tuple[int, int]] = {}
            for position, step in enumerate(sorted(mine, key=lambda s: s.number)):
                seen: dict[int, int] = {}
                for request in step.decodes:
                    key = request, seen.get(request, 0)
                    seen[request] = key[1] + 1
                    at = open_at.get(key)
                    goes_on = at is not None and at[0] == position - 1
                    if goes_on and at is not None:
                        last = rows[at[1]][4]
                        goes_on = not any((r, q) == (replica, request) and last < n < step.number for r, q, n in broken)
                        if goes_on:
                            rows[at[1]] = (*rows[at[1]][:4], step.number)
                            open_at[key] = position, at[1]
                    if not goes_on:
                        open_at[key] = position, len(rows)
                        rows.append((replica, slot, request, step.number, step.number))
        return _table("replica slot request first_step last_step", rows, empty=True)

    def _fact_table(self) -> Any:
        rows = [
            (0, at, FACTS.index("arrived"), number, prompt, -1)
            for number, (prompt, _, at) in self.requests.items()
            if at is not None and not any((f[2], f[3]) == (FACTS.index("rejected"), number) for f in self.facts)
        ]
        told = {f[3] for f in self.facts if f[2] == FACTS.index("admitted")}
        first: dict[int, tuple[int, int]] = {}
        for step in sorted(self.steps, key=lambda s: s.start):
            for request in (*(c[0] for c in step.chunks), *step.decodes):
                first.setdefault(request, (step.replica, step.start))
        rows += [
            (replica, start, FACTS.index("admitted"), request, 0, -1)
            for request, (replica, start) in first.items()
            if request not in told
        ]
        place = {request: replica for request, (replica, _) in first.items()}
        rows = [(place.get(row[3], row[0]), *row[1:]) for row in rows]
        return _table("replica time_ns kind request value used", rows + self.facts, empty=True)

    def _span_table(self, declared: Declared) -> SpanTable:
        symbols: dict[tuple[str, str, str], int] = {}
        rows: list[tuple[int, ...]] = []
        labels: dict[str, list[int]] = {}
        edges: list[tuple[int, int]] = []
        for number, (spans, label, after) in enumerate(self.ops):
            for span in spans:
                module, _, name = span["name"].rpartition(".")
                symbol = symbols.setdefault((name, name, module), len(symbols))
                stage = span["rank"] // declared.stage_ranks
                replica, stage = divmod(stage, declared.pp)
                edges += [
                    (source, len(rows))
                    for one in after
                    for source in labels[one]
                    if rows[source][2] == span["rank"] or len(labels[one]) == 1
                ]
                if label:
                    labels.setdefault(label, []).append(len(rows))
                rows.append(
                    (
                        *span["time"], span["rank"], STREAMS.index(span["stream"]), symbol, span["layer"], span["step"],
                        replica, stage, number if span["group"] else -1, span["bytes"], span["costs"],
                    )
                )  # fmt: skip
        names = "start_ns end_ns rank stream symbol layer step replica stage group bytes cost_ns"
        table = _table(names, rows)
        assert table is not None
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        return SpanTable(columns=table, symbols=tuple(symbols), after=(pairs[:, 0], pairs[:, 1]))

    def _outcome(self, declared: Declared) -> Outcome:
        count = max(self.requests) + 1
        tokens, entries = (np.full(count, -1, np.int64) for _ in range(2))
        degrees = {}
        for name, degree, request, got, held in self.other:
            degrees[name] = degree
            tokens[request], entries[request] = got, held
        return Outcome(declared=Declared(**{**self.declared, **degrees}), tokens=tokens, entries=entries)


def _table(names: str, rows: list[Any], *, empty: bool = False) -> dict[str, Any] | None:
    columns = names.split()
    if not rows and not empty:
        return None
    values = np.array(rows, np.int64).reshape(-1, len(columns))
    return {name: values[:, index] for index, name in enumerate(columns)}
