"""The folders that a user's files are kept in, as the platform has them."""

from pathlib import Path


def user_cache() -> Path:
    """Return the folder of what can be had again: the user's cache (``XDG_CACHE_HOME`` is respected)."""
    import pooch

    return Path(pooch.os_cache("samestep"))
