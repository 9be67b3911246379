"""``clustersim calibrate engine``: fit the constants of an engine to logs of a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from clustersim.cli.options import Whole, Written
from clustersim.cli.tables import print_json, print_table
from clustersim.errors import InputError, Problem
from clustersim.files import refuse_unwritable, written_whole
from clustersim.report.score_page import Dot, Table, score_page
from clustersim.scenario.load import load
from clustersim.scenario.resolve import to_yaml
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.fit import CONSTANTS, EngineFit, fit_engine
from clustersim.simulation.calibration.log.read import read_log
from clustersim.simulation.calibration.log.server_log import ServerLog

_WORSE: Final = 0.01
"""By how much the error may grow on what was held out: two measurements differ by 2 %."""
_MOST_ERROR: Final = 0.5
"""Above it a file of an engine is not written: it describes something else."""
_FAR: Final = 0.35
"""An error of the engine as it was above which logs seem to be of something else: of the measured figures of
docs/accuracy.md nine in ten are nearer."""
_KERNEL_TIMES: Final = (0.75, 1.33)
"""Beyond them kernels seem to be those of another device: fits to one device err by 2 to 20 % (docs/accuracy.md)."""
_MOST_AT_LIMIT: Final = 2
"""Constants that may end at a limit: host time that a server hides is nothing, of one step and one request."""
_LONGEST_STEP_S: Final = 3.3e-3
"""Host time of a step beyond which the logs seem to be of something else: the most that any engine in scenarios/engines
has is 2.9 ms (vllm-0.6), and 3.3 ms where a family is left out of a fit (vllm-0.12)."""


@click.command("engine")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path))
@click.option("--scenario", required=True, help="What was measured: model, devices, plan, limits and engine.")
@click.option("-o", "--output", required=True, type=Written(), help="The engine's new file; a page beside it.")
@click.option(
    "--far",
    is_flag=True,
    help="Also write constants that are far from the engine's: the logs are of this device and model.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the scenario.")
@click.option("--workers", type=Whole(1, 64), default=2, show_default=True, help="Processes that simulate.")
@click.option("--json", "as_json", is_flag=True, help="Print the fit as one JSON object.")
def engine(
    logs: tuple[Path, ...],
    scenario: str,
    output: Path,
    far: bool,
    overrides: tuple[str, ...],
    workers: int,
    as_json: bool,
) -> None:
    """Fit the constants of an engine to what a server of yours logged.

    LOG is a result of `vllm bench serve --save-result` (with --save-detailed one is enough, without it three or
    more), or a log with a request per line, as JSON or CSV. A part of the log is held out, and the error on it is
    printed with the engine as it was and as it is now. What the log can't tell is left as it was, and named.
    """
    if output.suffix not in {".yaml", ".yml"}:
        raise InputError(Problem(file=str(output), message="expected a name that ends in .yaml"))
    refuse_unwritable(output.with_suffix(".html"))
    deployed = load(scenario, overrides)
    read = [read_log(path, deployed) for path in logs]
    for note in (note for log in read for note in log.notes):
        click.echo(f"note: {note}", err=True)
    fit = fit_engine(deployed, read, workers=workers)
    _refuse_useless(output, fit, far=far)
    for told in fit.at_limit:
        click.echo(f"warning: {told}", err=True)
    pooled, after = (fit.error(row, held_out=True) for row in (fit.pooled_ms, fit.after_ms))
    if abs(after - pooled) < _WORSE:
        what = "the engine as it was" if fit.kv_blocks is None else f"the engine as it was with {_pool(fit)}"
        told = f"error median {pooled:.1%} before, {after:.1%} after"
        click.echo(f"note: on what was held out {what} is as near ({told}): its constants gain nothing", err=True)
    _write(output, _engine_yaml(deployed, read, fit))
    page = output.with_suffix(".html")
    _write(page, _page(output.stem, deployed, read, fit))
    if as_json:
        print_json(_plain(deployed, fit))
        return
    print_table(("constant", "was", "is", ""), _written(deployed, fit), numbers_from=4)
    if fit.kv_blocks is None:
        click.echo(f"K/V pool: not told; {fit.refused['kv_blocks']}")
    else:
        click.echo(f"K/V pool: {fit.kv_blocks:,} blocks, no key of an engine; in the scenario: {_pool(fit)}")
    for what, held_out in (("fitted", False), ("held out", True)):
        click.echo(f"{what}: {_errors(fit, held_out=held_out)}")
    click.echo(f"wrote {output} and {page}")


def _pool(fit: EngineFit) -> str:
    return f"serving.kv_blocks={fit.kv_blocks}"


def _errors(fit: EngineFit, *, held_out: bool) -> str:
    """Say the errors as it was, with the K/V pool alone where the logs tell one, and with the constants."""
    before, pooled, after = (fit.error(row, held_out=held_out) for row in (fit.before_ms, fit.pooled_ms, fit.after_ms))
    alone = "" if fit.kv_blocks is None else f"{pooled:.1%} with {_pool(fit)} alone, "
    return f"error median {before:.1%} before, {alone}{after:.1%} after"


def _refuse_useless(output: Path, fit: EngineFit, *, far: bool) -> None:
    """Raise where the fit is worse on what was held out than the engine as it was, or far off, or far from it.

    Host times and ``kernel_time`` together fit what another device or model took: that a fit is near says little then.
    """
    before, after = (fit.error(row, held_out=True) for row in (fit.before_ms, fit.after_ms))
    told = "; ".join((f"error median {before:.1%} before, {after:.1%} after", *fit.at_limit))
    ask = "does the scenario say what was measured (model, devices, plan, limits), and are the logs of one server?"
    why = ""
    if after > before + _WORSE:
        why = "on what was held out the engine as it was is nearer"
    elif after > _MOST_ERROR:
        why = f"on what was held out an error above {_MOST_ERROR:.0%} remains"
    elif doubts := [] if far else _doubts(fit):
        why = "the logs seem to be of another device or model than the scenario: " + "; ".join(doubts)
        ask += " If so, --far writes it"
    if why:
        raise InputError(Problem(file=str(output), message=f"is not written: {why} ({told}); {ask}"))


def _doubts(fit: EngineFit) -> list[str]:
    """Return what of a fit looks as if its logs were not of the scenario's device and model."""
    doubts = []
    if fit.error(fit.pooled_ms, held_out=True) > _FAR:
        doubts.append(f"the engine as it was errs by more than {_FAR:.0%}")
    least, most = _KERNEL_TIMES
    if not least <= (kernels := fit.constants.get("kernel_time", 1.0)) <= most:
        doubts.append(f"kernel_time would be {kernels:.2f}, beyond {least:g} to {most:g}")
    if (step_s := fit.constants.get("schedule", 0.0)) > _LONGEST_STEP_S:
        doubts.append(
            f"schedule would be {step_s * 1e3:.2f} ms, beyond the {_LONGEST_STEP_S * 1e3:g} ms of any engine known"
        )
    if len(fit.at_limit) > _MOST_AT_LIMIT:
        doubts.append(f"{len(fit.at_limit)} constants end at their limits")
    return doubts


def _written(scenario: Scenario, fit: EngineFit) -> list[tuple[str, str, str, str]]:
    """Return (key, before, after or –, words) of every constant that a log may tell."""
    rows = []
    for one in CONSTANTS:
        now = fit.constants.get(one.key)
        why = one.words if now is not None else f"not told: {fit.refused[one.key]}"
        was = one.written(float(getattr(scenario.engine, one.field)))
        rows.append((one.key, was, "–" if now is None else one.written(now), why))
    return rows


def _engine_yaml(scenario: Scenario, logs: Sequence[ServerLog], fit: EngineFit) -> str:
    values: dict[str, Any] = dict(scenario.document["serving"]["engine"])
    base = values.pop("name")
    values.setdefault("kernels", base)  # else they would be those of the file's name
    fitted = ", ".join(fit.constants) or "nothing"
    names = ", ".join(log.name for log in logs)
    values["source"] = (
        f"{base}, with {fitted} fitted by clustersim calibrate engine to {names}; on the part held out: "
        f"{_errors(fit, held_out=True)}"
    )
    told = {one.key: one.written(fit.constants[one.key]) for one in CONSTANTS if one.key in fit.constants}
    if "kernel_time" in told:
        values["kernel_time"] = float(told.pop("kernel_time"))
    return to_yaml(values | told)


def _page(name: str, scenario: Scenario, logs: Sequence[ServerLog], fit: EngineFit) -> str:
    charts: dict[str, list[Dot]] = {}
    for place, figure in enumerate(fit.figures):
        if figure.is_held_out:
            for when, row in (("before", fit.before_ms), ("after", fit.after_ms)):
                said = f"{figure.metric} {figure.statistic} · {logs[figure.log].name}"
                dot = Dot(family=when, measured=figure.measured_ms, predicted=float(row[place]), words=said)
                charts.setdefault(f"{figure.metric.upper()} held out, ms", []).append(dot)
    table = Table(
        title="Constants",
        caption="Before and after.",
        columns=("constant", "was", "is", "what"),
        rows=_written(scenario, fit),
        numbers_from=4,
    )
    return score_page(name, f"on what was held out: {_errors(fit, held_out=True)}", charts, [table])


def _plain(scenario: Scenario, fit: EngineFit) -> dict[str, Any]:
    errors = {
        name: {when: fit.error(row, held_out=held_out)
               for when, row in (("before", fit.before_ms), ("after", fit.after_ms))}
        for name, held_out in (("fitted", False), ("held_out", True))
    }  # fmt: skip
    constants = {}
    for one in CONSTANTS:
        if one.key in fit.constants:
            unit = "_s" if one.field.endswith("_s") else ""
            was = float(getattr(scenario.engine, one.field))
            constants[one.key] = {f"before{unit}": was, f"after{unit}": fit.constants[one.key]}
    return {"constants": constants, "refused": dict(fit.refused), "kv_blocks": fit.kv_blocks,
            "at_limit": list(fit.at_limit), "errors": errors}  # fmt: skip


def _write(path: Path, text: str) -> None:
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="")
