"""``clustersim dashboard``: write the HTML page of a run anew, maybe with another layout."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.errors import InputError
from clustersim.report.dashboard import write_dashboard
from clustersim.report.files.agreement import refuse_differing
from clustersim.report.files.run_directory import dashboard_of, read_run
from clustersim.report.layouts import layout


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--layout", "name", default="overview", show_default=True, help="A name in dashboards/, or a YAML file.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page [RUN_DIR/dashboard.html].")
def dashboard(run_dir: Path, name: str, output: Path | None) -> None:
    """Write the dashboard of RUN_DIR."""
    run = read_run(run_dir)
    target = output if output is not None else run_dir / "dashboard.html"
    panels = layout(name)
    try:
        html = dashboard_of(run.summary, run.requests, run.step_rows, run.timeline, run.token_gaps, panels)
    except InputError:
        raise
    except Exception:  # figures that nobody could draw: are they those of the timeline?
        refuse_differing(run_dir)
        raise
    write_dashboard(target, html)
    click.echo(str(target))
