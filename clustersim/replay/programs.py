"""The programs of every replica's stages; replicas whose communication costs the same share them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from clustersim.collective.algorithms import Kind
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import Blueprint, Body
from clustersim.graph.compiler import CommKey, build_program
from clustersim.graph.program import StageProgram
from clustersim.graph.stepgraph import Placed, place
from clustersim.plan.mesh import Mesh
from clustersim.replay.input import PoolInput

Groups = dict[tuple[Kind, tuple[int, ...]], None]
"""(operator, local ranks) of everything that communicates in a stage, in a fixed order."""


def compile_programs(
    mesh: Mesh, blueprints: Mapping[str, Blueprint], comm: CommTable
) -> dict[tuple[int, int], dict[str, StageProgram]]:
    """Compile each kind of step of each stage.

    Parameters
    ----------
    mesh : Mesh
    blueprints : mapping
        Kind of step, or its halves' → blueprint.
    comm : CommTable

    Returns
    -------
    dict
        (replica, stage) → kind → program; the same object for replicas that are placed alike.
    """
    plan = mesh.plan
    groups = [_groups(mesh, blueprints, stage) for stage in range(plan.pp)]
    variants: dict[tuple[int, ...], int] = {}
    compiled: dict[tuple[int, int], dict[str, StageProgram]] = {}
    found = {}
    for replica in range(plan.dp):
        for stage in range(plan.pp):
            devices = mesh.stage_devices(replica, stage)
            after = mesh.stage_devices(replica, stage + 1) if stage + 1 < plan.pp else ()
            number: CommKey = partial(_number, comm, devices, after)
            costs = (stage, *(number(op, members) for op, members in groups[stage]))
            variant = variants.setdefault(costs, len(variants))
            if (variant, stage) not in compiled:
                compiled[variant, stage] = {
                    name: build_program(blueprint, plan, stage, number, variant)
                    for name, blueprint in blueprints.items()
                }
            found[replica, stage] = compiled[variant, stage]
    return found


def programs_of(pool: PoolInput, comm: CommTable) -> dict[tuple[int, int], dict[str, StageProgram]]:
    """Return the programs of a pool, the same ones as long as its prices live."""
    made = pool.pricer.made
    if pool.plan not in made:
        made[pool.plan] = compile_programs(Mesh(plan=pool.plan.lockstep), pool.blueprints, comm)
    found: dict[tuple[int, int], dict[str, StageProgram]] = made[pool.plan]
    return found


def compile_stage(
    mesh: Mesh, blueprints: Mapping[str, Blueprint], comm: CommTable, stage: int
) -> dict[str, StageProgram]:
    """Compile each kind of step of one stage of the first replica.

    Parameters
    ----------
    mesh, blueprints, comm
        See :func:`compile_programs`.
    stage : int
    """
    plan = mesh.plan
    after = mesh.stage_devices(0, stage + 1) if stage + 1 < plan.pp else ()
    number: CommKey = partial(_number, comm, mesh.stage_devices(0, stage), after)
    return {name: build_program(blueprint, plan, stage, number) for name, blueprint in blueprints.items()}


def _number(
    comm: CommTable, devices: tuple[int, ...], after: tuple[int, ...], op: Kind, members: tuple[int, ...]
) -> int:
    """Return the number of the cost of ``op`` among local ranks (or from one of them to the next stage)."""
    if op == "send":
        return comm.number(op, (devices[members[0]], after[members[0]]))
    return comm.number(op, tuple(devices[member] for member in members))


def _groups(mesh: Mesh, blueprints: Mapping[str, Blueprint], stage: int) -> Groups:
    found: Groups = {}
    placed: dict[Body, list[Placed]] = {}
    for blueprint in blueprints.values():
        for unit in blueprint.stages[stage]:
            if unit.body in placed:
                continue
            placed[unit.body] = place(unit.body, mesh.plan)
            for item in placed[unit.body]:
                if item.node.axis is not None or item.node.op == "send":
                    found[item.node.communication, item.members] = None
    return found
