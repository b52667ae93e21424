"""Writes files and computes their size and sha256 at the same time."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_PIECE = 1 << 20
"""Bytes hashed and written at a time, small enough to stay in the CPU cache."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Size and checksum of a file."""

    bytes: int
    sha256: str


class SealedFile:
    """A new file that is hashed while it is written, so that it need not be read back.

    It is a context manager; after the block `seal` is final and the bytes are on disk.

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
        """Append `data`, any buffer, in pieces, so that other threads can run in between."""
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
        """Flush the stream's buffer to the system."""
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
            # Closing would raise the error of a full disk again.
            with suppress(OSError):
                self._stream.close()
        if self._failed is not None and error is not self._failed:
            raise self._failed  # torch.save's own error only names an incomplete archive
