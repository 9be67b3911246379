"""Law: the grouped scheduler decides what the scheduler decides, step by step, on random streams of requests.

Both get the same arrivals and the same steps, and after each of these they must agree: on what a step carries, on
facts, K/V blocks, queue and running sequences, and in the end on chunks, slots and episodes of decoding.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clustersim.serving.blocks import BlockPool
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import Decision
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.timeline.layout import Layout
from clustersim.timeline.record import Recorder
from tests.effort import examples

Config = dict[str, Any]
LONGEST = 4000
"""Steps after which a stream must have ended."""


class Log:
    """Keeps what the grouped scheduler logs."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, ...]] = []
        self.decodes: list[tuple[int, ...]] = []
        self.facts: list[tuple[int, ...]] = []

    def chunk(self, *row: int) -> None:
        self.chunks.append(row)

    def decode(self, *row: int) -> None:
        self.decodes.append(row)

    def fact(self, *row: int) -> None:
        self.facts.append(row)


class SideBySide:
    """A scheduler and a grouped one that see the same."""

    def __init__(self, config: Config) -> None:
        options = dict(config)
        blocks, self.stages, overlap = options.pop("blocks"), options.pop("stages"), options.pop("overlap")
        serving = ServingConfig(**options)

        def scheduler() -> Scheduler:
            pool = BlockPool(blocks=blocks, block_tokens=serving.kv_block_tokens)
            return Scheduler(serving, pool, stages=self.stages, decode_overlap=overlap)

        self.plain = scheduler()
        self.log = Log()
        self.grouped = GroupedScheduler(scheduler(), self.log)
        self.recorder = Recorder([], slots=self.stages)
        self.flight: deque[tuple[Decision, Batch, int]] = deque()
        self.now = 0
        self.steps = 0
        self.requests = 0

    def arrive(self, prompt: int, output: int) -> None:
        """Let a request arrive at both, if it can ever run."""
        mine, other = (Sequence(self.requests, prompt, output) for _ in range(2))
        self.requests += 1
        if self.plain.refusal(mine) is None:
            self.plain.add(mine)
            self.grouped.waiting.append(other)

    def launch(self) -> bool:
        """Let both decide a step, where one more may be in flight; return whether there is anything to run."""
        if len(self.flight) == self.stages:
            return False
        decision, batch = self.plain.schedule(self.now), self.grouped.next(self.now)
        assert (decision is None) == (batch is None)
        self.compare()
        if decision is None or batch is None:
            return False
        assert [_progress(sequence) for sequence in decision.decodes] == members(batch.group)
        expected = [(*_progress(sequence), count) for sequence, count in decision.prefills]
        assert [(*_progress(sequence), count) for sequence, count in batch.chunks] == expected
        assert batch.step == self.steps
        if batch.group is not None:
            assert batch.decodes == batch.group.count == len(decision.decodes)
            assert batch.group.computed == sum(sequence.computed for sequence in decision.decodes)
        self.steps += 1
        self.flight.append((decision, batch, batch.step))
        return True

    def land(self) -> None:
        """End the step that was decided first."""
        decision, batch, step = self.flight.popleft()
        self.now += 1
        finished = self._complete(decision, batch.slot, step)
        assert [sequence.request for sequence in self.grouped.complete(self.now, batch)] == finished
        self.compare()

    def run(self, most: int) -> None:
        """Take several steps of a steady batch: one by one in the scheduler, in one go in the grouped one."""
        if self.flight or not self.launch():
            return
        decision, batch, step = self.flight.popleft()
        steps = min(self.plain.horizon(decision), most) if batch.steady else 1
        assert not decision.steady or batch.steady or self.stages > 1 or decision.evicted
        finished: list[int] = []
        for number in range(steps):
            assert not finished, "a run goes on after a member finished"
            self.now += 1
            finished = self._complete(decision, batch.slot, step + number)
            if number + 1 < steps:
                again = self.plain.schedule(self.now)
                assert again is not None
                assert again.decodes == decision.decodes
                decision = again
                assert not decision.prefills
        self.steps += steps - 1
        assert [sequence.request for sequence in self.grouped.complete(self.now, batch, steps)] == finished
        self.compare()

    def _complete(self, decision: Decision, slot: int, step: int) -> list[int]:
        chunks = [(sequence.request, sequence.computed, count) for sequence, count in decision.prefills]
        outcome = self.plain.complete(self.now, decision)
        sampled = {sequence.request for sequence in outcome.sampled}
        for request, start, count in chunks:
            self.recorder.chunk(0, step, request, start, count, sampled=request in sampled)
        decodes = tuple(sequence.request for sequence in decision.decodes)
        assert self.recorder.decoded(0, step, 1, decodes) == slot, "slot of the decodes"
        finished = [sequence.request for sequence in outcome.finished]
        self.recorder.finished(0, tuple(finished))
        return finished

    def compare(self) -> None:
        """Raise AssertionError where the two differ."""
        plain, grouped = self.plain, self.grouped
        assert grouped.free == plain.pool.free
        assert grouped.used == plain.pool.used
        assert [s.request for s in grouped.waiting] == [s.request for s in plain.waiting]
        assert [s.request for s in grouped.running] == [s.request for s in plain.running]
        assert self.log.facts == plain.facts
        assert grouped.decoding == sum(s.decodes for s in plain.running), "sequences that decode"

    def finish(self, *, whole: bool) -> None:
        """Go on until nothing is left, or stop where it is; compare what was logged."""
        limit = self.steps + LONGEST
        while whole and (self.launch() or self.flight):
            if len(self.flight) == self.stages or not self.launch():
                self.land()
            assert self.steps < limit, "it does not end"
        if whole:
            assert not self.plain.running
            assert not self.plain.waiting
            assert self.grouped.used == 0
        self.grouped.stop()
        tables = self.recorder.tables(Layout.of_one(sp=1, tp=1, stages=self.stages))
        for name, logged in (("chunks", self.log.chunks), ("decodes", self.log.decodes)):
            columns = [column.tolist() for key, column in getattr(tables, name).items() if key != "replica"]
            assert sorted(logged) == sorted(zip(*columns, strict=True)), name


def members(group: DecodeGroup | None) -> list[tuple[int, int, int]]:
    """Return (request, computed, generated) of those in a group, by place, without bringing them up to date."""
    if group is None:
        return []
    found = []
    for _, place, sequence in sorted(group.finishes, key=lambda entry: entry[1]):
        grown = group.clock - sequence.joined
        found.append((sequence.request, sequence.computed + grown, sequence.generated + grown))
        assert place == sequence.place
    return found


def _progress(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.request, sequence.computed, sequence.generated


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Draw a configuration; pools often run short."""
    most = draw(st.integers(1, 8))
    size = draw(st.sampled_from((1, 2, 4, 16)))
    return {
        "scheduler": draw(st.sampled_from(("continuous", "chunked_prefill"))),
        "max_batch_requests": most,
        "max_batch_tokens": draw(st.integers(most, most + 4) | st.integers(most, 60)),
        "kv_block_tokens": size,
        "blocks": -(-draw(st.integers(20, 48) | st.sampled_from((80, 1000))) // size),
        "stages": draw(st.sampled_from((1, 1, 2, 3, 4))),
        "overlap": draw(st.sampled_from((True, True, True, False))),
    }


ACTIONS = st.lists(
    st.tuples(st.just("arrive"), st.integers(1, 24), st.integers(0, 24))
    | st.tuples(st.just("launch"))
    | st.tuples(st.just("land"))
    | st.tuples(st.just("turn"), st.integers(1, 12))
    | st.tuples(st.just("run"), st.integers(1, 40)),
    min_size=8,
    max_size=60,
)
"""``turn``: as often as it says, fill the stages and end a step."""


def play(config: Config, actions: list[tuple[Any, ...]], *, whole: bool) -> SideBySide:
    """Let both schedulers see a stream."""
    both = SideBySide(config)
    for what, *values in actions:
        if what == "arrive":
            both.arrive(*values)
        elif what == "launch":
            both.launch()
        elif what == "land" and both.flight:
            both.land()
        elif what == "run":
            both.run(*values)
        elif what == "turn":
            for _ in range(values[0]):
                while both.launch():
                    pass
                if both.flight:
                    both.land()
    both.finish(whole=whole)
    return both


@examples(400)
@given(configs(), ACTIONS, st.booleans())
def test_the_grouped_scheduler_decides_what_the_scheduler_decides(
    config: Config, actions: list[tuple[Any, ...]], whole: bool
) -> None:
    play(config, actions, whole=whole)
