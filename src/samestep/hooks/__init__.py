"""Replaces functions of torch and Python while a feature is in use, and restores them."""
