"""Runs a serial script once, on rank 0, while the other ranks compute slices of its model calls."""
