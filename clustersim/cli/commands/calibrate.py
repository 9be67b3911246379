"""``clustersim calibrate``: fit the constants of a device's cost model to measured operators."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from textwrap import indent

import click

from clustersim.cli.tables import print_json
from clustersim.cluster.device import Device
from clustersim.cost.aiconfigurator import is_kernel_table, read_kernel_table
from clustersim.cost.fit import FamilyFit, fit_device
from clustersim.cost.grid_fit import ABOVE, GridFit, fit_grid
from clustersim.cost.points import MeasuredPoints, read_points
from clustersim.errors import InputError, Problem
from clustersim.scenario.build.engines import meant
from clustersim.scenario.parts import load_topology


class _Calibrate(click.Group):
    """`calibrate engine …` fits an engine; everything else is a topology and its points."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "engine":
            return "engine", self.get_command(ctx, "engine"), args[1:]
        return "TOPOLOGY", _kernels, args

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["engine", "TOPOLOGY"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "engine":
            from clustersim.cli.commands.calibrate_engine import engine

            return engine
        return _kernels


@click.group(
    cls=_Calibrate,
    subcommand_metavar="TOPOLOGY POINTS | engine LOG...",
    context_settings={"ignore_unknown_options": True},
)
def calibrate() -> None:
    """Fit the cost model to measurements: kernels of a device, or the constants of an engine."""


@click.command("TOPOLOGY")
@click.argument("topology")
@click.argument("points", type=click.Path(path_type=Path))
@click.option("--engine", metavar="FAMILY", help="Print it as the kernels of one family of engines, such as trtllm.")
@click.option("--json", "as_json", is_flag=True, help="Print the fit as one JSON object.")
def _kernels(topology: str, points: Path, engine: str | None, as_json: bool) -> None:
    """Fit the device of TOPOLOGY to the measurements in POINTS (.csv or .parquet).

    POINTS is a table of ai-dynamo/aiconfigurator as it was published (gemm_perf, moe_perf, context_attention_perf,
    generation_attention_perf or generation_mla_perf.parquet), or has a column op, the shape columns of that operator
    (gemm: m n k; see clustersim.cost.protocol), seconds, and optionally dtype and device. What is printed is a
    `kernels:` section for the device's file in topologies/devices/; where the fit errs by more than 8 % in the
    median, with a `grid:` of measured points that are interpolated. To use measured points as they are instead, name
    the file in a scenario: `cost: {table: FILE}`.
    """
    if guess := engine and meant(engine):
        message = f"no engine, and no family of engines, is called {engine!r}; did you mean {guess!r}?"
        raise InputError(Problem(file="--engine", message=message))
    device = load_topology(topology).device
    measured = read_kernel_table(points, device) if is_kernel_table(points) else _of(device, points)
    fits = fit_device(device, measured)
    grids = {
        fit.group: fit_grid(device, own, fit.constants)
        for fit, own in zip(fits, measured, strict=True)
        if fit.median_error > ABOVE
    }
    if as_json:
        print_json({fit.group: {**fit.constants, **_errors(fit, grids.get(fit.group))} for fit in fits})
        return
    click.echo(f"# {device.name}, fitted to {points.name}")
    click.echo("kernels:" if engine is None else f"kernels:\n  {engine}:")
    edge = "" if engine is None else "  "
    for fit in fits:
        click.echo(f"{edge}  {fit.group}:")
        for name, value in fit.constants.items():
            click.echo(f"{edge}    {name}: {value:.3g}")
        errors = f"error median {fit.median_error:.1%}, p90 {fit.p90_error:.1%}"
        if fit.group in grids:
            grid = grids[fit.group]
            click.echo(f"{edge}    grid: |\n" + indent(grid.text, f"{edge}      "))
            errors += f" of the constants; of the grid {grid.median_error:.1%}, p90 {grid.p90_error:.1%}"
            errors += "" if grid.held_out is None else f", of shapes held out {grid.held_out:.1%}"
        click.echo(f"{edge}    source: >-\n{edge}      {points.name}; {fit.points:,} points; {errors}")


def _of(device: Device, path: Path) -> tuple[MeasuredPoints, ...]:
    """Return the points of a file that are of this device, or of none that is said."""
    found = read_points(path)
    own = tuple(one for one in found if one.device in {None, device.name})
    if not own:
        others = ", ".join(dict.fromkeys(one.device for one in found if one.device))
        raise InputError(Problem(file=str(path), message=f"has no point of {device.name}; it has some of {others}"))
    return own


def _errors(fit: FamilyFit, grid: GridFit | None) -> dict[str, object]:
    found: dict[str, object] = {
        "points": fit.points, "median_error": fit.median_error, "p90_error": fit.p90_error
    }  # fmt: skip
    return found if grid is None else found | {"grid": asdict(grid)}
