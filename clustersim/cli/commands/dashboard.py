"""``clustersim dashboard``: write the HTML page of a run anew, maybe with another layout."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli.options import Whole, Written, instant, quantity, script
from clustersim.errors import InputError, Problem
from clustersim.report.dashboard import write_dashboard
from clustersim.report.figures.layout import FIGURES
from clustersim.report.files.agreement import refuse_differing
from clustersim.report.files.run_directory import dashboard_of, read_run
from clustersim.report.folded.asked import Asked, refuse_large, without_unfolding
from clustersim.report.folded.shapes import shapes_of
from clustersim.report.layouts import layout
from clustersim.scenario.load import load
from clustersim.simulation.recorded import requests_of
from clustersim.simulation.replay_input import replay_input


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--layout", "name", default="overview", show_default=True, help="A name in dashboards/, or a YAML file.")
@click.option("-o", "--output", type=Written(), help="The page [RUN_DIR/dashboard.html].")
@click.option("--at", metavar="TIME", help="Show the second around this instant first: '1234 s'.")
@click.option("--request", type=Whole(min=0), metavar="N", help="Show this request first.")
@click.option(
    "--max-page", default="30MB", show_default=True, metavar="SIZE",
    help="Beyond it: all steps, and operators of the busiest second, slow requests, faults and what is shown first.",
)  # fmt: skip
@script
def dashboard(
    run_dir: Path, name: str, output: Path | None, at: str | None, request: int | None, max_page: str, script: str
) -> None:
    """Write the dashboard of RUN_DIR."""
    at_ns = None if at is None else instant(at, "--at")
    most_bytes = int(quantity(max_page, "bytes", "--max-page", "30 MB"))
    if most_bytes < 1:
        raise InputError(
            Problem(path="--max-page", message=f"expected more than nothing, such as '30 MB', but found {max_page!r}")
        )
    beside = script == "beside"
    wanted = Asked(most_bytes=most_bytes, most=max_page, at_ns=at_ns, request=request, is_beside=beside)
    panels = layout(name, FIGURES)
    run = read_run(run_dir)
    target = output if output is not None else run_dir / "dashboard.html"
    try:
        figures = (run.summary, run.requests, run.step_rows, run.timeline, run.token_gaps)
        scenario = load(run_dir / "scenario.yaml", allow_code=False)
        arrivals = requests_of(scenario, len(run.requests["request"]), run_dir)
        html = dashboard_of(*figures, panels, wanted, shapes_of(scenario), replay_input(scenario, arrivals))
    except InputError:
        raise
    except Exception:  # figures that nobody could draw: are they those of the timeline?
        refuse_differing(run_dir)
        raise
    refuse_large(html, wanted, lambda: dashboard_of(*figures, without_unfolding(panels)))
    above = None if not beside else 0 if output is not None else 1
    write_dashboard(target, html, above)
    click.echo(str(target))
