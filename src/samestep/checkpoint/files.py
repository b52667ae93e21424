"""Folders on disk that are whole or absent: a reader finds the old one or the new one, never half of one.

What a process had in hand when it was killed has a name that begins with a dot, and says what it is::

    .step-120.draft-4711    was being written: worthless
    .step-120.old-4711      was being replaced: takes its name again, unless the new one has it
    .step-120.gone-4711     was being deleted: worthless

`tidy` is for the next writer, `restore` for whoever reads before there is one.
"""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|old|gone)-\d+")
_PIECE = 1 << 20
"""Bytes hashed and written at a time: they are still in the processor's cache when they are written."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What the bytes of a file are known by."""

    bytes: int
    sha256: str


class SealedFile:
    """A new file that is hashed while it is written, so that nothing has to be read back.

    A context manager; `seal` stands once the block has ended well, and then the bytes are on disk.

    Args:
        path: must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("xb")
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._failed: OSError | None = None

    @property
    def seal(self) -> Seal:
        """Size and digest of what has been written so far."""
        return Seal(self._bytes, self._digest.hexdigest())

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`, of which any buffer will do. Long ones let other threads run meanwhile."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                self._digest.update(piece)
                self._stream.write(piece)
        except OSError as error:
            self._failed = error
            raise
        self._bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._stream.flush()

    def __enter__(self) -> "SealedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._stream.flush()
                os.fsync(self._stream.fileno())
        finally:
            # A full disk is told once: closing would try to write the rest again.
            with suppress(OSError):
                self._stream.close()
        if self._failed is not None and error is not self._failed:
            raise self._failed  # torch.save tells instead that its archive has no end


@contextmanager
def whole_or_absent(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that takes the place of `folder` when the block ends well; else it is removed.

    The draft stands beside `folder`, on the same file system. Its files have to be on disk at the end of
    the block, as those of `SealedFile` are. A `folder` that is there already stays until then.
    """
    draft, old = _hidden(folder, "draft"), _hidden(folder, "old")
    make(folder.parent)
    remove(draft)
    restore(folder.parent, name=folder.name)
    remove(old)
    draft.mkdir()
    try:
        yield draft
        flush(draft)
        _take_the_name(draft, folder, old)
        flush(folder.parent)
    finally:
        remove(draft)
    # The new one is there, whatever comes of this: the next writer clears away what is left.
    with suppress(OSError):
        remove(old)


def make(folder: Path) -> None:
    """Make `folder` and those above it that are missing, and wait until their names are on disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    for path in reversed(missing):
        with suppress(PermissionError):  # where one may make folders, but not look
            flush(path.parent)


def delete(folder: Path) -> None:
    """Delete a flat folder so that a kill on the way leaves nothing that looks like one."""
    gone = _hidden(folder, "gone")
    folder.rename(gone)
    remove(gone)


def tidy(parent: Path) -> None:
    """Clear away in `parent` what a killed writer had in hand; for the one writer there is."""
    restore(parent)
    for path, _ in _left_over(parent, "draft", "gone", "old"):
        # On a network file system another reader may still hold a file of it: it does no harm.
        with suppress(OSError):
            remove(path)


def restore(parent: Path, *, name: str | None = None) -> None:
    """Give a folder that was being replaced its name again, where the new one did not come to have it.

    Args:
        parent: where it is.
        name: looked for alone; None is all.
    """
    for path, its_name in _left_over(parent, "old"):
        if name in {None, its_name} and not (parent / its_name).exists():
            # Somebody who may only read finds the ones before; the next writer comes by here as well.
            with suppress(OSError):
                path.rename(parent / its_name)


def flush(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot be asked for this
            raise
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Remove a flat folder and its files; nothing happens where there is none."""
    if folder.exists():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _take_the_name(draft: Path, folder: Path, old: Path) -> None:
    """Rename `draft` to `folder`, after renaming what has that name to `old`."""
    while True:
        try:
            draft.rename(folder)
            break
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        folder.rename(old)


def _hidden(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}-{os.getpid()}")


def _left_over(parent: Path, *kinds: str) -> list[tuple[Path, str]]:
    """Return the hidden folders of some kinds, each with the name it had or was to have."""
    if not parent.is_dir():
        return []
    found = ((path, _HIDDEN.fullmatch(path.name)) for path in sorted(parent.iterdir()))
    return [(path, match["name"]) for path, match in found if match and match["kind"] in kinds]
