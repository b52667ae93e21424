"""Reads files that others may have put there: regular files only, and never more bytes than a file may have.

A FIFO would be waited for without end, and a device such as ``/dev/zero`` has no end.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str | None:
    """Return what a file mode stands for, in words; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


@contextmanager
def open_regular(
    path: str | os.PathLike[str], *, dir_fd: int | None = None, follow: bool = True
) -> Iterator[BufferedReader]:
    """Open a regular file for reading, without waiting for a FIFO's writer.

    Args:
        path: the file.
        dir_fd: an open folder that a relative path starts from.
        follow: whether a link to a regular file is followed.

    Raises:
        OSError: it cannot be opened or is no regular file; `strerror` says what it is.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags, dir_fd=dir_fd)
    with os.fdopen(handle, "rb") as stream:
        if (kind := kind_of(os.fstat(handle).st_mode)) is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
        yield stream


def read_regular(
    path: str | os.PathLike[str], *, most: int, dir_fd: int | None = None, follow: bool = True
) -> bytes:
    """Return the bytes of a regular file; see `open_regular`.

    Args:
        path: the file.
        most: bytes that it may have.
        dir_fd: see `open_regular`.
        follow: see `open_regular`.

    Raises:
        OSError: as `open_regular`, and EFBIG for a file that is larger.
    """
    with open_regular(path, dir_fd=dir_fd, follow=follow) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def lies_at(path: Path) -> bool:
    """Return whether anything has this name, be it a link to nothing."""
    return os.path.lexists(path)
