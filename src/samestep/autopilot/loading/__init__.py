"""Splits the data loading of a replicated script across its ranks."""
