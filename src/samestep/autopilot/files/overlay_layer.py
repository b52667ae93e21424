"""Holds the changes of a script in the upper layer of its overlay."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from samestep.autopilot.files.overlay_lookup import BASE, MARK, WHITEOUT, Entry, Folder, OverlayLookup, join
from samestep.autopilot.files.paths import is_actual_folder

_DRAFT = ".samestep-draft"
"""Part of the name of a copy until it is complete."""


class OverlayLayer:
    """The files that the script has created, changed, renamed and removed."""

    def __init__(self, lookup: OverlayLookup) -> None:
        self._lookup = lookup
        self.made: list[str] = []  # the paths that this rank has created or written, in this order

    def names(self, folder: Folder) -> list[str]:
        """Return the names in a folder: those from before the run in their order, then new ones, sorted."""
        before = self._base_names(folder)
        own = [] if folder.own is None else [one for one in os.listdir(folder.own) if _DRAFT not in one]
        gone = {name for name in own if self._lookup.entry(folder, name).where is None}
        return [*(name for name in before if name not in gone), *sorted({*own} - gone - {*before})]

    def _base_names(self, folder: Folder) -> list[str]:
        return [] if folder.base is None else os.listdir(folder.base)

    def folder_at(self, entry: Entry) -> Folder:
        """Return the folder at a entry."""
        return self._lookup.folder(entry.path)

    def own_folder(self, path: str) -> str:
        """Return the folder of the overlay for this rank's changes in a folder; create a missing one."""
        folder = self._lookup.folder(path)
        if folder.own is not None:
            return folder.own
        own = join(self.own_folder(os.path.dirname(path)), os.path.basename(path))
        self._make_like(path, own)
        self._lookup.changed()
        return own

    def _make_like(self, path: str, own: str) -> None:
        """Create a folder with the attributes of the one at `path`."""
        with self._lookup.locked():  # a rename would replace the folder of another process while it is empty
            if is_actual_folder(own):
                return
            draft = _draft(own)
            os.mkdir(draft)
            self._lookup.read(path, lambda where: shutil.copystat(where, draft), follow=False)
            os.rename(draft, own)

    def _own_place(self, entry: Entry) -> str:
        return join(self.own_folder(entry.folder.path), entry.name)

    @contextmanager
    def making(self, entry: Entry) -> Iterator[str]:
        """Yield the actual path at which to create a new file; restore the mark `WHITEOUT` if that fails."""
        if self._lookup.is_common(entry.path):
            yield entry.path
            return
        own = self._own_place(entry)
        was_removed = os.path.islink(own)  # a mark; another process may have made the file meanwhile
        if was_removed:
            with suppress(FileNotFoundError):
                os.unlink(own)
        self.made.append(entry.path)
        try:
            yield own
        finally:
            if was_removed and not os.path.lexists(own):
                os.symlink(WHITEOUT, own)
            self._lookup.changed()

    def own_copy(self, entry: Entry, *, truncates: bool = False) -> str:
        """Return the path of this rank's copy of a file or folder; create the copy if it is missing."""
        assert entry.where is not None
        if self._lookup.is_common(entry.path):
            return entry.path
        if entry.is_folder:
            return self.own_folder(entry.path)
        self.made.append(entry.path)
        if entry.base is None or not (entry.is_link or stat.S_ISREG(entry.mode)):
            return entry.where
        own = self._own_place(entry)
        with self._lookup.locked():  # a second copy would replace what another thread or process has written
            found = self._lookup.entry_at(entry.path, follow=False)
            if found.base is None and found.where is not None:
                return found.where
            draft = _draft(own)
            self._copy(entry, draft, truncates=truncates)
            os.replace(draft, own)
        return own

    def _copy(self, entry: Entry, draft: str, *, truncates: bool) -> None:
        if truncates and not entry.is_link:
            with open(draft, "wb"):
                pass
            self._lookup.read(entry.path, lambda where: shutil.copystat(where, draft), follow=False)
            return

        def copy(where: str) -> None:
            if os.path.lexists(draft):
                os.unlink(draft)
            shutil.copy2(where, draft, follow_symlinks=False)

        self._lookup.read(entry.path, copy, follow=False)

    def drop(self, entry: Entry) -> None:
        """Remove a file, or a folder with its contents."""
        assert entry.where is not None
        own = self._own_place(entry)
        if is_actual_folder(own):
            shutil.rmtree(own)
        elif os.path.lexists(own):
            os.unlink(own)
        if self._lookup.existed(entry.path):
            os.symlink(WHITEOUT, own)
        self._lookup.changed()

    def move(self, old: Entry, new: Entry) -> None:
        """Rename the file or folder at one entry to another entry, which must be free."""
        source, target = self._own_place(old), self._own_place(new)
        self.made.append(new.path)
        folder = self.folder_at(old) if old.is_folder else None
        if os.path.lexists(target):  # a mark
            os.unlink(target)
        if os.path.lexists(source):
            os.rename(source, target)
        elif folder is not None:
            self._make_like(old.path, target)
        else:
            os.symlink(f"{BASE}{old.base}", target)
        if folder is not None and not os.path.lexists(join(target, MARK)):
            os.symlink(folder.base or WHITEOUT, join(target, MARK))
        if self._lookup.existed(old.path):
            os.symlink(WHITEOUT, source)


def _draft(own: str) -> str:
    return f"{own}{_DRAFT}-{os.getpid()}"
