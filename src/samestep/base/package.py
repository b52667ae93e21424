"""Gives the folder of this package, by which its frames in a stack differ from those of a script."""

from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
"""The folder of the package, without a separator at its end."""
