"""Runs a user's program on the workers of a job, from the decision to the exit code."""
