"""Locates, downloads, reads and verifies the files of published data sets."""

import gzip
import hashlib
import io
import logging
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from samestep.base.errors import DataError
from samestep.base.regular_files import read_bytes

_SUFFIXES = ("", ".gz", ".xz")
_OVERHEAD = 1 << 20  # bytes by which a compressed file can exceed its decompressed size


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """Name and checksums of one file of a data set."""

    name: str  # name as published, without the suffix of its compression
    suffix: str  # suffix of the published compression: ".gz", ".xz" or ""
    sha256: str  # checksum of the file as published, which a download must have
    content_sha256: str  # checksum of the decompressed content, which every copy must have
    content_bytes: int  # size of the decompressed content, which is the maximum for every copy

    @property
    def spellings(self) -> list[str]:
        """Possible names of a copy: plain or compressed, ``-idx3-`` or (as some tools write) ``.idx3-``."""
        stems = dict.fromkeys((self.name, self.name.replace("-idx", ".idx")))
        return [stem + suffix for stem in stems for suffix in _SUFFIXES]


def locate(files: Sequence[PublishedFile], data_dir: Path, folders: Iterable[str]) -> list[Path]:
    """Return the paths of copies of `files` in the first of `folders`, relative to `data_dir`, that has them.

    Raises:
        DataError: the folder or some files are missing; names the files and the searched folders.
    """
    places = folders_of(data_dir, folders)
    paths = {file.name: first_existing(places, file.spellings) for file in files}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise DataError(
            f"no {' and no '.join(missing)} (plain, .gz or .xz) in {', '.join(map(str, places))}. "
            "Give their folder with --data-dir, or omit it to download them."
        )
    return [path for path in paths.values() if path is not None]


def read(path: Path, *, most: int) -> bytes:
    """Return the decompressed content of a file; its first bytes determine the compression.

    Some kilobytes can expand to gigabytes, so not more than `most` bytes are decompressed.

    Raises:
        DataError: it cannot be read, is damaged, or has more bytes.
    """
    try:
        data = read_bytes(path, most=most + _OVERHEAD)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    decode = next((decode for magic, decode in _DECODERS.items() if data.startswith(magic)), None)
    try:
        content = data if decode is None else decode(data, most + 1)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, MemoryError) as error:
        raise DataError(
            f"{path} is damaged or truncated ({error}; {len(data):,} bytes). Download it again."
        ) from None
    if len(content) > most:
        raise DataError(
            f"{path} contains more than the {most:,} published bytes ({len(data):,} bytes on disk). Delete "
            "it and download it again."
        )
    return content


def verify(content: bytes, path: Path, *, name: str, sha256: str) -> None:
    """Compare the checksum of `content`, read from `path`, with the published one.

    Raises:
        DataError: they differ; names the file and both checksums.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise DataError(
            f"{path} is not the published {name}: sha256 of its content is {digest}, "
            f"expected {sha256}. Delete it and download it again."
        )


def folders_of(data_dir: Path, folders: Iterable[str]) -> list[Path]:
    """Return the paths of `folders` in `data_dir`.

    Raises:
        DataError: `data_dir` is not a folder.
    """
    if not data_dir.is_dir():
        raise DataError(f"--data-dir {data_dir} is not a folder. Give the folder of the data set.")
    return [data_dir / folder for folder in folders]


def first_existing(places: Sequence[Path], names: Sequence[str]) -> Path | None:
    """Return the path of the first file in `places` with one of `names`; None without any."""
    return next((place / name for place in places for name in names if (place / name).is_file()), None)


_XZ_MEMORY = 256 << 20
"""Memory limit of the xz decoder in bytes; ``xz -9`` needs 65 MiB, and a file can request 4 GiB."""


def _gzip(data: bytes, most: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(most)


def _xz(data: bytes, most: int) -> bytes:
    """Return at most `most` bytes of one or more concatenated streams."""
    content = b""
    while data and len(content) < most:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        content += decoder.decompress(data, most - len(content))
        if len(content) < most and not decoder.eof:
            raise EOFError("it ends before the end of its stream")
        data = decoder.unused_data
    return content


_DECODERS: dict[bytes, Callable[[bytes, int], bytes]] = {b"\x1f\x8b": _gzip, b"\xfd7zXZ\x00": _xz}


_TIMEOUT_S = (3.05, 30.0)  # to connect to one address, and between two pieces of the answer
_LOCK_TIMEOUT_S = 1800.0  # for the largest archive over a slow line
_log = logging.getLogger("samestep")


def fetch(file: PublishedFile, mirrors: Sequence[str], folder: Path) -> Path:
    """Return the path of `file` in `folder`, after downloading it if it is missing.

    Any number of processes can call it at once: the first one downloads under a lock, and the others wait.
    The file has its name only when it is complete and has the published checksum. `mirrors` are URLs of
    folders that contain it, each with a final slash, in order of preference.

    Raises:
        DataError: no mirror could be reached or had the right file, or `folder` cannot be written.
    """
    path = folder / (file.name + file.suffix)
    if path.exists():
        return path
    with download_lock(folder, path.name):
        return _download(file, mirrors, path)  # pooch checks again whether it exists


@contextmanager
def download_lock(folder: Path, name: str) -> Iterator[None]:
    """Let one process of any number at a time download `name` into `folder`, which is made.

    Raises:
        DataError: `folder` cannot be written, or another process has held the lock for too long.
    """
    lock = FileLock(folder / f".{name}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, folder / name)
    except OSError as error:
        raise DataError(
            f"cannot write {name} to {folder}: {error.strerror}. Set XDG_CACHE_HOME to a writable "
            "folder, or give --data-dir DIR."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, path: Path) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.warning("waiting for another process to download %s (lock: %s)", path, lock.lock_file)
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            raise DataError(
                f"another process has been downloading {path} for {_LOCK_TIMEOUT_S / 60:.0f} min and holds "
                f"{lock.lock_file}. End it, or give --data-dir DIR."
            ) from None


def _download(file: PublishedFile, mirrors: Sequence[str], path: Path) -> Path:
    failures = []
    for mirror in mirrors:
        failure = _retrieve(mirror + path.name, file, path)
        if failure is None:
            return path
        failures.append(f"{urlsplit(mirror).netloc}: {failure}")
    raise DataError(
        f"cannot download {path.name} ({'; '.join(failures)}). Without network, copy the files here and give "
        "their folder with --data-dir DIR."
    )


def _retrieve(address: str, file: PublishedFile, path: Path) -> str | None:
    """Download to `path`, through a temporary file next to it; return the reason if that fails."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # no progress lines in the program's output
    try:
        pooch.retrieve(
            address,
            known_hash=f"sha256:{file.sha256}",
            fname=path.name,
            path=path.parent,
            downloader=pooch.HTTPDownloader(timeout=_TIMEOUT_S),
        )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash is a ValueError
        return _reason(error)
    return None


def _reason(error: OSError | ValueError) -> str:
    """Return a short reason, because the text of a network error has several lines."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    if isinstance(error, ValueError):
        return "not the published file (its sha256 differs)"
    return error.strerror or type(error).__name__
