"""The settings, which a script changes."""

FACTOR = 1.0
