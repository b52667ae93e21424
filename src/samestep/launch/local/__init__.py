"""Starts, supervises and ends the workers of one node."""
