"""Data sets and the loaders that draw global batches from them."""
