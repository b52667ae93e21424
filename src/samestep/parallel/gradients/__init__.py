"""Synchronizes the gradients of data-parallel models: synchronizers, batch norm, checksums."""
