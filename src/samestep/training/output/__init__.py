"""Writes the folder of a training run: metrics, profiles, results, logs."""
