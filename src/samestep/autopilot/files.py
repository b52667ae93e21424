"""Files that the copies of a script write: once, by rank 0; the other copies see their own all the same.

Every copy does what the script does: makes folders, writes checkpoints, reads them back. Rank 0 does it for
real. For the others, whatever would change a file system happens in a private shadow of it::

    writes, makes, renames, removes        in the shadow
    reads, asks, lists                     the shadow first, then what there was before the run

"Before the run" leaves out what rank 0 has made since: it may be ahead. So rank 0 notes each new path in a
journal before it makes it, and a path in the journal is not there for the others until they have made it.
"""

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from samestep.base import env

T = TypeVar("T")


class Journal:
    """The paths that rank 0 has made in this run: a file that it appends to, and the others read.

    Args:
        file: on a file system that rank 0 shares with the reader; where it does not, nothing is known.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0
        self._paths: set[str] = set()

    def note(self, path: str) -> None:
        """Append a path, before it is made."""
        with self._file.open("a") as journal:
            journal.write(f"{path}\n")

    def __contains__(self, path: str) -> bool:
        try:
            with self._file.open() as journal:
                journal.seek(self._read)
                text = journal.read()
        except OSError:
            return path in self._paths
        whole, newline, _ = text.rpartition("\n")
        self._read += len((whole + newline).encode())
        self._paths.update(whole.splitlines())
        return path in self._paths


class Shadow:
    """What one copy has changed, and where it lies instead.

    Args:
        root: a private folder.
        journal: of rank 0.
    """

    def __init__(self, root: Path, journal: Journal) -> None:
        self._root, self._journal = str(root), journal
        self._gone: set[str] = set()
        """Paths that this copy has removed, and not made again."""
        self.made: list[str] = []
        """What this copy has made or written, in that order."""
        self._passed: tuple[str, ...] = (*_PASSED, self._root, *_caches())
        """What is this copy's own already, or of all processes, and needs no shadow."""
        self._emptied: set[str] = set()
        """Folders that it has removed: what was in them before the run stays gone."""

    def place(self, path: Any, *, make: bool = False) -> Any:
        """Return where `path` is to be looked for; with `make`, where it is to be made."""
        if isinstance(path, int):
            return path
        real = absolute(path)
        if real is None or real.startswith(self._passed):
            return path
        shadow = self._root + real
        if make:
            self._gone.discard(real)
            self.made.append(real)
            self._make_parents(real)
            return shadow
        if there(shadow):
            return shadow
        return self._root + "/.nothing" if self._hidden(real) else path

    def pass_by(self, path: str) -> None:
        """Leave a path alone that only this copy knows of, with what will be below it."""
        self._passed = (*self._passed, path)

    def look(self, path: Any, how: Callable[[Any], T]) -> T:
        """Return what `how` gives for where `path` is; again, if rank 0 was just making something there."""
        where = self.place(path)
        found = how(where)
        if self.place(path) == where:
            return found
        if hasattr(found, "close"):
            found.close()
        return how(self.place(path))

    def sees(self, path: Any) -> bool:
        """Return whether there is something at `path` for this copy."""
        return self.look(path, there)

    def open_for(self, path: Any, *, truncates: bool, must_be: bool = False) -> Any:
        """Return where to open `path` for writing: a copy of what there is, unless that is overwritten."""
        is_there = self.sees(path)
        if must_be and not is_there:
            raise _not_found(path)
        before = self.place(path)
        shadow = self.place(path, make=True)
        if shadow is path or shadow == before:
            return shadow
        if is_there and not truncates and os.path.isfile(before):
            shutil.copyfile(before, shadow)
        return shadow

    def remove(self, path: Any, how: Callable[..., Any]) -> None:
        """Remove a file or an empty folder from what this copy sees."""
        real, where = absolute(path), self.place(path)
        if real is None or (where is path and real.startswith(self._passed)):
            how(path)
            return
        if not self.sees(path):
            raise _not_found(path)
        if _is_special(where):
            how(where)
            return
        if os.path.isdir(real):
            self._emptied.add(real)
        if where == self._root + real:
            how(where)
        self._gone.add(real)

    def rename(self, source: Any, target: Any) -> None:
        """Move what this copy sees at `source` to `target`."""
        if not self.sees(source):
            raise _not_found(source)
        before, real = self.place(source), absolute(source)
        after = self.place(target, make=True)
        if real is None or before == self._root + real or real.startswith(self._passed):
            os.rename(before, after)
        elif os.path.isdir(before):
            shutil.copytree(before, after, dirs_exist_ok=True)
        else:
            shutil.copyfile(before, after)
        if real is not None:
            self._gone.add(real)

    def make_folder(self, path: Any, mode: int) -> None:
        """Make a folder that this copy does not see yet."""
        if self.sees(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if not self.sees(os.path.dirname(os.path.abspath(path))):
            raise _not_found(path)
        where = self.place(path, make=True)
        if not there(where):
            os.mkdir(where, mode)

    def enter(self, path: Any, how: Callable[..., Any]) -> None:
        """Change into a folder; one that this copy has made is waited for until rank 0 has made it too."""
        deadline = time.monotonic() + PATIENCE_S
        if self.sees(path):
            while not there(path) and time.monotonic() < deadline:
                time.sleep(0.01)
        how(path)

    def names(self, path: Any) -> list[str]:
        """Return the names in a folder as this copy sees it."""
        real = absolute(path)
        if real is None or real.startswith(self._passed):
            return list(os.listdir(path))
        if not self.sees(path):
            raise _not_found(path)
        found = set(os.listdir(real)) if there(real) else set()
        found = {name for name in found if not self._hidden(os.path.join(real, name))}
        if there(self._root + real):
            found |= set(os.listdir(self._root + real))
        return sorted(found)

    def _hidden(self, real: str) -> bool:
        """Return whether a real path is not there for this copy, or what holds it is not."""
        if real in self._gone:
            return True
        while len(real) > 1:
            if real in self._journal and not there(self._root + real):
                return True
            real = os.path.dirname(real)
            if real in self._gone or real in self._emptied:
                return True
        return False

    def _make_parents(self, real: str) -> None:
        """Make the shadows of the folders that hold `real`, as far as this copy sees them."""
        parent = os.path.dirname(real)
        if self.sees(parent):
            os.makedirs(self._root + parent, exist_ok=True)


PATIENCE_S = 60.0
"""How long a copy waits for a folder that rank 0 is about to make."""
_PASSED = ("/dev/", "/proc/", "/sys/", f"{tempfile.gettempdir()}/pymp-")
"""What is no file, and belongs to every process; and where multiprocessing binds its sockets."""


def _caches() -> tuple[str, ...]:
    """Return where compilers keep what they have made for every process, and look for it with programs."""
    said = [env.snapshot().get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    usual = [f"{tempfile.gettempdir()}/torchinductor_", os.path.expanduser("~/.triton/")]
    return (*(os.path.abspath(one) for one in said if one), *usual)


def absolute(path: Any) -> str | None:
    """Return a path from the root on; None for what is no path."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    return os.path.normpath(os.path.join(os.getcwd(), text))


def _is_special(path: Any) -> bool:
    """Return whether this is a socket or a pipe, which belongs to one process and not to the script."""
    mode = os.lstat(path).st_mode
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _not_found(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def there(path: Any) -> bool:
    """Return whether there is something at `path`, if only a link to nowhere."""
    return os.path.lexists(path)
