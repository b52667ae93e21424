"""Measuring what collectives take, on the ranks that there are."""
