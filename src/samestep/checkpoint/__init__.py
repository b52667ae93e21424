"""The state of a run at rest: whole or absent."""
