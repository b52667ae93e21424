"""Evaluates one training that was measured on several numbers of workers."""
