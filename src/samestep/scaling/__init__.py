"""Measures one training on several numbers of workers."""
