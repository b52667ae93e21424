"""Sends the network requests of a replicated script once, on rank 0."""
