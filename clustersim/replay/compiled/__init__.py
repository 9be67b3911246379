"""Lanes as machine code: one stage, its decisions and its prices, compiled where that pays."""
