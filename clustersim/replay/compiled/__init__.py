"""Lanes as machine code: stages, their decisions and their prices, compiled where that pays."""
