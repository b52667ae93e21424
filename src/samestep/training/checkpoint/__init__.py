"""Checkpoints: writing, verifying, choosing and deleting them."""
