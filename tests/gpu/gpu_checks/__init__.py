"""Checks on a machine with GPUs: ``python -m gpu_checks`` runs all that its devices allow."""
