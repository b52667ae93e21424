"""A package of a script: its functions read a factor of another file."""

from support.factors import operations, settings

__all__ = ["operations", "settings"]
