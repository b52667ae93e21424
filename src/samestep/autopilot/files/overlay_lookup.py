"""Resolves paths for a rank other than 0: to a file in its overlay, or to the file from before the run.

The overlay is a folder that mirrors absolute paths. Beside files and folders that this rank has created or
copied, it holds three kinds of marks, which forked processes of the rank find there too:

- a link to `GONE`: this rank has removed the file from before the run;
- a link to `BASE` and a path: this rank has renamed a file that existed before the run;
- a link `MARK` in a folder: the base path of the folder, whose files it includes, or `GONE` for none. Without
  it, the base path is that of the parent folder plus the name.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.paths import CommonPaths, folder_of_descriptor, path_text

T = TypeVar("T")

GONE = "/dev/null/removed"
BASE = "/dev/null/base"
MARK = ".samestep-base"
_CHANGES = ".samestep-changes"
_LINKS = 40
"""The largest number of symbolic links in the resolution of one path, as in Linux."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder in the view of this rank.

    Attributes:
        path: its path, without symbolic links.
        own: the folder of the overlay that holds this rank's changes in it; None if there is none.
        base: its path before the run; None if it did not exist.
        place: the current place of the base folder.
    """

    path: str
    own: str | None
    base: str | None
    place: str | None


@dataclass(frozen=True, slots=True)
class Spot:
    """A name in a folder, and the file with this name if there is one.

    Attributes:
        folder: the folder.
        name: the name; empty for the root.
        where: the actual path of the file; None if there is no file.
        base: its path before the run; None for a file that this rank has created or changed.
        mode: type and permissions; 0 if there is no file.
    """

    folder: Folder
    name: str
    where: str | None = None
    base: str | None = None
    mode: int = 0

    @property
    def path(self) -> str:
        """The path, without symbolic links above the name."""
        return join(self.folder.path, self.name) if self.name else self.folder.path

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether this is a symbolic link."""
        return stat.S_ISLNK(self.mode)


class OverlayLookup:
    """Resolves paths.

    Args:
        root: the root folder of the overlay.
        journal: the journal of rank 0.
        hidden: a folder that is hidden from scripts: the common folder of the ranks.
    """

    def __init__(self, root: str, journal: Journal, hidden: str | None = None) -> None:
        self.root, self.journal, self.hidden = root, journal, hidden
        self._common = CommonPaths(root, *([hidden] if hidden else ()))
        self._changes = os.path.join(root, _CHANGES)
        self._folders: dict[str, tuple[Folder, int]] = {}
        self._known: tuple[int, int] = (-1, -1)
        self.current: str | None = None
        """The working folder, after this rank has changed it; None before."""
        self._descriptors: dict[int, tuple[int, str]] = {}

    def text(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return an absolute path; None for a descriptor, or for a file that all processes share."""
        text = path_text(path)
        if not text:
            return None
        if not text.startswith("/"):
            where = self.folder_of(dir_fd) if dir_fd is not None else self.current or os.getcwd()
            text = join(where, text)
        return None if self.is_common(text) else text

    def plain(self, path: Any, dir_fd: int | None) -> Any:
        """Return a path that does not depend on `dir_fd`."""
        text = path_text(path)
        return path if dir_fd is None or text is None else join(self.folder_of(dir_fd), text)

    def is_common(self, text: str) -> bool:
        """Return whether all processes share the file at an absolute path."""
        return text in self._common

    def share(self, path: str) -> None:
        """Exclude a path that only this rank uses, and the paths below it, from the overlay."""
        self._common.add(path)

    def opened(self, number: int, path: str) -> None:
        """Record the folder of a descriptor."""
        self._descriptors[number] = os.fstat(number).st_ino, path

    def folder_of(self, number: int) -> str:
        """Return the path of a descriptor's folder in the view of this rank."""
        inode, path = self._descriptors.get(number, (None, ""))
        if inode == os.fstat(number).st_ino:
            return path
        place = folder_of_descriptor(number)
        return place[len(self.root) :] or "/" if place.startswith(self.root) else place

    def state(self) -> tuple[int, int]:
        """Return a pair of numbers that changes with each change by rank 0, or of folders by this rank."""
        try:
            changes = os.stat(self._changes).st_size
        except OSError:
            changes = 0
        return self.journal.refresh(), changes

    def changed(self) -> None:
        """Invalidate the cached folders, here and in forked processes of this rank."""
        with open(self._changes, "ab") as file:
            file.write(b".")

    def spot(self, text: str, *, follow: bool = True) -> Spot:
        """Return the spot at an absolute path.

        Raises:
            OSError: a folder in the path does not exist, or is not a folder.
        """
        return self.unchanged(text, lambda: self._spot(text, follow=follow, links=0))

    def folder(self, text: str) -> Folder:
        """Return the folder at an absolute path.

        Raises:
            OSError: it does not exist, or is not a folder.
        """
        return self.unchanged(text, lambda: self._folder(text, 0)[0])

    def existed(self, text: str) -> bool:
        """Return whether there was a file at an absolute path before the run, whatever this rank has done."""
        head, name = os.path.split(text)
        return self.unchanged(text, lambda: self.beneath(self._folder(head, 0)[0], name)).where is not None

    def unchanged(self, text: str, find: Callable[[], T]) -> T:
        """Return the result of `find`, or raise its error for `text`; repeat it if rank 0 changes files.

        Otherwise a file that rank 0 creates after the journal is read, and before the file system is, would
        be taken for a file from before the run.
        """
        while True:
            state = self.state()
            if state != self._known:
                self._folders, self._known = {}, state
            try:
                found = find()
            except OSError as error:
                if self.state() == state:
                    error.filename = text  # the requested path, not the target of a link
                    raise
            else:
                if self.state() == state:
                    return found

    def entry(self, folder: Folder, name: str) -> Spot:
        """Return the spot of a name in a folder."""
        if name == MARK:
            return Spot(folder, name)
        if folder.own is not None:
            own = join(folder.own, name)
            mode = _mode(own)
            if stat.S_ISLNK(mode):
                target = os.readlink(own)
                if target == GONE:
                    return Spot(folder, name)
                if target.startswith(BASE):
                    return self._in_base(folder, name, target[len(BASE) :])
            if mode and own != self._changes:
                return Spot(folder, name, own, None, mode)
        return self.beneath(folder, name)

    def beneath(self, folder: Folder, name: str) -> Spot:
        """Return the spot of a name in a folder before the run, without the changes of this rank."""
        if folder.base is None:
            return Spot(folder, name)
        base = join(folder.base, name)
        places = self.journal.places
        place = places[base] if base in places else folder.place and join(folder.place, name)
        return self._in_base(folder, name, base, place)

    def _in_base(self, folder: Folder, name: str, base: str, place: str | None = "") -> Spot:
        if place == "":
            place = self.journal.place_of(base)
        if place is None or place == self.hidden:
            return Spot(folder, name)
        mode = _mode(place)
        return Spot(folder, name, place, base, mode) if mode else Spot(folder, name)

    def _spot(self, text: str, *, follow: bool, links: int) -> Spot:
        head, name = os.path.split(text.rstrip("/"))
        if name in ("", ".", ".."):
            folder, _ = self._folder(text, links)
            if folder.path == "/":
                return Spot(folder, "", folder.place, folder.base, stat.S_IFDIR)
            above, _ = self._folder(os.path.dirname(folder.path), 0)
            return self.entry(above, os.path.basename(folder.path))
        folder, used = self._folder(head, links)
        found = self.entry(folder, name)
        if follow and found.is_link and found.where is not None:
            target = join(folder.path, os.readlink(found.where))
            return self._spot(target, follow=True, links=_one_more(used, text))
        return found

    def _folder(self, text: str, links: int) -> tuple[Folder, int]:
        """Return a folder, and the number of symbolic links followed so far, with `links` earlier ones."""
        known = self._folders.get(text)
        if known is None:
            folder, used = self._find_folder(text, links)
            known = self._folders[text] = folder, used - links
        return known[0], links + known[1]

    def _find_folder(self, text: str, links: int) -> tuple[Folder, int]:
        head, name = os.path.split(text.rstrip("/"))
        if not name:
            return Folder("/", self.root, "/", "/"), links
        above, used = self._folder(head, links)
        if name == ".":
            return above, used
        if name == "..":
            return self._folder(os.path.dirname(above.path), used)
        found = self.entry(above, name)
        if found.where is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        if found.is_link:
            target = join(above.path, os.readlink(found.where))
            return self._folder(target, _one_more(used, text))
        if not found.is_folder:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), text)
        path = join(above.path, name)
        if found.base is not None:
            return Folder(path, None, found.base, found.where), used
        return Folder(path, found.where, *self._base_of_own(above, name, found.where)), used

    def _base_of_own(self, above: Folder, name: str, own: str) -> tuple[str | None, str | None]:
        mark = join(own, MARK)
        if _mode(mark):
            base = os.readlink(mark)
            if base == GONE:
                return None, None
            place = self.journal.place_of(base)
            return base, place
        found = self.beneath(above, name)
        return (found.base, found.where) if found.is_folder else (None, None)


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder, or the name if it is an absolute path."""
    if name.startswith("/"):
        return name
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


def _one_more(links: int, path: str) -> int:
    if links >= _LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return links + 1


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0
