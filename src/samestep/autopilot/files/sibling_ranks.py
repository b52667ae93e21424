"""Lets rank 0 check the other ranks on its node before it changes a file in place.

Each rank registers its process in the common folder. There it also announces the files that existed before
the run and that it has changed in its overlay: it does not read their originals any more.
"""

import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from samestep.base.polling import holds_within

CLOSED_WITHIN_S = 5.0
"""Seconds that rank 0 waits for the other ranks to close a file."""
ANNOUNCED_WITHIN_S = 5.0
"""Seconds that rank 0 waits for the other ranks to change a large file too, which avoids a copy of it."""


class SiblingRanks:
    """The ranks that share a folder with this one."""

    def __init__(self, folder: Path, rank: int, sharing: Collection[int]) -> None:
        self._folder, self._rank = folder, rank
        self._others = [other for other in sharing if other != rank]
        self._announced: dict[int, tuple[int, set[str]]] = {}

    def register(self) -> None:
        """Store the number of this process and its host for rank 0."""
        (self._folder / f"process.{self._rank}").write_text(f"{os.getpid()} {socket.gethostname()}")

    def announce(self, base: str) -> None:
        """Record that this rank does not read the originals of a path and of the paths below it any more."""
        with open(self._folder / f"changed.{self._rank}", "ab") as file:
            file.write(os.fsencode(base) + b"\0")

    def all_change(self, base: str) -> bool:
        """Wait, with a timeout, until all other ranks have announced a path; return whether they have."""
        return holds_within(
            lambda: all(self._has_announced(rank, base) for rank in self._others), ANNOUNCED_WITHIN_S
        )

    def await_closed(self, status: os.stat_result) -> None:
        """Wait, with a timeout, until no other rank on this node has a file open."""
        processes = list(self._processes())
        holds_within(
            lambda: not any(_has_open(process, status) for process in _with_children(processes)),
            CLOSED_WITHIN_S,
        )

    def _has_announced(self, rank: int, base: str) -> bool:
        size, paths = self._announced.setdefault(rank, (0, set()))
        try:
            with open(self._folder / f"changed.{rank}", "rb") as file:
                file.seek(size)
                text = file.read()
        except OSError:
            return False
        complete = text[: text.rfind(b"\0") + 1]
        paths.update(os.fsdecode(one) for one in complete.split(b"\0") if one)
        self._announced[rank] = size + len(complete), paths
        return base in paths or any(base.startswith(f"{path}/") for path in paths)

    def _processes(self) -> Iterator[int]:
        for rank in self._others:
            try:
                number, _, host = (self._folder / f"process.{rank}").read_text().partition(" ")
            except OSError:  # it has not started
                continue
            if host == socket.gethostname() and int(number) != os.getpid():
                yield int(number)


def _with_children(processes: Collection[int]) -> Iterator[int]:
    """Yield processes and all their child processes, such as the workers of a loader."""
    waiting = [*processes]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    waiting += map(int, file.read().split())
        except OSError:  # it has ended
            continue


def _has_open(process: int, status: os.stat_result) -> bool:
    """Return whether a process has a file open, or mapped into its memory."""
    try:
        with os.scandir(f"/proc/{process}/fd") as descriptors:
            for entry in descriptors:
                try:
                    found = os.stat(entry.path)
                except OSError:  # closed meanwhile
                    continue
                if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
                    return True
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        with open(f"/proc/{process}/maps", errors="replace") as file:
            return any(f" {device} {status.st_ino} " in line for line in file)
    except OSError:  # it has ended, or is another user's
        return False
