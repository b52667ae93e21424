"""Connects the ranks of one job, and passes data between them."""
