"""Simulates clusters that serve decoder-only transformers, and proves that what it simulated was legal."""

__version__ = "0.1.0"
