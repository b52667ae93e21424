"""Finds, saves and restores the state that a call of a module can read or change."""
