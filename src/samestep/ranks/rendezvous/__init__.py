"""Lets the ranks of a job find and authenticate each other."""
