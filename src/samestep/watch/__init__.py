"""Observes a running script without changing its results: step clock, hang detection, sanitizer, probe."""
