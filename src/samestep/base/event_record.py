"""Records the last events of each worker in a file that outlives the worker, also after SIGKILL.

Each worker of this host has a file in `folder`. The worker maps the file into memory, so that an event costs
no system call, and the kernel keeps what was written. On `SIGNAL` the worker writes the stack of its main
thread to a second file; `faulthandler` does so from the signal's handler, also while the thread waits in C.
"""

import faulthandler
import json
import mmap
import os
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from samestep.base.documents import read_as
from samestep.base.errors import Error
from samestep.base.folders import temporary_directory
from samestep.base.polling import holds_within
from samestep.base.process_identity import Life, Owner
from samestep.base.regular_files import open_regular
from samestep.base.worker_records import Frame, parse_main_frames

EVENTS = 100
"""Number of events that are kept of each worker."""
SIGNAL = getattr(signal, "SIGRTMIN", 34) + 13
"""Signal on which a recorded worker writes its stacks; torch, MPI and schedulers do not use it."""

_HEAD = struct.Struct("<II")  # length and checksum of what follows
_COUNT = struct.Struct("<q")
_EVENT = struct.Struct("<dH")  # seconds of the system's monotonic clock, and length of the text
_PAGE = 4096
_STATUS_AT, _COUNT_AT, _EVENTS_AT, _EVENT_BYTES = _PAGE, 2 * _PAGE, 2 * _PAGE + _COUNT.size, 200
_SIZE = _EVENTS_AT + EVENTS * _EVENT_BYTES
_RECORD, _STACKS = ".events", ".stacks"  # ends of the names of the two files
_END = "the worker ends"
_KEPT_S = 24 * 3600.0  # seconds for which the files of dead workers are kept: a guess
_ANSWER_S, _PAUSE_S = 2.0, 0.1
"""Seconds that workers may take to write their stacks, and without a further byte after which these end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorker:
    """The worker that a file is about."""

    rank: int
    size: int  # number of workers
    script: str
    launcher: int  # id of the process that has started the worker, or of the worker itself
    helps: int  # id of the process that this worker helps; 0 for none
    process: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a worker did."""

    age_s: float  # seconds since
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """The content of a worker's file."""

    worker: RecordedWorker
    life: Life
    events: tuple[Event, ...]  # the oldest first
    status: bytes  # the last message of the watchdog; empty without one
    path: Path

    @property
    def is_complete(self) -> bool:
        """Whether the worker has recorded its end; it was killed otherwise, if it is dead."""
        return any(event.text.startswith(_END) for event in self.events[-1:])

    @property
    def stacks(self) -> Path:
        """The file with the stacks."""
        return self.path.with_suffix(_STACKS)


@dataclass(slots=True)
class _Here:
    """The record of this process."""

    memory: mmap.mmap | None = None
    worker: RecordedWorker | None = None  # also in processes that this one has forked
    path: Path | None = None
    numbers: Iterator[int] = field(default_factory=count)  # of events, also of those in other threads
    launcher: int = 0  # the process that starts the run, also in processes that it has forked; 0 for none


_here = _Here()


def _forget() -> None:
    _here.memory = None


os.register_at_fork(after_in_child=_forget)


def folder() -> Path:
    """Return the folder with the files of this user's workers on this host.

    Raises:
        UsageError: there is no temporary directory.
    """
    return temporary_directory() / f"samestep-events-{os.getuid()}"


def begin_run() -> None:
    """Make this process the launcher of the processes that it forks from now on."""
    _here.launcher = os.getpid()


def end_run(*, has_failed: bool) -> None:
    """Remove the records of the workers of this process's run, unless it has failed."""
    if _here.launcher == os.getpid() and not has_failed:
        _remove_run(_here.launcher)


def begin_record(rank: int, size: int, script: str) -> None:
    """Begin the record of this process; without space or a folder for it there is none."""
    launcher, process = _here.launcher or os.getpid(), Owner.here()
    _begin(RecordedWorker(rank=rank, size=size, script=script, launcher=launcher, helps=0, process=process))


def begin_record_of_helper(rank: int) -> None:
    """Begin the record of this process, which was forked to help a recorded one; else there is none."""
    if (main := _here.worker) is not None:
        _begin(replace(main, rank=rank, helps=main.process.pid, process=Owner.here()))


def _begin(worker: RecordedWorker) -> None:
    with suppress(OSError, Error):
        where = folder()
        where.mkdir(mode=0o700, exist_ok=True)
        if where.is_symlink() or where.stat().st_uid != os.getuid():
            return
        path = where / f"{worker.process.pid}{_RECORD}"
        _remove(path)  # a worker of another container may have mapped it, and must not lose its pages
        _map(path)
        _here.worker, _here.path, _here.numbers = worker, path, count()
        _write_message(0, json.dumps(asdict(worker)).encode())
        stacks = os.open(path.with_suffix(_STACKS), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        os.write(stacks, f"main thread {threading.main_thread().ident or 0:#x}\n".encode())
        # Of the main thread alone, which the system prefers for a signal: the stack of a thread that runs
        # meanwhile changes, and reading it can crash the process.
        faulthandler.register(SIGNAL, stacks, all_threads=False)
        note("the worker begins")
        _remove_old(path)


def _map(path: Path) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, _SIZE)  # a write to a page that has no space would kill the worker
        _here.memory = mmap.mmap(file, _SIZE)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)


def note(text: str) -> None:
    """Record an event of this process, if it has a record."""
    if (memory := _here.memory) is not None:
        data = text.encode(errors="replace")[: _EVENT_BYTES - _EVENT.size]
        event = _EVENT.pack(time.monotonic(), len(data)) + data
        number = next(_here.numbers)
        at = _EVENTS_AT + number % EVENTS * _EVENT_BYTES
        memory[at : at + len(event)] = event
        _COUNT.pack_into(memory, _COUNT_AT, number + 1)


def note_status(message: bytes) -> None:
    """Record the status of this process; a message that is longer than a page is not recorded."""
    if _here.memory is not None and len(message) <= _PAGE - _HEAD.size:
        _write_message(_STATUS_AT, message)


def _write_message(at: int, message: bytes) -> None:
    data = with_checksum(message)
    if _here.memory is not None:
        _here.memory[at : at + len(data)] = data


def end_record(failure: str) -> None:
    """End the record of this process; `failure` is empty without one.

    The launcher removes the files, and without one this process does, unless it has failed. The process goes
    on to answer `SIGNAL`, which would end it otherwise.
    """
    if _here.memory is None or _here.worker is None:
        return
    note(f"{_END}: {failure or 'no failure'}")
    _here.memory = None
    if not failure and _here.worker.launcher == os.getpid():
        _remove_run(os.getpid())


def _remove_run(launcher: int) -> None:
    with suppress(OSError, Error):
        where = folder()
        for record in read_records(where):
            if record.worker.launcher == launcher:
                _remove(record.path)
        where.rmdir()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(_STACKS).unlink(missing_ok=True)


def _remove_old(new: Path) -> None:
    """Remove the files of workers that died long ago; `new` is a file that was made now."""
    made_s = new.stat().st_mtime
    old = [path for path in _files(new.parent) if path.stat().st_mtime < made_s - _KEPT_S]
    for record in _readable(old):
        if record.life == "dead" and all(event.age_s > _KEPT_S for event in record.events[-1:]):
            _remove(record.path)


def read_records(where: Path) -> list[EventRecord]:
    """Return the records in a folder, by launcher and rank; unreadable files are left out."""
    records = list(_readable(_files(where))) if where.is_dir() else []
    return sorted(records, key=lambda record: (record.worker.launcher, record.worker.rank))


def _files(where: Path) -> Iterator[Path]:
    return where.glob(f"*{_RECORD}")


def _readable(paths: Iterable[Path]) -> Iterator[EventRecord]:
    for path in paths:
        with suppress(OSError, ValueError):
            with open_regular(path, follow=False) as stream:
                data = stream.read(_SIZE)
            if len(data) == _SIZE:
                yield _parsed(data, path)


def _parsed(data: bytes, path: Path) -> EventRecord:
    worker: RecordedWorker = read_as(RecordedWorker, json.loads(message_at(data, 0)), "worker")
    count, now = _COUNT.unpack_from(data, _COUNT_AT)[0], time.monotonic()
    events = []
    for number in range(max(0, count - EVENTS), count):
        at = _EVENTS_AT + number % EVENTS * _EVENT_BYTES
        then, length = _EVENT.unpack_from(data, at)
        text = data[at + _EVENT.size : at + _EVENT.size + length].decode(errors="replace")
        events.append(Event(age_s=max(0.0, now - then), text=text))
    return EventRecord(
        worker=worker,
        life=worker.process.life(),
        events=tuple(events),
        status=message_at(data, _STATUS_AT),
        path=path,
    )


def with_checksum(message: bytes) -> bytes:
    """Return a message as it is written to memory that other processes read; see `message_at`."""
    return _HEAD.pack(len(message), zlib.crc32(message)) + message


def message_at(data: bytes, at: int) -> bytes:
    """Return the message at a position; empty if there is none, or if it is being written."""
    length, checksum = _HEAD.unpack_from(data, at)
    message = data[at + _HEAD.size : at + _HEAD.size + length]
    return message if zlib.crc32(message) == checksum else b""


def stacks_of(records: Sequence[EventRecord]) -> list[list[Frame]]:
    """Return the frames of the main thread of each worker, innermost first.

    All live workers write their stacks now, at once; of a dead one they are those that were written last. A
    list is empty if a worker writes none, since it was stopped, or runs another program.
    """
    written = _written([record for record in records if record.life == "alive"])
    return [
        _frames(record) if record.life != "alive" or record.stacks in written else [] for record in records
    ]


def write_stacks_of_run() -> None:
    """Let all live workers of this process's run on this host write their stacks, before they are ended."""
    if _here.memory is None or _here.worker is None or _here.path is None:
        return
    launcher = _here.worker.launcher
    with suppress(OSError, Error):
        of_run = [record for record in read_records(_here.path.parent) if record.worker.launcher == launcher]
        _written([record for record in of_run if record.life == "alive"])


def _frames(record: EventRecord) -> list[Frame]:
    try:
        return parse_main_frames(record.stacks.read_text(errors="replace"))
    except (OSError, ValueError):
        return []


def _written(records: Sequence[EventRecord]) -> set[Path]:
    """Let live workers write their stacks; return the files of those that have."""
    before: dict[Path, int] = {}
    for record in records:
        pid, size = record.worker.process.pid, _size(record.stacks)
        with suppress(OSError):  # it has ended meanwhile
            if _answers(pid, record.stacks):
                os.kill(pid, SIGNAL)
                before[record.stacks] = size
    return _await_stacks(before)


def _answers(pid: int, stacks: Path) -> bool:
    """Return whether a process writes its stacks on `SIGNAL`, which ends any other one.

    The process may run another program by now, or end. Files of another user can name any process.
    """
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text(errors="replace")
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> SIGNAL - 1 & 1) and process.stat().st_uid == stacks.stat().st_uid


def _await_stacks(before: Mapping[Path, int]) -> set[Path]:
    """Return the files that have grown beyond their sizes before, when they grow no further."""

    def grown() -> dict[Path, int]:
        return {path: size for path in before if (size := _size(path)) > before[path]}

    holds_within(lambda: len(grown()) == len(before), _ANSWER_S)
    sizes: dict[Path, int] = {}
    while sizes != (sizes := grown()):
        time.sleep(_PAUSE_S)
    return {*sizes}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was removed
        return -1
