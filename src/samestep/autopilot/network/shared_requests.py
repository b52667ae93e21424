"""Sends each network request of a replicated script only on rank 0; the other ranks get the response.

Responses are files in a folder that the ranks share. All ranks make the same requests in the same order, so
the n-th request to an address is the same on all ranks. No rank waits in a collective, and threads of a
script may make requests concurrently. A rank that does not share the folder, as on another node, sends its
own requests.
"""

import hashlib
import os
import pickle
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

from samestep.autopilot.files.file_calls import unredirected
from samestep.autopilot.script.shared_folder import CommonFolder

Request: TypeAlias = Callable[[IO[bytes]], Any]
"""Sends a request, writes the body of the response, and returns the rest of it, which can be pickled."""
PATIENCE_S = 60.0
"""Seconds that a rank waits for rank 0 to begin the same request."""


class SharedResponses:
    """The responses that the ranks of a script share.

    Args:
        folder: the shared folder.
        rank: of this process.
    """

    def __init__(self, folder: CommonFolder, rank: int) -> None:
        self._folder, self._rank, self._sharing = folder.path, rank, folder.sharing
        self._process, self._thread = os.getpid(), threading.local()
        self._requested: Counter[str] = Counter()
        self._kept: list[Path] = []

    @property
    def applies(self) -> bool:
        """Whether a request now is shared: not in a loader's worker, nor within another request."""
        is_script = os.getpid() == self._process and not getattr(self._thread, "is_requesting", False)
        return is_script and self._rank in self._sharing

    def get(self, key: str, request: Request) -> tuple[Any, IO[bytes]]:
        """Return a response and its body, open for reading; raise the error of the request.

        Args:
            key: the address and the other properties of the request.
            request: sends it.
        """
        number = self._requested[key] = self._requested[key] + 1
        name = hashlib.sha256(f"{number} {key}".encode()).hexdigest()[:32]
        self._thread.is_requesting = True
        try:
            with unredirected():
                place = self._folder / name
                if self._rank == 0:
                    self._drop_read_by_all()
                    self._make(place, request)
                elif not self._await(place):
                    body = tempfile.TemporaryFile()  # noqa: SIM115 - the reader closes it
                    response = request(body)
                    body.seek(0)
                    return response, body
                return self._read(place)
        finally:
            self._thread.is_requesting = False

    def _make(self, place: Path, request: Request) -> None:
        place.with_suffix(".begun").touch()
        response, error = None, None
        with place.open("wb") as body:
            try:
                response = request(body)
            except Exception as found:  # noqa: BLE001 - raised again on every rank
                error = _picklable(found)
        part = place.with_suffix(".part")
        part.write_bytes(pickle.dumps((response, error)))
        part.rename(place.with_suffix(".done"))
        self._kept.append(place)

    def _await(self, place: Path) -> bool:
        """Wait until rank 0 has a response; return False if it does not make the request."""
        deadline = time.monotonic() + PATIENCE_S
        while not place.with_suffix(".done").exists():
            if time.monotonic() > deadline and not place.with_suffix(".begun").exists():
                return False
            time.sleep(0.01)
        return True

    def _read(self, place: Path) -> tuple[Any, IO[bytes]]:
        response, error = pickle.loads(place.with_suffix(".done").read_bytes())  # noqa: S301 - written by rank 0
        body = place.open("rb")
        place.with_suffix(f".{self._rank}").touch()
        if error is not None:
            body.close()
            raise error
        return response, body

    def _drop_read_by_all(self) -> None:
        for place in self._kept[:]:
            if all(place.with_suffix(f".{rank}").exists() for rank in self._sharing):
                place.unlink()
                self._kept.remove(place)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - its class may raise any error
        return OSError(f"{type(error).__name__}: {error}")
    return error
