"""Clocks and step phases: where the time went."""
