"""Collectives to read: algorithms as schedules of messages, and what executes them."""
