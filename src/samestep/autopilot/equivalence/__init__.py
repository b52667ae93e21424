"""Checks that a split call gives the results of the unsplit call."""
