"""Measures the phases of training steps and writes them to files."""
