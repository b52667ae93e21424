"""Compares runs of one script on several numbers of workers."""
