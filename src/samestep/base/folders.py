"""Gives the package's folder and the user's cache, checks folders to write to, and makes temporary ones.

A temporary folder is named ``samestep-PID-RANDOM`` (with a dot before it outside of the temporary directory)
and holds a record of each process that uses it. The launcher, or the next command, removes the folder of a
killed process. Only folders of this user with such a name and such a record are removed; links are not
followed.

torch's shared memory of killed processes is freed, too. torch names it after the id that the process has in
its own container. Containers have pid namespaces of their own, and can share memory with each other and with
the host: several processes of a host can have one id.
"""

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.base.documents import read_as
from samestep.base.errors import Error, UsageError
from samestep.base.machine.kernel_files import name_space
from samestep.base.process_identity import Life, Owner, has_ended
from samestep.base.regular_files import open_regular

PACKAGE = str(Path(__file__).parents[1])
"""The folder of the package, without a separator at its end: its frames in a stack begin with it."""


def user_cache() -> Path:
    """Return the user's cache folder, which ``XDG_CACHE_HOME`` can move."""
    import pooch

    return Path(pooch.os_cache("samestep"))


def absolute(path: str) -> Path:
    """Return a path that a command was given, relative to the folder of the command, as an absolute one.

    Programs call this where they read a path, because they may use it in another folder, or pass it to a
    command that runs in one.
    """
    return Path(path).absolute()


def shown(file: str) -> str:
    """Return the path of a file as messages show it: relative to the working folder, if it is below it."""
    with suppress(OSError):  # the folder is gone
        return file.removeprefix(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118 - each status needs it
    return file


def claim_folder(path: Path) -> Path:
    """Make and return a folder that does not exist yet: `path`, or that with ``-2``, ``-3``, ... at its end.

    Commands that begin in the same second choose the same name by the time. A folder that cannot be made is
    returned as it is, because what writes to it reports that.
    """
    count, free = 1, path
    try:
        while not _makes(free):
            count += 1
            free = path.with_name(f"{path.name}-{count}")
    except OSError:
        return path
    return free


def _makes(folder: Path) -> bool:
    """Make a folder, and return whether it did not exist."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
        return True
    return False


def refuse_unwritable_file(flag: str, file: Path | None) -> None:
    """Refuse a file that cannot be written, before time is spent on its content.

    `flag` is the option that has it; nothing is created. The file is None if the option was not given.

    Raises:
        UsageError: it is a folder, or its folder does not exist or is not writable.
    """
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"{flag} {file} is a folder; give a file in it.")
    if not file.parent.is_dir():
        raise UsageError(f"{flag} {file} cannot be written, because there is no folder {file.parent}.")
    refuse_unwritable(flag, file.parent)


def refuse_unwritable(flag: str, folder: Path | None) -> None:
    """Refuse a folder that cannot be created or written to, before time is spent on its content.

    `flag` is the option that has it; nothing is created. The folder is None if the option was not given.

    Raises:
        UsageError: the folder, or the first of its parents that exists, is a file or not writable.
    """
    if folder is None:
        return
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "not writable" if parent.is_dir() else "a file"
        raise UsageError(f"{flag} {folder} cannot be used, because {parent} is {why}; give another folder.")


_NAME = re.compile(r"\.?samestep-([0-9]+)-[0-9a-f]{8}")
_RECORD = ".samestep-owner."
_VERSION = "samestep temporary folder 1"
_LONGEST_RECORD = 4096
DESCENDANTS = ".samestep-descendants"
"""The file in a launcher's folder that names the processes below its workers, one number in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A folder that no living process of this host uses."""

    path: Path  # the folder
    life: Life  # ``dead``, or ``unknown`` where an owner belongs to another host or container


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder that belongs to this process, and return it.

    Its parent folder is by default the temporary directory.

    Raises:
        UsageError: there is no temporary directory.
        Error: no folder can be made.
    """
    where = temporary_directory() if parent is None else parent
    dot = "" if parent is None else "."
    path = where / f"{dot}samestep-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        path.mkdir(mode=0o700)
        use_folder(path)
    except OSError as error:
        with suppress(OSError):
            remove_folder(path)
        raise Error(
            f"cannot make a temporary folder in {where}: {error.strerror}. Free space there, or set "
            "TMPDIR to another folder."
        ) from error
    return path


def temporary_directory() -> Path:
    """Return the temporary directory.

    Raises:
        UsageError: no folder that can be one is writable.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UsageError(
            f"{error.strerror}. Set TMPDIR to a folder that is writable and has space."
        ) from None


def use_folder(path: Path) -> None:
    """Record that this process uses a folder that another process has made."""
    text = json.dumps({"is": _VERSION, **asdict(Owner.here())})
    file = os.open(path / f"{_RECORD}{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(text)


@contextmanager
def owned_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for the duration of a block; see `make_folder`.

    A process that is forked within the block and leaves it removes nothing: the folder is its parent's.
    """
    path, process = make_folder(parent), os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == process:
            remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove a folder that `make_folder` made, its records last; what cannot be removed stays."""
    if _NAME.fullmatch(path.name) is None:
        return
    for folder, _, _ in os.walk(path):  # follows no links
        with suppress(OSError):
            os.chmod(folder, 0o700)  # noqa: PTH101 - scripts make read-only folders
    for entry in _entries(path):
        if not entry.name.startswith(_RECORD):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    Path(entry.path).unlink()
    shutil.rmtree(path, ignore_errors=True)


def places() -> list[Path]:
    """Return the folders in which this user's commands make such folders."""
    folders = []
    with suppress(Error):
        folders.append(temporary_directory())
    with suppress(OSError):  # the working folder can be deleted
        folders.append(Path.cwd())
    return list(dict.fromkeys(folders))


def orphans(parents: list[Path] | None = None) -> list[Orphan]:
    """Return the folders that no living process of this host uses."""
    unused = []
    for parent in places() if parents is None else parents:
        for entry in _entries(parent):
            match = _NAME.fullmatch(entry.name)
            if match is None or not _is_own_folder(entry):
                continue
            life = _life(Path(entry.path), int(match[1]))
            if life != "alive":
                unused.append(Orphan(path=Path(entry.path), life=life))
    return unused


def remove_dead(parents: list[Path] | None = None) -> list[Path]:
    """Remove the folders whose owners are dead, and return them."""
    dead = [orphan.path for orphan in orphans(parents) if orphan.life == "dead"]
    for path in dead:
        _free_memory_of(path)
        remove_folder(path)
    return dead


def _free_memory_of(folder: Path) -> None:
    """Free the shared memory of processes below the workers of a launcher that was killed."""
    with suppress(OSError, ValueError):
        with open_regular(folder / DESCENDANTS, follow=False) as stream:
            pids = {int(line) for line in stream.read().splitlines()}
        since_s = min(entry.stat().st_mtime for entry in _entries(folder) if entry.name.startswith(_RECORD))
        free_segments(set(filter(has_ended, pids)), since_s=since_s)


def _life(folder: Path, maker: int) -> Life:
    """Return whether any process that uses a folder lives; an unreadable record is ``unknown``."""
    try:
        records = [entry for entry in os.scandir(folder) if entry.name.startswith(_RECORD)]
        lives = {_owner(Path(entry.path)).life() for entry in records}
    except (OSError, ValueError):
        return "unknown"
    if not records:
        return _life_of_empty(folder, maker)
    return "alive" if "alive" in lives else "unknown" if "unknown" in lives else "dead"


def _life_of_empty(folder: Path, maker: int) -> Life:
    """Return the same for a folder without records, whose maker can have died before it wrote one."""
    with suppress(OSError):
        if not any(folder.iterdir()) and not Path(f"/proc/{maker}").exists():
            return "dead"
    return "unknown"


def _owner(path: Path) -> Owner:
    """Return the process that a record names.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no record of this user.
    """
    with open_regular(path, follow=False) as stream:
        if os.fstat(stream.fileno()).st_uid != os.getuid():
            raise ValueError("no record of this user")
        record = json.loads(stream.read(_LONGEST_RECORD))
    if not isinstance(record, dict) or record.pop("is", None) != _VERSION:
        raise ValueError("no record of a temporary folder")
    owner: Owner = read_as(Owner, record, "process")
    return owner


def _is_own_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        is_folder = entry.is_dir(follow_symlinks=False)
        return is_folder and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's own


def free_segments(pids: Set[int], *, since_s: float) -> None:
    """Remove torch's segments of dead processes.

    Args:
        pids: their process ids, which earlier processes or those of other containers can share.
        since_s: earliest start of these processes, in seconds since the epoch; older segments are kept.
    """
    if not pids or memory_is_numbered_apart():
        return
    for pid in pids:
        for segment in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                made = segment.lstat()
                if made.st_uid == os.getuid() and made.st_ctime >= since_s:
                    segment.unlink()


# The kernel's fixed ids of the host's pid and IPC namespaces.
_HOSTS_PID = "pid:[4026531836]"
_HOSTS_IPC = "ipc:[4026531839]"


def memory_is_numbered_apart() -> bool:
    """Return whether this container shares memory, but not process ids, with the host (``--ipc=host``)."""
    return name_space("ipc") == _HOSTS_IPC and name_space("pid") != _HOSTS_PID
