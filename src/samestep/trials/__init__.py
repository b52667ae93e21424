"""Runs of one training on several numbers of workers: planned, made in turns, collected."""
