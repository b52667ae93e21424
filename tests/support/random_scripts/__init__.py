"""Random serial training scripts, composed of parts, and their comparison on one and several ranks."""

from support.random_scripts.scripts import make_script

__all__ = ["make_script"]
