"""What a script asks of the network, asked once: rank 0 asks, and the other copies get what it got.

Answers go through files in a folder that the copies share. Copies ask the same questions in the same order,
so the n-th asking of one address is the same question for all; no copy waits in a collective, and threads of
a script may fetch side by side. Where the folder is out of sight, as on another node, a copy asks itself.
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

from samestep.autopilot.common import CommonFolder
from samestep.autopilot.file_calls import unredirected

Ask: TypeAlias = Callable[[IO[bytes]], Any]
"""Asks, writes the body of the answer, and returns the rest of it, which pickles."""
PATIENCE_S = 60.0
"""How long a copy waits for rank 0 to ask what it asks itself."""


class Fetched:
    """The answers that the copies of a script share.

    Args:
        folder: theirs.
        rank: of this copy.
    """

    def __init__(self, folder: CommonFolder, rank: int) -> None:
        self._folder, self._rank, self._sharing = folder.path, rank, folder.sharing
        self._process, self._thread = os.getpid(), threading.local()
        self._asked: Counter[str] = Counter()
        self._kept: list[Path] = []

    @property
    def applies(self) -> bool:
        """Whether what is asked now is asked for all: not in a loader's worker, nor within an asking."""
        is_script = os.getpid() == self._process and not getattr(self._thread, "asking", False)
        return is_script and self._rank in self._sharing

    def once(self, question: str, ask: Ask) -> tuple[Any, IO[bytes]]:
        """Return an answer and its body, open for reading; raises what asking raised."""
        number = self._asked[question] = self._asked[question] + 1
        name = hashlib.sha256(f"{number} {question}".encode()).hexdigest()[:32]
        self._thread.asking = True
        try:
            with unredirected():
                place = self._folder / name
                if self._rank == 0:
                    self._drop_what_all_have()
                    self._make(place, ask)
                elif not self._await(place):
                    body = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who reads it
                    answer = ask(body)
                    body.seek(0)
                    return answer, body
                return self._read(place)
        finally:
            self._thread.asking = False

    def _make(self, place: Path, ask: Ask) -> None:
        place.with_suffix(".begun").touch()
        answer, error = None, None
        with place.open("wb") as body:
            try:
                answer = ask(body)
            except Exception as found:  # noqa: BLE001 - raised again, by every copy
                error = _that_pickles(found)
        part = place.with_suffix(".part")
        part.write_bytes(pickle.dumps((answer, error)))
        part.rename(place.with_suffix(".done"))
        self._kept.append(place)

    def _await(self, place: Path) -> bool:
        """Wait until rank 0 has an answer; return False if it does not ask."""
        deadline = time.monotonic() + PATIENCE_S
        while not place.with_suffix(".done").exists():
            if time.monotonic() > deadline and not place.with_suffix(".begun").exists():
                return False
            time.sleep(0.01)
        return True

    def _read(self, place: Path) -> tuple[Any, IO[bytes]]:
        answer, error = pickle.loads(place.with_suffix(".done").read_bytes())  # noqa: S301 - rank 0's own
        body = place.open("rb")
        place.with_suffix(f".{self._rank}").touch()
        if error is not None:
            body.close()
            raise error
        return answer, body

    def _drop_what_all_have(self) -> None:
        for place in self._kept[:]:
            if all(place.with_suffix(f".{rank}").exists() for rank in self._sharing):
                place.unlink()
                self._kept.remove(place)


def _that_pickles(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - whatever its class does
        return OSError(f"{type(error).__name__}: {error}")
    return error
