"""Reads the source of a script, without running it."""
