"""Whether the file system of the run folder does what checkpoints need: tried, in a file that goes again.

A checkpoint is written under another name, flushed and renamed, and a lock keeps two runs apart. Network file
systems refuse some of this, or take seconds over it, or grant a lock to everybody.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.base.kernel_files import text_of
from samestep.base.units import bytes_text, seconds_text
from samestep.doctor.part import Finding, Part

_CONTENT = b"samestep doctor\n" * 256
_SLOW_S = 1.0
_LITTLE = 2**30
_FLEETING = {"tmpfs", "ramfs", "overlay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of the trial.

    Args:
        folder: where; the nearest folder that there is.
        kind: of file system, such as ``nfs4``; empty where unknown.
        free: bytes that may still be written; None where unknown.
        failed: what did not work, and the system's words for it.
        seconds: what each step took.
    """

    folder: str
    kind: str = ""
    free: int | None = None
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest one above it that there is."""
    whole = folder.absolute()
    return next((one for one in (whole, *whole.parents) if one.is_dir()), Path("/"))


def kind_of(folder: Path, mountinfo: str) -> str:
    """Return the kind of file system a folder is on.

    Args:
        folder: whole path, without links in it.
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
        folder: one that there is.
        root: where /proc is.
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
    """Return what is worth telling of the run folder's file system."""
    findings = [Finding(text=text) for text in _failures(tried)]
    slow = {name: took for name, took in tried.seconds.items() if took > _SLOW_S}
    if slow:
        told = ", ".join(f"{name} {seconds_text(took)}" for name, took in slow.items())
        findings.append(
            Finding(
                text=f"{tried.folder} ({tried.kind or 'file system'}) is slow: {told} for {len(_CONTENT)} "
                "bytes. Write checkpoints less often, or to another file system."
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
                text=f"{tried.folder} is on {tried.kind}: what is written there goes with the machine or the "
                "container. Mount a folder that stays for runs that matter.",
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
    """What is tried, one after the other; each that fails is noted and the next is tried."""

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
        """Lock a file, and see that a second one is kept out."""
        with path.open("rb+") as first, path.open("rb+") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self.failed["lock"] = "two at once were granted"


def _failures(tried: Tried) -> Iterator[str]:
    where = f"{tried.folder} ({tried.kind})" if tried.kind else tried.folder
    for name, reason in tried.failed.items():
        if name == "write":
            yield f"Nothing can be written to {where}: {reason}. Choose another run folder."
        elif name == "lock":
            yield (
                f"Locks do not work in {where}: {reason}. Two runs, or two downloads, in one folder would "
                "not keep out of each other's way. Mount it with locks (NFS: lockd; Lustre: -o flock), or "
                "use another folder."
            )
        else:
            yield f"{name} does not work in {where}: {reason}. Checkpoints need it; use another file system."
