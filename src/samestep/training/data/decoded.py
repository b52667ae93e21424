"""Caches decoded files on disk, for other workers and later runs."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samestep.base.regular_files import read_bytes


def cached_content(sha256: str, decode: Callable[[], bytes], folder: Path, *, most: int) -> bytes:
    """Return the content with checksum `sha256` from the cache, or decode it and store it there.

    A cached file is verified. Content that cannot be stored is returned without an error.

    Args:
        sha256: of the content.
        decode: returns the verified content.
        folder: the cache.
        most: maximum bytes of the content.
    """
    path = folder / sha256
    with suppress(OSError):
        content = read_bytes(path, most=most)
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
    content = decode()
    draft = folder / f".{sha256}.draft-{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return content
