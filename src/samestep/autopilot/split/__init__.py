"""Splits a call of a module across the ranks, and gathers its outputs and gradients."""
