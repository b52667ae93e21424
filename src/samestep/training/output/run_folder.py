"""Reads, writes and locks the folder of one run.

::

    runs/NAME/
      config.toml        the resolved settings; written first
      sessions.jsonl     one object per start of the run, including each resume
      metrics.jsonl      one object per step
      evaluations.jsonl  one object per evaluation
      ranks.jsonl        one object per rank and window of steps
      checkpoints/       one folder per checkpoint
      result.json        written last; a run without it has not finished
      .samestep-run      the identity of the run, which is part of the names of its draft files
      .samestep-lock     names the writing process; see `RunLock`
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import tomli_w

from samestep.base.documents import parse_json
from samestep.base.errors import Error, UsageError
from samestep.base.polling import polls
from samestep.base.record import (
    claim,
    json_line,
    probe,
    provenance,
    remove_file_drafts,
    write_json,
    write_whole,
)
from samestep.base.regular_files import descriptor, kind_of, lies_at, open_regular, read_text
from samestep.base.step_phases import phase_text
from samestep.base.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one training; equal on all ranks but for the times."""

    accuracy: float
    """On the test set after the last epoch, 0 .. 1."""
    correct: int
    total: int
    """Test samples, each counted once."""
    loss: float
    """Mean cross-entropy of a test sample."""
    epochs: int
    steps: int
    seconds: float
    """Time of the training steps, without evaluation and set-up."""
    samples_per_second: float
    """Training samples over `seconds`."""
    weights_sha256: str
    """Of the final state dict, see `samestep.parallel.gradients.agreement`."""
    world_size: int
    step_s: dict[str, float]
    """Median seconds of each phase of a step, on this rank."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The other requested metrics, over the test set."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result by name."""
        return asdict(self)

    def summary(self) -> str:
        """Return the result as two lines of text; one if this start took no step."""
        reached = (
            f"{counted(self.world_size, 'worker')}: {self.accuracy:.2%} of the test set right "
            f"({self.correct}/{self.total}) after "
            f"{counted(self.epochs, 'epoch')}, {counted(self.steps, 'step')}, {self.seconds:.1f} s "
            f"without start and evaluation; {self.samples_per_second:,.0f} samples/s"
        )
        step_s = sum(self.step_s.values())
        if not step_s:
            return reached
        parts = ", ".join(
            f"{phase_text(name)} {seconds / step_s:.0%}"
            for name, seconds in sorted(self.step_s.items(), key=lambda item: -item[1])
            if seconds / step_s >= 0.005
        )
        mean = f"medians; the mean step takes {self.seconds / max(1, self.steps) * 1e3:.2f} ms"
        return f"{reached}\na step takes {step_s * 1e3:.2f} ms: {parts} ({mean})"


MOST_KEPT = 16 << 20
"""Maximum bytes kept for one file while it cannot be written; further lines are lost."""


@dataclass(slots=True)
class _Backlog:
    """The lines of one file that are not written yet."""

    text: bytearray = field(default_factory=bytearray)
    lines: int = 0
    lost: int = 0
    reason: str = ""


class LineFiles:
    """Files of whole lines; a full or read-only disk does not end the run.

    `report` receives one line when a file cannot be written, one when it can be written again, and one about
    lines that are never written. Up to `most` bytes are kept for each file while it cannot be written.
    """

    def __init__(self, report: Callable[[str], None], *, most: int = MOST_KEPT) -> None:
        self._report, self._most = report, most
        self._backlogs: dict[Path, _Backlog] = {}

    def append(self, path: Path, lines: Iterable[str]) -> None:
        """Append lines to a file, after its unwritten ones."""
        rest = self._backlogs.setdefault(path, _Backlog())
        for line in lines:
            data = line.encode("utf-8")
            if len(rest.text) + len(data) > self._most:
                rest.lost += 1
            else:
                rest.text += data
                rest.lines += 1
        self._write(path, rest)

    def close(self) -> None:
        """Try to write the remaining lines once more, and report those that are not written."""
        for path, rest in self._backlogs.items():
            self._write(path, rest)
            if rest.lines or rest.lost:
                missing = counted(rest.lines + rest.lost, "line")
                self._report(f"never written: {missing} of {path} ({rest.reason})")
        self._backlogs.clear()

    def _write(self, path: Path, rest: _Backlog) -> None:
        if not rest.text:
            return
        try:
            _append(path, rest.text)
        except OSError as error:
            if not rest.reason:
                self._report(
                    f"cannot write to {path}: {error.strerror}. The run continues; the lines stay in memory "
                    "and are tried again"
                )
            rest.reason = error.strerror or type(error).__name__
            return
        rest.text.clear()
        rest.lines = 0
        if rest.reason and not rest.lost:
            self._report(f"{path} can be written again and is complete")
            rest.reason = ""


def _append(path: Path, data: bytes | bytearray) -> None:
    """Write all of `data` to the end of a file, or nothing."""
    with descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        before = os.fstat(file).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(file, view) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, before)
            raise
        finally:
            view.release()


_EVALUATIONS = "evaluations.jsonl"
_BY_STEP = ("metrics.jsonl", _EVALUATIONS, "ranks.jsonl")
_FILES = ("config.toml", *_BY_STEP, "sessions.jsonl", "result.json")
_OURS = {*_FILES, "checkpoints", "profile", "report.html"}
_LINE = 1 << 24  # maximum bytes of a line; a line has about 300


class Sink:
    """Receives the rows and the result of a run; this one drops them, on every rank but the first."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store one row per step."""

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store one row per rank, over the steps since the last call."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Store the row of an evaluation."""

    def finish(self, result: Result) -> None:
        """Store the result of the finished run."""

    def close(self) -> None:
        """Release everything; a run without a result can be resumed."""


class RunFolder(Sink):
    """The files of one run.

    Configuration, sessions and result raise an `Error` that names a file that cannot be written. Lines of
    steps, ranks and evaluations stay in memory until they can be written. `report` receives a line about a
    file that cannot be written.
    """

    def __init__(self, path: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._lines = LineFiles(report)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @staticmethod
    def prepare(path: Path) -> None:
        """Make the folder and check that it is writable and empty.

        Raises:
            UsageError: it cannot be made or written, or belongs to another run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe(path)
            taken = sorted(_OURS & {entry.name for entry in path.iterdir()})
        except OSError as error:
            raise UsageError(
                f"cannot write to the output folder {path}: {error.strerror}. Choose another --out."
            ) from None
        if taken:
            raise UsageError(
                f"{path} already contains a run ({', '.join(taken)}). Choose another --out, or continue that "
                f"run with --resume {path}."
            )

    @staticmethod
    def reopen(path: Path) -> None:
        """Check that the folder contains an unfinished run and is writable.

        Raises:
            UsageError: it has no run, or a finished one, or cannot be written.
        """
        RunFolder.check(path)
        if RunFolder.has_finished(path):
            raise UsageError(f"--resume {path}: this run has finished; see its result.json.")
        RunFolder._refuse_other_kinds(path)
        try:
            probe(path)
        except OSError as error:
            raise UsageError(f"--resume {path}: cannot write to it: {error.strerror}.") from None

    @staticmethod
    def check(path: Path) -> None:
        """Check that the folder contains a run, finished or not.

        Raises:
            UsageError: it has no run.
        """
        if not (path / "config.toml").is_file():
            raise UsageError(
                f"--resume {path}: it has no config.toml, so it is not a run folder. Give the folder that "
                "the last line of a training's output names."
            )

    @staticmethod
    def _refuse_other_kinds(path: Path) -> None:
        """Refuse links, FIFOs and devices in place of the run's files."""
        for name in _FILES:
            try:
                kind = kind_of((path / name).lstat().st_mode)
            except OSError:
                continue  # not there yet
            if kind is not None:
                raise UsageError(f"--resume {path}: its {name} is {kind}, not a file. Move it away.")

    @staticmethod
    def has_finished(path: Path) -> bool:
        """Return whether the folder contains a finished run."""
        return (path / "result.json").is_file()

    @staticmethod
    def read_result(path: Path) -> dict[str, Any]:
        """Return the result of a finished run.

        Raises:
            UsageError: its file cannot be read.
        """
        file = path / "result.json"
        try:
            result = parse_json(read_text(file, most=_LINE))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise UsageError(f"{file} is damaged: it is not a JSON object.")
        return result

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Store the resolved settings."""
        path = self.path / "config.toml"
        with explaining(path, "Choose another --out."):
            write_whole(path, [tomli_w.dumps(dict(config))], identity=claim(self.path))

    def begin(self, session: Mapping[str, Any], *, evaluates: bool = False) -> None:
        """Record a start of the run, and remove the rows of steps after the one it starts from.

        A killed run has rows after its last checkpoint; those steps are repeated, and with `evaluates` the
        evaluation at the step it starts from as well.
        """
        with explaining(self.path, self._remedy):
            identity = claim(self.path)
            remove_file_drafts(self.path, identity)
        for name in _BY_STEP:
            path = self.path / name
            with explaining(path, self._remedy):
                repeated = evaluates and name == _EVALUATIONS
                _truncate(path, after=session["step"] - repeated, identity=identity)
        path = self.path / "sessions.jsonl"
        with explaining(path, self._remedy), path.open("a", encoding="utf-8") as stream:
            stream.write(json_line({**session, "provenance": provenance()}) + "\n")

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line per step to ``metrics.jsonl``."""
        self._append("metrics.jsonl", rows)

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line per rank to ``ranks.jsonl``."""
        self._append("ranks.jsonl", rows)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``evaluations.jsonl``."""
        self._append(_EVALUATIONS, [row])

    def finish(self, result: Result) -> None:
        """Write ``result.json``."""
        path = self.path / "result.json"
        with explaining(path, self._remedy):
            record = {**result.as_dict(), "provenance": provenance()}
            write_json(path, record, identity=claim(self.path))

    def close(self) -> None:
        """Write the lines that could not be written before, or report them."""
        self._lines.close()

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._lines.append(self.path / name, (json_line(row) + "\n" for row in rows))

    @property
    def _remedy(self) -> str:
        return f"Fix that, then continue from the last checkpoint with --resume {self.path}."


@contextmanager
def explaining(path: Path, remedy: str) -> Iterator[None]:
    """Raise an `Error` that names `path` and the remedy if the block cannot write."""
    try:
        yield
    except OSError as error:
        raise Error(f"cannot write to {path}: {error.strerror}. {remedy}") from error


def _truncate(path: Path, *, after: int, identity: str) -> None:
    """Rewrite a file of rows without those of steps after `after`, and without a half-written line."""
    if lies_at(path):
        with open_regular(path, follow=False) as stream:
            write_whole(path, _rows_up_to(stream, after), identity=identity)


def _rows_up_to(stream: IO[bytes], after: int) -> Iterator[str]:
    """Yield the lines of steps up to `after`; a line that is no row ends them."""
    while (line := stream.readline(_LINE)).endswith(b"\n"):
        try:
            text = line.decode()
            step = parse_json(text)["step"]
        except (ValueError, KeyError, TypeError):
            return
        if type(step) is not int:
            return
        if step <= after:
            yield text


LOCK_FILE = ".samestep-lock"
RESTART_S = 30.0
"""Seconds that a restarted rank 0 waits for the previous one, possibly on another node, to end."""
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_POLL_S = 0.1  # seconds between two tries, short beside the restart of a rank
_MOST = 4096  # maximum bytes of the lock file, which has about 60
_held: set[int] = set()


def _close_in_child() -> None:
    """Close the locks in a forked process, so that an orphaned loading process holds none."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """The lock on a run folder, so that no second process writes to it; used on rank 0.

    Rank 0 holds it during all writes. The system releases it when the process ends, however it ends. The file
    contains the host and process id of the holder.

    The folder must exist when `take` is called, which waits `wait_s` for another holder.
    """

    def __init__(self, folder: Path, *, wait_s: float = 0.0) -> None:
        self._path = folder / LOCK_FILE
        self._wait_s = wait_s
        self._handle: int | None = None

    def take(self) -> str | None:
        """Take the lock.

        Returns:
            a warning if the file system has no locks; None if the lock is held.

        Raises:
            UsageError: another process holds it, or it cannot be opened.
        """
        # Read-only, so that an administrator can remount the disk read-only during the run.
        handle = self._open(os.O_RDONLY)
        failure = _lock(handle)
        if failure is not None and failure.errno == errno.EBADF:  # NFS locks only what is open for writing
            os.close(handle)
            handle = self._open(os.O_RDWR)
        try:
            locked = self._locked(handle)
            self._name_holder()
        except BaseException:
            os.close(handle)
            raise
        _held.add(handle)
        self._handle = handle
        if locked:
            return None
        return f"{self._path.parent} is on a file system without locks: start no second run in it"

    def close(self) -> None:
        """Release the lock, if it is held."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _held.discard(handle)
            os.close(handle)

    def _open(self, access: int) -> int:
        flags = access | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be opened: {error.strerror}. Move it away.") from None
        if (kind := kind_of(os.fstat(handle).st_mode)) is not None:
            os.close(handle)
            raise UsageError(f"{self._path} is {kind}, not a file. Move it away.")
        return handle

    def _locked(self, handle: int) -> bool:
        """Lock an open file; return whether the file system supports locks."""
        for _ in polls(self._wait_s, least_s=_POLL_S):
            failure = _lock(handle)
            if failure is None or failure.errno in _WITHOUT_LOCKS:
                return failure is None
            if not isinstance(failure, BlockingIOError):
                raise UsageError(f"{self._path} cannot be locked: {failure.strerror}.")
        raise UsageError(self._held_by())

    def _name_holder(self) -> None:
        text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n"
        try:
            with descriptor(self._path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW) as handle:
                os.write(handle, text)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}.") from None

    def _held_by(self) -> str:
        holder = self._holder()
        return (
            f"{self._path.parent} is in use: process {holder.get('pid', 'unknown')} on "
            f"{holder.get('host', 'an unknown host')} writes to it. Wait for its end or choose another "
            f"folder; if that process no longer exists, delete {self._path}."
        )

    def _holder(self) -> dict[str, Any]:
        try:
            holder = parse_json(read_text(self._path, most=_MOST))
        except (OSError, ValueError):
            return {}
        return holder if isinstance(holder, dict) else {}


def _lock(handle: int) -> OSError | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None
