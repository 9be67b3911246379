"""Options that several commands have."""

from __future__ import annotations

from typing import Final

import click

from clustersim.errors import did_you_mean

allow_code: Final = click.option(
    "--allow-code", is_flag=True, help="Run Python that a scenario names: its own scheduler, its own router."
)
"""Where it is left out, the environment decides (``CLUSTERSIM_ALLOW_CODE=1``)."""


class Choice(click.Choice[str]):
    """One of some words; the nearest one is named where it is none of them."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Return what is wrong with a value."""
        hint = did_you_mean(str(value), [str(choice) for choice in self.choices])
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + (hint if "did you mean" in hint else "")
