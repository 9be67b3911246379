"""``python -m clustersim`` is ``clustersim``."""

from clustersim.cli import main

main(prog_name="clustersim")
