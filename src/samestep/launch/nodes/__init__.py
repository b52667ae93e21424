"""Starts a job on several nodes, with a launcher on each."""
