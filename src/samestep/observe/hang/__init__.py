"""Detects ranks that wait for a rank that does not arrive."""
