"""New files that are hashed while they are written."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

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
