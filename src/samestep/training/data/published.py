"""Locates, reads and verifies the files of published data sets."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import DataError
from samestep.base.regular_files import read_bytes
from samestep.training.data.decompress import Damaged, TooLarge, decompressed

_SUFFIXES = ("", ".gz", ".xz")
_OVERHEAD = 1 << 20
"""Bytes by which a compressed file can exceed its decompressed size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """Name and checksums of one file of a data set."""

    name: str
    """Name as published, without the suffix of its compression."""
    suffix: str
    """Suffix of the published compression: ".gz", ".xz" or ""."""
    sha256: str
    """Checksum of the file as published, which a download must have."""
    content_sha256: str
    """Checksum of the decompressed content, which every copy must have."""
    content_bytes: int
    """Size of the decompressed content, which is the maximum for every copy."""

    @property
    def spellings(self) -> list[str]:
        """Possible names of a copy: plain or compressed, ``-idx3-`` or (as some tools write) ``.idx3-``."""
        stems = dict.fromkeys((self.name, self.name.replace("-idx", ".idx")))
        return [stem + suffix for stem in stems for suffix in _SUFFIXES]


def locate(files: Sequence[PublishedFile], data_dir: Path, folders: Iterable[str]) -> list[Path]:
    """Return the paths of copies of `files` under `data_dir`.

    Args:
        files: the published files.
        data_dir: the value of ``--data-dir``.
        folders: searched folders, relative to `data_dir`, in order of preference.

    Raises:
        DataError: the folder or some files are missing; names the files and the searched folders.
    """
    if not data_dir.is_dir():
        raise DataError(f"--data-dir {data_dir} is not a folder. Give the folder of the data set.")
    places = [data_dir / folder for folder in folders]
    found = {file.name: _first_existing(file, places) for file in files}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"no {' and no '.join(missing)} (plain, .gz or .xz) in {', '.join(map(str, places))}. "
            "Give their folder with --data-dir, or omit it to download them."
        )
    return [path for path in found.values() if path is not None]


def read(path: Path, *, most: int) -> bytes:
    """Return the decompressed content of a file; its first bytes determine the compression.

    Args:
        path: the file.
        most: maximum decompressed bytes.

    Raises:
        DataError: it cannot be read, is damaged, or has more bytes.
    """
    try:
        data = read_bytes(path, most=most + _OVERHEAD)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        return decompressed(data, most=most)
    except TooLarge:
        raise DataError(
            f"{path} contains more than the {most:,} published bytes ({len(data):,} bytes on disk). Delete "
            "it and download it again."
        ) from None
    except Damaged as error:
        raise DataError(
            f"{path} is damaged or truncated ({error}; {len(data):,} bytes). Download it again."
        ) from None


def verify(content: bytes, file: PublishedFile, path: Path) -> None:
    """Compare the checksum of `content`, read from `path`, with the published one.

    Raises:
        DataError: they differ; names the file and both checksums.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != file.content_sha256:
        raise DataError(
            f"{path} is not the published {file.name}: sha256 of its content is {found}, "
            f"expected {file.content_sha256}. Delete it and download it again."
        )


def _first_existing(file: PublishedFile, places: list[Path]) -> Path | None:
    candidates = (place / name for place in places for name in file.spellings)
    return next((path for path in candidates if path.is_file()), None)
