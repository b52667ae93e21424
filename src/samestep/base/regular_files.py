"""Reads files that a user names: regular files only, and up to a size.

An ordinary read of a named pipe without a writer, or of ``/dev/zero``, never ends. Any other kind of file
raises `OSError`, as a missing one does, so that one handler reports both.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from samestep.base.units import bytes_text

TEXT_BYTES = 16 << 20
"""The size of the largest document that is read at once: tables, job files, host lists."""
LINE_BYTES = 1 << 20
"""The longest line of a file that is read line by line."""

AS_IT_IS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""For `os.open`: without a change of line ends, which Windows makes, and not for started programs."""
# Windows has no other kinds of files. Without O_NONBLOCK the opening of a pipe waits for a writer.
_READS = os.O_RDONLY | AS_IT_IS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NOT_LINKS = getattr(os, "O_NOFOLLOW", 0)
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str | None:
    """Return the kind of file that a mode stands for, in words; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def lies_at(path: Path) -> bool:
    """Return whether anything has this name, including a broken link."""
    return os.path.lexists(path)


@contextmanager
def descriptor(
    path: str | os.PathLike[str], flags: int, mode: int = 0o666, *, dir_fd: int | None = None
) -> Iterator[int]:
    """Open a file or folder by `os.open` for the duration of a block, and yield its descriptor."""
    handle = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        yield handle
    finally:
        os.close(handle)


def open_regular(
    path: str | os.PathLike[str], *, dir_fd: int | None = None, follow: bool = True
) -> BufferedReader:
    """Open a regular file for reading, without blocking on files of other kinds.

    Args:
        path: the file.
        dir_fd: an open folder that a relative path is relative to.
        follow: whether a link to a regular file is followed.

    Raises:
        OSError: the file is missing or not regular; ``strerror`` names its kind.
    """
    try:
        handle = os.open(path, _READS if follow else _READS | _NOT_LINKS, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:  # Linux returns this for a socket
            raise _refused("it is a socket or a device, not a regular file", path) from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if (kind := kind_of(mode)) is not None:
            raise _refused(f"it is {kind}, not a regular file", path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(
    path: str | os.PathLike[str], *, most: int, dir_fd: int | None = None, follow: bool = True
) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: the file.
        most: maximum size in bytes.
        dir_fd: an open folder that a relative path is relative to.
        follow: whether a link to a regular file is followed.

    Raises:
        OSError: the file cannot be read, is not regular, or is larger.
        ValueError: the path holds a null character.
    """
    with open_regular(path, dir_fd=dir_fd, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise _refused(f"it has {bytes_text(size)}, more than the {bytes_text(most)} expected", path)
        content = file.read(size + 1)  # one more: a file can grow, and files of /proc have size 0
        while len(content) > size and (piece := file.read(_PIECE)):
            content += piece
            if len(content) > most:
                raise _refused(f"it has more than the {bytes_text(most)} expected", path)
    return content


def read_text(path: Path, *, most: int = TEXT_BYTES, errors: str = "strict") -> str:
    """Return the text of a regular UTF-8 file.

    Args:
        path: the file.
        most: maximum size in bytes.
        errors: handling of bytes that are not UTF-8, as in `bytes.decode`.

    Raises:
        OSError: the file cannot be read, is not regular, or is larger.
        UnicodeDecodeError: the bytes are not UTF-8, and `errors` is strict.
    """
    return read_bytes(path, most=most).decode("utf-8", errors)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a regular UTF-8 file with their line ends; invalid bytes are replaced.

    Raises:
        OSError: the file cannot be read, is not regular, or has a line above `LINE_BYTES`.
    """
    with open_regular(path) as file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            if len(line) > LINE_BYTES:
                raise _refused(f"its line {number} is longer than {bytes_text(LINE_BYTES)}", path)
            yield line.decode("utf-8", "replace")


def _refused(why: str, path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, why, str(path))
