"""Measures and verifies trainings, and reports the results."""
