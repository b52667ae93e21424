"""Data that ships inside the package, and how it was packed."""
