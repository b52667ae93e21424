"""Returns the platform's folders for a user's files."""

from pathlib import Path


def user_cache() -> Path:
    """Return the user's cache folder, which ``XDG_CACHE_HOME`` can move."""
    import pooch

    return Path(pooch.os_cache("samestep"))
