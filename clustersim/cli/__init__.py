"""The command line: a table of commands that are imported when they are called.

``clustersim --help`` imports click and nothing else. What a command raises becomes text on stderr and an exit
status in one place, :mod:`clustersim.cli.status`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from clustersim import __version__
from clustersim.cli.memory import keep_memory
from clustersim.cli.status import TOLD, exit_status, leave
from clustersim.cli.streams import usable_streams
from clustersim.errors import did_you_mean

COMMANDS: Final = {
    "run": ("run:run", "Simulate a scenario: summary, run directory, dashboard."),
    "sweep": ("sweep:sweep", "Simulate many variants of a scenario: table and page."),
    "why": ("why:why", "Find which limit costs most: lift one at a time."),
    "rate": ("rate:rate", "Find the highest rate at which targets are met."),
    "search": ("search:search", "Find the best of all legal plans."),
    "size": ("size:size", "Find the fewest devices that meet targets."),
    "check": ("check:check", "Check that a plan is legal, before anything runs."),
    "from-command": ("from_command:from_command", "Make a scenario of a command line of vLLM or SGLang."),
    "compare": ("compare:compare", "Compare runs: what differs, and where it comes from."),
    "launch": ("launch:launch", "Write what starts a scenario with an engine."),
    "prove": ("prove:prove", "Prove a plan: execute its step graphs with numbers."),
    "audit": ("audit:audit", "Check that what a run recorded was legal."),
    "graph": ("graph:graph", "Show the step graph of a scenario."),
    "trace": ("trace:trace", "Write requests, steps and operators of a run for Perfetto."),
    "dashboard": ("dashboard:dashboard", "Write the HTML dashboard of a run."),
    "topology": ("topology:topology", "List topologies, or show one."),
    "models": ("models:models", "List architectures, or show one."),
    "rules": ("rules:rules", "List the legality rules."),
    "accuracy": ("accuracy:accuracy", "Compare predictions with measured serving figures."),
    "calibrate": ("calibrate:calibrate", "Fit the cost model to measurements."),
    "schema": ("schema:schema", "Print the JSON schema of scenarios, for editors."),
}
"""Command → (module:function in ``commands``, one line of help)."""
ALSO: Final = {"from-vllm": "from-command"}
"""Other names of commands."""


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALSO.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(f"clustersim.cli.commands.{module}"), function)
        except KeyboardInterrupt as error:
            error.add_note("nothing was kept: it had not begun")
            raise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and name not in ALSO and not name.startswith("-"):
            ctx.fail(f"no command {name!r}{did_you_mean(name, list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        usable_streams()
        keep_memory()
        try:
            return super().main(*args, **options)
        except SystemExit as left:
            if left.code in TOLD and not args and not options:  # this is the program: nothing else may hold it up now
                leave(left.code)
            raise

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with exit_status():  # --help and --version print here
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with exit_status():
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                raise _with_key(error) from None


def _with_key(error: click.NoSuchOption) -> click.NoSuchOption:
    """Lead from an option of an engine to the key that ``--set`` takes, where the command takes one."""
    from clustersim.scenario.validate import known_as

    hint = known_as(error.option_name)
    if hint and error.ctx is not None and any("--set" in param.opts for param in error.ctx.command.params):
        trace = ", of a trace workload.trace.rate_scale" if hint.endswith("workload.arrivals.rate") else ""
        message = f"No such option {error.option_name!r}{hint}{trace} (--set KEY=VALUE)"
        return click.NoSuchOption(error.option_name, message=message, ctx=error.ctx)
    return error


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit status: 0 done and legal; 1 illegal, an expectation failed, or targets not reached; 2 unusable input; "
    "3 not checkable; 130 interrupted.",
)
@click.version_option(__version__, prog_name="clustersim")
def main() -> None:
    """Simulate clusters that serve decoder-only transformers, and check first that their plans are legal.

    Start with `clustersim run quickstart`.
    """
