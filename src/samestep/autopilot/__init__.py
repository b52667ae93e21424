"""Runs a serial script on several ranks: replicates it, and splits the calls of its models."""
