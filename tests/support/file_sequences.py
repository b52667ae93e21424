"""Executes sequences of file operations in the files themselves, and in an overlay."""

import glob
import json
import os
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path

from samestep.autopilot.files import file_calls
from samestep.autopilot.files.overlay_files import Overlay


class Switch:
    """A handler of file calls that passes them to the active handler, if there is one."""

    active = None

    def accessed(self, original, access, args, kwargs):
        if self.active is None:
            return original(*args, **kwargs)
        return self.active.accessed(original, access, args, kwargs)

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)

        def call(original, *args, **kwargs):
            handled = getattr(self.active, method, None)
            return original(*args, **kwargs) if handled is None else handled(original, *args, **kwargs)

        return call

    @contextmanager
    def to(self, calls):
        """Pass the file calls of the block to another handler."""
        before, self.active = self.active, calls
        try:
            yield
        finally:
            self.active = before


class Program:
    """Executes a sequence of operations in a folder, and stores their results."""

    def __init__(self, switch, calls, root, operations):
        self._switch, self._calls, self._root = switch, calls, str(root)
        self._operations = operations
        self.results = []
        self._held = {}

    def run(self):
        """Execute all operations."""
        with self._switch.to(self._calls):
            for operation in self._operations:
                self.results.append(self._outcome(operation))
            for file in self._held.values():
                file.close()

    def _outcome(self, operation):
        name, *arguments = operation
        try:
            return self._plain(getattr(self, f"do_{name}")(*arguments))
        except AssertionError:
            raise
        except Exception as error:
            return (
                type(error).__name__,
                getattr(error, "errno", None),
                self._plain(getattr(error, "filename", 0)),
            )

    def _plain(self, value):
        if isinstance(value, str):
            return value.replace(self._root, "ROOT").replace(os.path.dirname(self._root), "ABOVE")
        if isinstance(value, (list, tuple)):
            return [self._plain(one) for one in value]
        return value

    def at(self, path):
        return f"{self._root}/{path}" if path else self._root

    def do_write(self, path, text):
        with open(self.at(path), "w") as file:
            file.write(text)

    def do_append(self, path, text):
        with open(self.at(path), "a") as file:
            return file.tell(), file.write(text), file.name

    def do_make_new(self, path, text):
        with open(self.at(path), "x") as file:
            file.write(text)

    def do_patch(self, path, text):
        with open(self.at(path), "r+") as file:
            seen = file.read(1)
            file.seek(0)
            file.write(text)
        return seen

    def do_read(self, path):
        return Path(self.at(path)).read_text()

    def do_count(self, path):
        with open(self.at(path)) as file:
            return len(list(file))

    def do_low(self, path, flags, text):
        number = os.open(self.at(path), flags)
        try:
            if flags & (os.O_WRONLY | os.O_RDWR):
                os.write(number, text.encode())
            return os.fstat(number).st_size
        finally:
            os.close(number)

    def do_raw(self, path, text):
        with file_calls.io.FileIO(self.at(path), "a") as file:
            return file.write(text.encode())

    def do_remove(self, path):
        os.remove(self.at(path))

    def do_rename(self, source, target):
        os.rename(self.at(source), self.at(target))

    def do_replace_by_new(self, path, text):
        draft = self.at(path) + ".tmp"
        Path(draft).write_text(text)
        os.replace(draft, self.at(path))

    def do_mkdir(self, path):
        os.mkdir(self.at(path))

    def do_makedirs(self, path):
        os.makedirs(self.at(path), exist_ok=True)

    def do_rmdir(self, path):
        os.rmdir(self.at(path))

    def do_rmtree(self, path):
        shutil.rmtree(self.at(path))

    def do_copy(self, source, target):
        shutil.copy(self.at(source), self.at(target))

    def do_copytree(self, source, target):
        one, other = os.path.realpath(self.at(source)), os.path.realpath(self.at(target))
        if not f"{other}/".startswith(
            f"{one}/"
        ):  # otherwise it copies until the path is too long, which depends on the root
            shutil.copytree(self.at(source), self.at(target), symlinks=True)

    def do_move(self, source, target):
        shutil.move(self.at(source), self.at(target))

    def do_symlink(self, target, path):
        os.symlink(target, self.at(path))

    def do_link(self, source, target):
        os.link(self.at(source), self.at(target))

    def do_readlink(self, path):
        return os.readlink(self.at(path))

    def do_truncate(self, path, size):
        os.truncate(self.at(path), size)

    def do_chmod(self, path, mode):
        if not os.path.isdir(self.at(path)):
            os.chmod(self.at(path), mode)

    def do_listdir(self, path):
        return os.listdir(self.at(path))

    def do_scandir(self, path):
        with os.scandir(self.at(path)) as entries:
            return [
                (one.name, one.is_dir(), one.is_file(), one.is_symlink(), os.fspath(one)) for one in entries
            ]

    def do_walk(self, path):
        return list(os.walk(self.at(path)))

    def do_glob(self, pattern):
        return glob.glob(self.at(pattern), recursive=True)

    def do_ask(self, path):
        place = self.at(path)
        kinds = [os.path.exists(place), os.path.lexists(place), os.path.isdir(place), os.path.isfile(place)]
        size = os.path.getsize(place) if kinds[3] else 0
        mode = oct(os.stat(place).st_mode) if kinds[3] else ""
        return [*kinds, os.path.islink(place), size, mode, os.access(place, os.R_OK), os.path.realpath(place)]

    def do_same(self, one, other):
        return os.path.samefile(self.at(one), self.at(other))

    def do_rewrite(self, path):
        try:
            content = json.loads(Path(self.at(path)).read_text())
        except json.JSONDecodeError:
            content = 64
        with open(self.at(path), "w") as file:
            json.dump(content / 2 if isinstance(content, (int, float)) else 1, file)

    def do_tar(self, path, member):
        with tarfile.open(self.at(path), "a") as archive:
            archive.addfile(tarfile.TarInfo(member))
            return archive.getnames()

    def do_hold(self, path):
        self.do_let_go(path)
        self._held[path] = open(self.at(path), "a")  # noqa: SIM115

    def do_feed(self, path, text):
        if path in self._held:
            self._held[path].write(text)
            self._held[path].flush()

    def do_let_go(self, path):
        if path in self._held:
            self._held.pop(path).close()


def lay_out(root, items):
    """Create the files that exist before the run, given as (path, kind, content)."""
    root.mkdir()
    for path, kind, content in items:
        place = root / path
        if place.is_symlink() or place.exists() or not place.parent.is_dir():
            continue
        if kind == "folder":
            place.mkdir()
        elif kind == "link":
            place.symlink_to(content)
        else:
            place.write_text(content)


def tree(root):
    """Return the kinds and contents of all paths below a folder."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            place = Path(folder, name)
            if place.is_symlink():
                content = "link", os.readlink(place)
            elif place.is_dir():
                content = ("folder",)
            elif not place.is_file():
                content = "special", oct(place.stat().st_mode)
            else:
                content = "file", place.read_bytes(), oct(place.stat().st_mode)
            found[str(place.relative_to(root))] = content
    return found


def run_in_overlay(switch, folder, items, operations):
    """Execute operations in the files themselves and in an overlay over them.

    Args:
        switch: the handler of all file calls.
        folder: an empty folder.
        items: the files that exist before the run; see `lay_out`.
        operations: the operations.

    Returns:
        The results of both, and the files below the overlay before and after its run.
    """
    for name in ("plain", "beneath"):
        (folder / name).mkdir()
        lay_out(folder / name / "root", items)
    (folder / "overlay").mkdir()
    before = tree(folder / "beneath")
    plain = Program(switch, None, folder / "plain/root", operations)
    covered = Program(switch, Overlay(folder / "overlay"), folder / "beneath/root", operations)
    plain.run()
    covered.run()
    return plain.results, covered.results, (before, tree(folder / "beneath"))


def without_order(results):
    """Return results with sorted lists."""
    if isinstance(results, list):
        return sorted((without_order(one) for one in results), key=repr)
    return results
