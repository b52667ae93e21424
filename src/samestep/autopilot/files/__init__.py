"""Gives all ranks of a replicated script the files that the serial script would see; rank 0 writes them."""
