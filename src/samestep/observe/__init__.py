"""Observes a running script without changing its results."""
