"""``clustersim calibrate``: fit the constants of a device's cost model to measured operators."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli.tables import print_json
from clustersim.cost.fit import FamilyFit, fit_device
from clustersim.cost.points import read_points
from clustersim.scenario.parts import load_topology


@click.command()
@click.argument("topology")
@click.argument("points", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the fit as one JSON object.")
def calibrate(topology: str, points: Path, as_json: bool) -> None:
    """Fit the device of TOPOLOGY to the measurements in POINTS (.csv or .parquet).

    POINTS has a column op, the shape columns of that operator (gemm: m n k; see clustersim.cost.protocol), seconds,
    and optionally dtype. What is printed is a `kernels:` section for the device's file in topologies/devices/. To use
    the measured points as they are instead, name the file in a scenario: `cost: {table: FILE}`.
    """
    device = load_topology(topology).device
    fits = fit_device(device, read_points(points))
    if as_json:
        print_json({fit.group: {**fit.constants, **_errors(fit)} for fit in fits})
        return
    click.echo(f"# {device.name}, fitted to {points.name}")
    click.echo("kernels:")
    for fit in fits:
        click.echo(f"  {fit.group}:")
        for name, value in fit.constants.items():
            click.echo(f"    {name}: {value:.3g}")
        click.echo("    source: >-")
        click.echo(
            f"      {points.name}; {fit.points:,} points; error median {fit.median_error:.1%}, p90 {fit.p90_error:.1%}"
        )


def _errors(fit: FamilyFit) -> dict[str, float]:
    return {"points": fit.points, "median_error": fit.median_error, "p90_error": fit.p90_error}
