"""Checks on a machine with GPUs: ``python -m samestep.testing.gpu`` runs all that its devices allow."""
