"""Tests with a temporary file whether the file system of the run folder does what checkpoints need.

A checkpoint is written under another name, flushed and renamed, and a lock keeps two runs apart. Some network
file systems refuse part of this, take seconds for it, or grant one lock to several processes.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.base.machine.kernel_files import text_of
from samestep.base.units import bytes_text, seconds_text
from samestep.studies.doctor.check_result import Finding, Part

_CONTENT = b"samestep doctor\n" * 256
_SLOW_S = 1.0
_LITTLE = 2**30
_FLEETING = {"tmpfs", "ramfs", "overlay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Results of the test of a folder.

    Args:
        folder: the tested folder: the run folder or the nearest existing one above it.
        kind: type of the file system, such as ``nfs4``; empty if unknown.
        free: bytes that can still be written; None if unknown.
        failed: each step that failed, with the error of the system.
        seconds: duration of each step.
    """

    folder: str
    kind: str = ""
    free: int | None = None
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest existing one above it."""
    whole = folder.absolute()
    return next((one for one in (whole, *whole.parents) if one.is_dir()), Path("/"))


def kind_of(folder: Path, mountinfo: str) -> str:
    """Return the type of the file system of a folder.

    Args:
        folder: absolute path, without links in it.
        mountinfo: text of /proc/self/mountinfo; see proc(5).
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if (folder == point or point in folder.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split(" ")[0]
    return kind


def try_in(folder: Path, *, root: Path = Path("/")) -> Tried:
    """Write, flush, rename, lock and remove a file in `folder`.

    Args:
        folder: an existing folder.
        root: the folder of /proc.
    """
    steps = _Steps(failed={}, seconds={})
    with suppress(OSError):
        steps.take(folder)
    try:
        space = os.statvfs(folder)
        free = space.f_frsize * space.f_bavail
    except OSError:
        free = None
    kind = kind_of(folder.resolve(), text_of(root / "proc/self/mountinfo"))
    return Tried(folder=str(folder), kind=kind, free=free, failed=steps.failed, seconds=steps.seconds)


def judge(tried: Tried) -> Part:
    """Return the rows, findings and facts of the run folder's file system."""
    findings = [Finding(text=text) for text in _failures(tried)]
    slow = {name: took for name, took in tried.seconds.items() if took > _SLOW_S}
    if slow:
        durations = ", ".join(f"{name} {seconds_text(took)}" for name, took in slow.items())
        findings.append(
            Finding(
                text=f"{tried.folder} ({tried.kind or 'file system'}) is slow: {durations} for "
                f"{len(_CONTENT)} bytes. Write checkpoints less often, or to another file system."
            )
        )
    if "write" not in tried.failed and tried.free is not None and tried.free < _LITTLE:
        findings.append(
            Finding(
                text=f"{tried.folder} has {bytes_text(tried.free)} left: checkpoints will not fit. Remove "
                "some, or choose another folder."
            )
        )
    if tried.kind in _FLEETING:
        findings.append(
            Finding(
                text=f"{tried.folder} is on {tried.kind}: its files are lost with the machine or the "
                "container. Mount a persistent folder for runs that you keep.",
                hurts=False,
            )
        )
    free = "" if tried.free is None else f", {bytes_text(tried.free)} free"
    works = "write, fsync, rename and lock work" if not tried.failed else f"fails: {', '.join(tried.failed)}"
    return Part(
        rows=(("run folder", f"{tried.folder} ({tried.kind or 'unknown kind'}{free}): {works}"),),
        findings=tuple(findings),
        facts={"folder": asdict(tried)},
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of the test, one after another; a step that fails is recorded and the next one runs."""

    failed: dict[str, str]
    seconds: dict[str, float]

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        except OSError as error:
            self.failed[name] = error.strerror or str(error)
        self.seconds[name] = time.perf_counter() - begin

    def take(self, folder: Path) -> None:
        drafts = []
        with self._step("write"):
            number, name = tempfile.mkstemp(prefix=".samestep-doctor-", dir=folder)
            drafts.append(Path(name))
            with os.fdopen(number, "wb", buffering=0) as file:
                file.write(_CONTENT)
                with self._step("fsync"):
                    os.fsync(file.fileno())
        for draft in drafts:
            final = draft.with_name(f"{draft.name}.renamed")
            try:
                self._rename_and_lock(draft, final)
            finally:
                draft.unlink(missing_ok=True)
                final.unlink(missing_ok=True)

    def _rename_and_lock(self, draft: Path, final: Path) -> None:
        with self._step("rename"):
            draft.replace(final)
            if final.read_bytes() != _CONTENT:
                self.failed["rename"] = "the file has other content after it"
        with self._step("lock"):
            self._lock(final if final.exists() else draft)

    def _lock(self, path: Path) -> None:
        """Lock a file, and check that a second lock is refused."""
        with path.open("rb+") as first, path.open("rb+") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self.failed["lock"] = "two locks at once were granted"


def _failures(tried: Tried) -> Iterator[str]:
    where = f"{tried.folder} ({tried.kind})" if tried.kind else tried.folder
    for name, reason in tried.failed.items():
        if name == "write":
            yield f"Nothing can be written to {where}: {reason}. Choose another run folder."
        elif name == "lock":
            yield (
                f"Locks do not work in {where}: {reason}. Two runs, or two downloads, in one folder can "
                "then write at the same time. Mount it with locks (NFS: lockd; Lustre: -o flock), or use "
                "another folder."
            )
        else:
            yield f"{name} does not work in {where}: {reason}. Checkpoints need it; use another file system."
