"""Implements the world of a job: over processes, over threads, and of one rank."""
