"""Observers, each of which notices one kind of mistake while a script runs on one rank."""
