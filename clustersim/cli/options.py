"""Options that several commands have."""

from __future__ import annotations

from typing import Final

import click

allow_code: Final = click.option(
    "--allow-code", is_flag=True, help="Run Python that a scenario names: its own scheduler, its own router."
)
"""Where it is left out, the environment decides (``CLUSTERSIM_ALLOW_CODE=1``)."""
