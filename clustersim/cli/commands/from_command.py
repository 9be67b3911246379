"""``clustersim from-command``: a scenario from the command line of a server, of vLLM or SGLang."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from clustersim.cli.options import Written
from clustersim.cli.status import ILLEGAL, UNUSABLE_INPUT, problems_text
from clustersim.errors import InputError
from clustersim.files import written_whole
from clustersim.interop.translated import scenario_from_command


@click.command("from-command")
@click.argument("command")
@click.option("--bench", metavar="COMMAND", help="The workload: a benchmark's command.")
@click.option("--topology", metavar="NAME", help="What it runs on, a name or a path [dgx-h100].")
@click.option("--model", metavar="NAME", help="What stands for the model: one that ships, or a config.json.")
@click.option("--out", type=Written(), help="Write a file [standard output].")
@click.pass_context
def from_command(
    ctx: click.Context, command: str, bench: str | None, topology: str | None, model: str | None, out: Path | None
) -> None:
    """Translate COMMAND, such as "vllm serve meta-llama/Llama-3.1-8B -tp 2", into a scenario.

    COMMAND is what would be typed into a shell: `vllm serve`, `python -m sglang.launch_server`, `sglang serve`,
    `python -m vllm.entrypoints.openai.api_server`, or `docker run …` with one of them, with variables, quotes and
    continued lines; `-` reads it from standard input. A `vllm bench serve` or `python -m sglang.bench_serving` beside
    it, or in --bench, becomes the workload. The scenario says where every value comes from, what is the engine's
    default, what was ignored, and, as NOTE, what has an effect that is left out. `from-vllm` is the same command.

    Exit status 0: written, 1: written, and its plan is illegal, by rules that are named with what would be legal, 2:
    the command can't be read, or the engine refuses it.
    """
    text = sys.stdin.read() if command == "-" else command
    try:
        found = scenario_from_command(text, bench, topology=topology, model=model, folder=out.parent if out else Path())
    except InputError as error:
        click.echo(problems_text(error.problems, {"command": text, "--bench": bench or ""}), err=True)
        ctx.exit(UNUSABLE_INPUT)
    for assumed in found.assumed:
        click.echo(f"note: {assumed}", err=True)
    if out is None:
        click.echo(found.text, nl=False)
    else:
        with written_whole(out) as beside:
            beside.write_text(found.text, encoding="utf-8")
        for note in found.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"wrote {out}")
    if found.illegal:
        click.echo(f"illegal:\n{problems_text(found.illegal, {'command': text, '--bench': bench or ''})}", err=True)
        ctx.exit(ILLEGAL)
