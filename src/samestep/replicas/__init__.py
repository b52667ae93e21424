"""Keeping replicas equal: gradient synchronisers, batch norm, fingerprints."""
