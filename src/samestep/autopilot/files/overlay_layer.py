"""Holds the changes of this rank in the upper layer of its overlay."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from samestep.autopilot.files.folder_listings import ChangedFolders
from samestep.autopilot.files.overlay_lookup import BASE, GONE, MARK, Folder, OverlayLookup, Spot, join
from samestep.autopilot.files.paths import is_actual_folder

_DRAFT = ".samestep-draft"
"""Ends the name of a copy until it is complete."""


class Read(Protocol):
    """Reads a path, again if rank 0 has changed it meanwhile."""

    def __call__(self, path: Any, how: Callable[[Any], object], *, follow: bool) -> object:
        """Return the result of `how` for the actual path."""


class OverlayLayer:
    """The files that one rank has created, changed, renamed and removed.

    Args:
        lookup: resolves paths for this rank.
        announce: called with each base path whose original this rank does not read any more.
        read: reads a path.
    """

    def __init__(self, lookup: OverlayLookup, announce: Callable[[str], object], read: Read) -> None:
        self._lookup, self._announce, self._read = lookup, announce, read
        self.changed = ChangedFolders()
        self.made: list[str] = []
        """The paths that this rank has created or written, in this order."""

    def names(self, folder: Folder) -> list[str]:
        """Return the names in a folder: those from before the run in their order, then new ones, sorted."""
        before, gone, added = self._base_names(folder), set(), []
        if folder.own is not None:
            for name in os.listdir(folder.own):
                found = self._lookup.entry(folder, name)
                if found.where is None:
                    gone.add(name)
                else:
                    added.append(name)
        present = {*before}
        return [
            *(name for name in before if name not in gone),
            *sorted(name for name in added if name not in present),
        ]

    def _base_names(self, folder: Folder) -> list[str]:
        if folder.base is None:
            return []
        recorded = self._lookup.journal.entries.get(folder.base)
        if recorded is not None:
            return recorded
        if folder.place is None:
            return []
        places, hidden = self._lookup.journal.places, self._lookup.hidden
        return [
            name
            for name in os.listdir(folder.place)
            if places.get(join(folder.base, name), "") is not None and join(folder.place, name) != hidden
        ]

    def folder_at(self, spot: Spot) -> Folder:
        """Return the folder at a spot."""
        return self._lookup.folder(spot.path)

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
        draft = f"{own}{_DRAFT}"
        os.mkdir(draft)
        self._read(path, lambda where: shutil.copystat(where, draft), follow=False)
        os.rename(draft, own)

    def _own_place(self, spot: Spot) -> str:
        return join(self.own_folder(spot.folder.path), spot.name)

    @contextmanager
    def making(self, spot: Spot) -> Iterator[str]:
        """Yield the actual path at which to create a new file; restore the mark `GONE` if that fails."""
        if self._lookup.is_common(spot.path):
            yield spot.path
            return
        own = self._own_place(spot)
        was_removed = os.path.lexists(own)
        if was_removed:
            os.unlink(own)
        self.made.append(spot.path)
        try:
            yield own
        finally:
            if os.path.lexists(own):
                self.changed.add(spot.folder.path)
            elif was_removed:
                os.symlink(GONE, own)
            self._lookup.changed()

    def own_copy(self, spot: Spot, *, truncates: bool = False) -> str:
        """Return the path of this rank's copy of a file or folder; create the copy if it is missing."""
        assert spot.where is not None
        if self._lookup.is_common(spot.path):
            return spot.path
        if spot.is_folder:
            return self.own_folder(spot.path)
        self.made.append(spot.path)
        if spot.base is None or not (spot.is_link or stat.S_ISREG(spot.mode)):
            return spot.where
        own = self._own_place(spot)
        draft = f"{own}{_DRAFT}"
        self._copy(spot, draft, truncates=truncates)
        os.replace(draft, own)
        self._announce(spot.base)
        return own

    def _copy(self, spot: Spot, draft: str, *, truncates: bool) -> None:
        if truncates and not spot.is_link:
            with open(draft, "wb"):
                pass
            self._read(spot.path, lambda where: shutil.copystat(where, draft), follow=False)
            return

        def copy(where: str) -> None:
            if os.path.lexists(draft):
                os.unlink(draft)
            shutil.copy2(where, draft, follow_symlinks=False)

        self._read(spot.path, copy, follow=False)

    def drop(self, spot: Spot) -> None:
        """Remove a file, or a folder with its contents."""
        assert spot.where is not None
        base = spot.base
        if spot.is_folder:
            base = self.folder_at(spot).base
        own = self._own_place(spot)
        if is_actual_folder(own):
            shutil.rmtree(own)
        elif os.path.lexists(own):
            os.unlink(own)
        self._hide_base(spot, own)
        self.changed.add(spot.folder.path)
        if base is not None:
            self._announce(base)
        self._lookup.changed()

    def _hide_base(self, spot: Spot, own: str) -> None:
        if self._lookup.existed(spot.path):
            os.symlink(GONE, own)

    def move(self, old: Spot, new: Spot) -> None:
        """Rename the file or folder at one spot to another spot, which must be free."""
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
            os.symlink(folder.base or GONE, join(target, MARK))
        self._hide_base(old, source)
        self.changed.add(old.folder.path)
        self.changed.add(new.folder.path)
