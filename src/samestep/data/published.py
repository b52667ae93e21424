"""Files that someone published: which they are, where a copy may lie, and whether it is whole."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import DataError
from samestep.base.regular_files import read_bytes
from samestep.data.decompress import Damaged, TooLarge, decompressed

_SUFFIXES = ("", ".gz", ".xz")
_OVERHEAD = 1 << 20
"""Bytes that a compressed file may be larger than what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """One file of a data set, by content."""

    name: str
    """As published, without the suffix of its compression."""
    suffix: str
    """The compression it was published in: ".gz", ".xz" or ""."""
    sha256: str
    """Of the file as published; what a download must have."""
    content_sha256: str
    """Of what it holds, decompressed; what any copy must have, however it is compressed."""
    content_bytes: int
    """The size of what it holds, decompressed; no copy is read any further."""

    @property
    def spellings(self) -> list[str]:
        """Names a copy may have: plain or compressed, ``-idx3-`` or (as some tools unpack it) ``.idx3-``."""
        stems = dict.fromkeys((self.name, self.name.replace("-idx", ".idx")))
        return [stem + suffix for stem in stems for suffix in _SUFFIXES]


def locate(files: Sequence[PublishedFile], data_dir: Path, folders: Iterable[str]) -> list[Path]:
    """Return where copies of `files` lie under `data_dir`.

    Args:
        files: what is looked for.
        data_dir: the folder the user named.
        folders: where to look, relative to `data_dir`, best first.

    Raises:
        DataError: the folder or some of the files are not there; lists what was looked for, and where.
    """
    if not data_dir.is_dir():
        raise DataError(f"--data-dir {data_dir} is not a folder. Name the one that holds the data set.")
    places = [data_dir / folder for folder in folders]
    found = {file.name: _first_existing(file, places) for file in files}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"no {' and no '.join(missing)} (plain, .gz or .xz) in {', '.join(map(str, places))}. "
            "Point --data-dir at the folder that holds them, or leave it out to download them."
        )
    return [path for path in found.values() if path is not None]


def read(path: Path, *, most: int) -> bytes:
    """Return what the file holds, decompressed; the compression is told from its first bytes.

    Args:
        path: the file.
        most: bytes that it may hold.

    Raises:
        DataError: it cannot be read, is damaged, or holds more.
    """
    try:
        data = read_bytes(path, most=most + _OVERHEAD)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        return decompressed(data, most=most)
    except TooLarge:
        raise DataError(
            f"{path} holds more than the {most:,} bytes that were published ({len(data):,} bytes on disk). "
            "Delete it and fetch it again."
        ) from None
    except Damaged as error:
        raise DataError(
            f"{path} is damaged or cut short ({error}; {len(data):,} bytes). Fetch it again."
        ) from None


def verify(content: bytes, file: PublishedFile, path: Path) -> None:
    """Check that `content`, read from `path`, is what was published.

    Raises:
        DataError: it is not; names the file and both checksums.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != file.content_sha256:
        raise DataError(
            f"{path} is not the published {file.name}: sha256 of its content is {found}, "
            f"expected {file.content_sha256}. Delete it and fetch it again."
        )


def _first_existing(file: PublishedFile, places: list[Path]) -> Path | None:
    candidates = (place / name for place in places for name in file.spellings)
    return next((path for path in candidates if path.is_file()), None)
