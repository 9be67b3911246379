"""What is recorded of a step that has passed all stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clustersim.clock import in_time
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.replay.events.chain import ChainPass
from clustersim.replay.events.wiring import MicroBatch, StageWiring
from clustersim.timeline.record import Durations, Recorder


def record_passes(
    recorder: Recorder,
    replica: int,
    wirings: Sequence[StageWiring],
    templates: Mapping[tuple[int, int, str], int],
    micro: MicroBatch,
    now: int,
) -> None:
    """Record what a step did on each stage; all of it has ended by now.

    Parameters
    ----------
    recorder, replica : Recorder, int
    wirings : sequence of StageWiring
        Of its stages.
    templates : mapping
        ``StageProgram.key`` → number of its template.
    micro : MicroBatch
    now : int

    Raises
    ------
    InputError
        When that is later than int64 can tell.
    """
    in_time(now)
    for stage, program in enumerate(wiring.programs[micro.program] for wiring in wirings):
        template = templates[program.key]
        run, start = micro.passes[stage], micro.starts[stage]
        if run is None or not run.stretched:
            one = Durations.of_one(micro.durations[stage])
            recorder.run(replica, stage, template, micro.step, np.array([start]), one)
        elif isinstance(run, ChainPass) and stage not in micro.slowed:
            recorder.chain(replica, stage, template, micro.step, start, micro.durations[stage], run.lost())
        else:
            times = micro.slowed[stage].node_times(run) if isinstance(run, ChainPass) else run.node_times()
            recorder.nodes(replica, stage, template, micro.step, start, micro.durations[stage], *times)
        if stage < len(micro.send_starts):
            starts, ends = micro.send_starts[stage], micro.send_ends[stage]
            carried = np.zeros(len(starts), np.int64)
            for rank, cls in enumerate(program.template.send_classes):
                carried[rank] = round(payload_bytes(program, micro.features, cls))
            recorder.transfer(replica, stage, micro.step, starts, ends, carried)
