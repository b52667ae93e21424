"""Generates random serial training scripts, and compares their runs on one and on several workers."""

from support.random_scripts.scripts import make_script

__all__ = ["make_script"]
