"""``clustersim rules``: the legality rules, or one of them in full."""

from __future__ import annotations

from typing import Any, Final

import click

from clustersim.cli.tables import print_facts, print_json, print_table
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.legality.rule import Rule
from clustersim.legality.rulebook import RULES
from clustersim.legality.rulebook.examples import examples_of

LEVELS = {"P": "the plan", "G": "the step graph", "T": "the timeline", "X": "execution"}
_SHOWN: Final = ("level", "where", "message", "fix")


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rules(rule_id: str | None, as_json: bool) -> None:
    """List the legality rules, or show the one called ID (such as KV-4) or all of a family (such as KV)."""
    chosen = RULES if rule_id is None else _named(rule_id)
    if as_json:
        print_json([_plain(rule) for rule in chosen])
    elif len(chosen) == 1:
        _show(chosen[0])
    else:
        rows = [(rule.id, " ".join(rule.levels), rule.statement) for rule in chosen]
        print_table(("rule", "level", "what must hold"), rows, numbers_from=3)
        click.echo("Levels: " + ", ".join(f"{level} {what}" for level, what in LEVELS.items()))


def _plain(rule: Rule) -> dict[str, Any]:
    """Return a rule with violations of it that tested cases yield, one of each level that places them."""
    examples = [one.as_json() for one in examples_of(rule.id)]
    return rule.as_json() | {"examples": [{key: one[key] for key in _SHOWN} for one in examples]}


def _named(name: str) -> tuple[Rule, ...]:
    wanted = name.upper()
    found = tuple(rule for rule in RULES if wanted in (rule.id, rule.id.partition("-")[0]))
    if not found:
        hint = did_you_mean(wanted, [rule.id for rule in RULES])
        raise InputError(Problem(message=f"no rule {name!r}{hint}"))
    return found


def _show(rule: Rule) -> None:
    print_facts(
        {
            "rule": rule.id,
            "checked on": ", ".join(f"{LEVELS[level]} ({level})" for level in rule.levels),
            "holds when": rule.statement,
            "because": rule.why,
            "source": rule.source,
            "catches": rule.example,
        }
    )
    for one in examples_of(rule.id):
        click.echo(f"\nbroken on {LEVELS[one.level]}, it reads\n  {one.where}: {one.message};\n  {one.fix}")
