"""Starts the workers of a job on one or several nodes, supervises them, and restarts them after a failure."""
