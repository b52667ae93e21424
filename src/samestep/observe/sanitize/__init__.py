"""Compares the ranks of a script in every step."""
