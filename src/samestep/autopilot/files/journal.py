"""Records in a journal which of the files that existed before the run rank 0 has changed.

Rank 0 appends one JSON line before the first change of each file; the other ranks read them. There are two
kinds of paths:

- a *base path* is the path of a file before the run,
- a *live path* is the current path of a file.

Rank 0 needs the base path of a live path (`base_of`), the others the current place of a base path
(`place_of`). Both follow from the lines alone, so that forked processes of a rank get the same results.
Several threads of a process may access files, so one of them at a time reads the lines.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

from samestep.base.polling import holds_within

PATIENCE_S = 60.0
"""The longest time in seconds that a rank waits for another one."""
_RENAME_S = 5.0  # the longest time in seconds between the lines before and after a rename

_lock = threading.RLock()  # reentrant: the garbage collector may close a file while the journal is read
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Journal:
    """Reads and appends the lines of a file; without this file, nothing has changed."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        self.size = 0  # the number of bytes read so far
        self.places: dict[str, str | None] = {}
        """The current places of moved or copied base paths; None for a path that did not exist."""
        self._bases: dict[str, str | None] = {}
        """The base paths of live paths; None for a file that rank 0 has created or changed."""
        self.entries: dict[str, list[str]] = {}
        """The names in base folders that rank 0 has changed, in the order of the file system."""
        self.listings: dict[tuple[str, bool], list[list[str]]] = {}
        """The listings of rank 0, of folders that the run has changed: by live path, and whether the main
        thread has listed it. Those of other threads come in any order."""
        self._renames = 0  # that have begun and not ended; several threads may rename at the same time
        self._is_reading = False

    def append(self, do: str, **what: Any) -> None:
        """Append a line, and apply it."""
        line = json.dumps({"do": do, **what}) + "\n"
        number = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(number, line.encode())
        finally:
            os.close(number)
        self._read()

    def refresh(self) -> int:
        """Apply the new lines, wait for the end of a rename, and return the size of the journal."""
        self._read()
        if self._renames:
            holds_within(self._has_renamed, _RENAME_S, least_s=0.001)
            self._renames = 0
        return self.size

    def _has_renamed(self) -> bool:
        self._read()
        return not self._renames

    def base_of(self, live: str) -> str | None:
        """Return the base path of a live path; None for a file that rank 0 has created or changed."""
        return _nearest(self._bases, live)

    def place_of(self, base: str) -> str | None:
        """Return the current place of a base path; None if it did not exist before the run."""
        return _nearest(self.places, base)

    def _read(self) -> None:
        with _lock:
            if self._is_reading:  # by an access to a file within `_apply_new`
                return
            self._is_reading = True
            try:
                self._apply_new()
            finally:
                self._is_reading = False

    def _apply_new(self) -> None:
        try:
            if os.stat(self._file).st_size == self.size:
                return
            with open(self._file, "rb") as file:
                file.seek(self.size)
                text = file.read()
        except OSError:
            return
        complete = text[: text.rfind(b"\n") + 1]
        for line in complete.splitlines():
            self._apply(json.loads(line))
        self.size += len(complete)

    def _apply(self, line: dict[str, Any]) -> None:
        do = line["do"]
        if do == "made":
            self._bases[line["live"]] = None
            if line["base"] is not None:
                self.places[line["base"]] = None
        elif do == "kept":
            self._bases[line["live"]] = None
            self.places[line["base"]] = line["at"]
        elif do == "renaming":
            self._renames += 1
        elif do == "renamed":
            self._renames = max(0, self._renames - 1)
            if line["source"] is not None:
                self._rename(line["source"], line["target"])
        elif do == "entries":
            self.entries[line["base"]] = line["names"]
        elif do == "listed":
            listings = self.listings.setdefault((line["live"], line["main"]), [])
            listings.append(listings[-1] if line["names"] is None else line["names"])

    def _rename(self, source: str, target: str) -> None:
        moved = {source: self.base_of(source)}
        for live in [*self._bases]:
            if live == target or live.startswith(f"{target}/"):
                del self._bases[live]
            elif live.startswith(f"{source}/"):
                moved[live] = self._bases.pop(live)
        self._bases[source] = None
        for live, base in moved.items():
            new = target + live[len(source) :]
            self._bases[new] = base
            if base is not None:
                self.places[base] = new


def _nearest(table: dict[str, str | None], path: str) -> str | None:
    """Map a path by the table's entry for it or its nearest parent folder; return it unchanged if none."""
    head = path
    while table:
        if head in table:
            found = table[head]
            return None if found is None else found + path[len(head) :]
        end = head.rfind("/")
        if end < 0 or head == "/":
            break
        head = head[:end] or "/"
    return path
