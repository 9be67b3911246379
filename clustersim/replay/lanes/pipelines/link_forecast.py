"""What will happen to micro-batches of one replica if none of their sends meets a collective; and whether one does.

As long as nothing meets, passes and sends follow the recurrence of :mod:`clustersim.replay.lanes.pipelines.pipelined`.
Whoever is launched last is compared with everybody in flight: its sends with their passes, and its passes with their
sends. So every pair is compared once, when both are known, and before either could stretch the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro, SharedSend
from clustersim.replay.lanes.pipelines.link_pipeline import SharedPipe
from clustersim.replay.lanes.pipelines.link_stage import SharedPass, SharedStage
from clustersim.replay.lanes.pipelines.link_traffic import WHOLE

Flight = deque[tuple[int, SharedMicro]]
"""(when it leaves the last stage, micro-batch), in order of launches."""


class SharedForecast:
    """The recurrence over stages whose sends may meet collectives of the two stages that they connect.

    Parameters
    ----------
    stages : sequence of SharedStage
    ranks : int
        Of a stage.

    Attributes
    ----------
    free_at : list of int
        Per stage when its last pass ends.
    """

    def __init__(self, stages: Sequence[SharedStage], ranks: int) -> None:
        self.shared = stages
        self.ranks = ranks
        self.last = len(stages) - 1
        self.free_at = [0] * len(stages)
        self.sent_at = [0] * len(stages)

    def add(self, flight: Flight, micro: SharedMicro, stage: int, at: int) -> bool:
        """Forecast a micro-batch whose pass starts at ``at`` on ``stage``, and add it to those in flight.

        Returns
        -------
        bool
            Whether nothing meets; else nothing is added, and what comes is for :class:`SharedPipe`.
        """
        free_at, sent_at, last, ranks = self.free_at, self.sent_at, self.last, self.ranks
        passes, sent, sends, counts = micro.passes, micro.sent, micro.sends, micro.counts
        begun = len(passes), len(sent)
        while True:
            length, number, varying, durations = micro.priced[stage]
            at = max(at, free_at[stage])
            passes += (at, number)
            if stage < last:
                for _, other in reversed(flight):
                    send = other.sends[stage]
                    if send is None or send.end <= at:
                        break
                    if send.use is not None and at + self.shared[stage].collectives(micro.kind, number).lead < send.end:
                        run = SharedPass(self.shared[stage], micro, number, varying, at, length)
                        if run.meets(max(send.enters, at), send.end) < send.end:
                            return self._drop(micro, *begun)
            at = free_at[stage] = at + length
            if stage == last:
                flight.append((at, micro))
                return True
            at = max(at, sent_at[stage])
            sent += [at] * ranks
            here, took = self.shared[stage], durations[0]
            use = here.sends[counts] if counts in here.sends else here.send(micro, took)
            end = enters = at + took
            if use is not None:
                enters -= use.transfer_ns
                if flight and self._meets(flight, stage + 1, enters, end):
                    return self._drop(micro, *begun)
            sends[stage] = SharedSend(enters, end, use)
            at = sent_at[stage] = end
            sent += [at] * ranks
            stage += 1

    def _meets(self, flight: Flight, stage: int, enters: int, end: int) -> bool:
        """Whether a send that arrives at a stage meets a pass that runs there meanwhile."""
        for _, other in reversed(flight):
            length, number, varying, _ = other.priced[stage]
            start = other.passes[2 * stage]
            if start + length <= enters:
                return False
            if start < end:
                run = SharedPass(self.shared[stage], other, number, varying, start, length)
                if run.meets(enters, end) < end:
                    return True
        return False

    def _drop(self, micro: SharedMicro, passes: int, sent: int) -> bool:
        del micro.passes[passes:], micro.sent[sent:]
        micro.sends = [None] * self.last
        return False

    def release(self, flight: Flight, pipe: SharedPipe, now: int) -> None:
        """Put everything in flight where it is now, all that ends now having ended, into an empty pipe."""
        for _, micro in flight:
            self._place(micro, pipe, now)
            micro.sends = [None] * self.last
        flight.clear()
        for boundary, send in enumerate(pipe.sends):
            if send is not None:
                pipe.foresee(boundary, send, now)

    def _place(self, micro: SharedMicro, pipe: SharedPipe, now: int) -> None:
        passes, sent, sends, ranks = micro.passes, micro.sent, micro.sends, self.ranks
        for stage, (length, number, varying, _) in enumerate(micro.priced):
            start = passes[2 * stage]
            if now < start:
                pipe.queues[stage].append(micro)
                del passes[2 * stage :], sent[2 * stage * ranks :]
                return
            if now < start + length:
                pipe.passes[stage] = SharedPass(self.shared[stage], micro, number, varying, start, length)
                pipe.phases[stage], pipe.changes[stage] = WHOLE, start + length
                del passes[2 * stage + 2 :], sent[2 * stage * ranks :]
                return
            first = 2 * stage * ranks
            send = sends[stage] if stage < self.last else None
            if first == len(sent) or send is None or now >= send.end:
                continue
            pipe.outputs[stage].append(micro)
            if sent[first] <= now:
                pipe.sends[stage] = send
                del sent[first + ranks :]
            else:
                del sent[first:]
            del passes[2 * stage + 2 :]
            return

    def take(self, flight: Flight, pipe: SharedPipe) -> bool:
        """Forecast what is in a pipe in which only passes run that nothing has stretched; return whether nothing meets.

        The pipe is empty then, and as it was otherwise.
        """
        runs = [run for run in reversed(pipe.passes) if run is not None]
        if any(send is not None for send in pipe.sends) or any(pipe.queues) or any(run.late for run in runs):
            return False
        if any(pipe.phases[stage] != WHOLE for stage, run in enumerate(pipe.passes) if run is not None):
            return False
        self.free_at, self.sent_at = [0] * len(self.free_at), [0] * len(self.sent_at)
        begun = [(len(run.micro.passes), len(run.micro.sent)) for run in runs]
        for run, (passes, _) in zip(runs, begun, strict=True):
            del run.micro.passes[passes - 2 :]
            if not self.add(flight, run.micro, passes // 2 - 1, run.start):
                break
        else:
            pipe.clear()
            return True
        flight.clear()
        for run, (passes, sent) in zip(runs, begun, strict=True):
            micro = run.micro
            if len(micro.passes) < passes:
                micro.passes += (run.start, run.number)
            self._drop(micro, passes, sent)
        return False
