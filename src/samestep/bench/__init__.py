"""Measures collectives and training steps on the current ranks."""
