"""Gives the folder of this package, and the user's cache folder."""

from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
"""The folder of the package, without a separator at its end: its frames in a stack begin with it."""


def user_cache() -> Path:
    """Return the user's cache folder, which ``XDG_CACHE_HOME`` can move."""
    import pooch

    return Path(pooch.os_cache("samestep"))
