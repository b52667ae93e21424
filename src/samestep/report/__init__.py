"""Writes HTML pages about runs."""
