"""Writing files so that a reader finds the old one or the new one, never half of one."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that becomes `folder` when the block ends well, and is removed when it does not.

    The draft stands beside `folder`, on the same file system; its files are flushed to disk before it
    gets its name.

    Raises:
        FileExistsError: there is a `folder` already. It is not replaced: two renames cannot be one.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "it exists already", str(folder))
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    remove(draft)
    draft.mkdir(parents=True)
    try:
        yield draft
        for path in sorted(draft.iterdir()):
            flush(path)
        flush(draft)
        draft.rename(folder)
        flush(folder.parent)
    finally:
        remove(draft)


def flush(path: Path) -> None:
    """Wait until `path`, a file or a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def remove(folder: Path) -> None:
    """Remove a flat folder and its files; nothing happens where there is none."""
    if folder.exists():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
