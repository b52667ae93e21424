"""Computes which samples each rank reads in each step, as pure functions."""
