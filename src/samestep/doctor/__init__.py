"""Checks the environment of a run: every rank runs the checks, rank 0 compares the results and reports."""
