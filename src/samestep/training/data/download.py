"""Downloads published files once per node, atomically."""

import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from samestep.base.errors import DataError
from samestep.training.data.published import PublishedFile

_TIMEOUT_S = (3.05, 30.0)  # to connect to one address, and between two pieces of the answer
_LOCK_TIMEOUT_S = 1800.0
_log = logging.getLogger("samestep")


def fetch(file: PublishedFile, mirrors: Sequence[str], folder: Path) -> Path:
    """Return the path of `file` in `folder`, after downloading it if it is missing.

    Any number of processes can call it at once: the first one downloads under a lock, and the others wait.
    The file has its name only when it is complete and has the published checksum.

    Args:
        file: the published file.
        mirrors: URLs of folders that contain it, tried in this order; each ends in a slash.
        folder: of the downloads.

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
            f"cannot write {path.name} to {folder}: {error.strerror}. Set XDG_CACHE_HOME to a writable "
            "folder, or give --data-dir DIR."
        ) from None
    try:
        return _download(file, mirrors, path)  # pooch checks again whether it exists
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
