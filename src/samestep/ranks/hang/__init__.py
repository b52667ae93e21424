"""Detects ranks that wait for a rank that does not arrive, and ranks that wait for each other."""
