"""Fetching published files: once per node, whole or not at all."""

import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from samestep.base.errors import DataError
from samestep.data.published import PublishedFile

_TIMEOUT_S = (3.05, 30.0)  # to connect to one address, and between two pieces of the answer
_LOCK_TIMEOUT_S = 1800.0
_log = logging.getLogger("samestep")


def fetch(file: PublishedFile, mirrors: Sequence[str], folder: Path) -> Path:
    """Return `file` in `folder`, downloading it if it is not there.

    May be called by any number of processes at once: the first downloads under a lock, the others wait
    and find it. The file appears under its name only when it is whole and has the published checksum.

    Args:
        file: what to fetch.
        mirrors: addresses of folders that hold it, tried in turn; each ends in a slash.
        folder: where to keep it.

    Raises:
        DataError: no mirror could be reached or had the right file, or `folder` cannot be written.
    """
    path = folder / (file.name + file.suffix)
    if path.exists():
        return path
    lock = FileLock(folder / f".{path.name}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, path)
    except OSError as error:
        raise DataError(
            f"cannot keep {path.name} in {folder}: {error.strerror}. Set XDG_CACHE_HOME to a folder that can "
            "be written, or pass --data-dir DIR."
        ) from None
    try:
        return _download(file, mirrors, path)  # finds what another process has fetched meanwhile
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
                f"waited {_LOCK_TIMEOUT_S / 60:.0f} min for another process to download {path}; "
                f"it still holds {lock.lock_file}. End it, or pass --data-dir DIR."
            ) from None


def _download(file: PublishedFile, mirrors: Sequence[str], path: Path) -> Path:
    failures = []
    for mirror in mirrors:
        failure = _retrieve(mirror + path.name, file, path)
        if failure is None:
            return path
        failures.append(f"{urlsplit(mirror).netloc}: {failure}")
    raise DataError(
        f"could not download {path.name} ({'; '.join(failures)}). Without network, bring the files here "
        "and pass --data-dir DIR, the folder that holds them."
    )


def _retrieve(address: str, file: PublishedFile, path: Path) -> str | None:
    """Download to `path`, through a temporary file beside it; return what went wrong, in a few words."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # its lines of progress would stand among the program's own
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
    """Return a few words; the text of a network error runs over several lines."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    if isinstance(error, ValueError):
        return "not the published file (its sha256 differs)"
    return error.strerror or type(error).__name__
