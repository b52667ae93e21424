"""Data sets, and loaders that draw global batches from them."""
