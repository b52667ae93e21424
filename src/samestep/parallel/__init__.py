"""Computes data-parallel steps: shards, averaged gradients, equal bits."""
