"""Contents that took long to decode, kept for the next who asks: the other workers, and the next run."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samestep.base.regular_files import read_bytes


def remembered(sha256: str, decode: Callable[[], bytes], folder: Path, *, most: int) -> bytes:
    """Return the content whose checksum is `sha256`: from `folder`, or else decoded and put there.

    What is read from the folder is checked; what cannot be kept is returned all the same.

    Args:
        sha256: of the content.
        decode: makes it, and has checked it.
        folder: the user's cache.
        most: bytes that the content may have.
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
