"""Tests with a temporary file whether the file system of the run folder does what checkpoints need.

A checkpoint is written under another name, flushed and renamed, and a lock keeps two runs apart. Some network
file systems refuse part of this, take seconds for it, or grant one lock to several processes.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from samestep.base.machine.kernel_files import text_of
from samestep.base.polling import holds_within
from samestep.base.regular_files import lies_at
from samestep.base.units import bytes_text, seconds_text
from samestep.doctor.context import Context, Finding, Result, ResultStore, note, problem

_PREFIX = ".samestep-doctor-"
_CONTENT = b"samestep doctor\n" * 256
_SLOW_S = 1.0  # of a step that takes milliseconds on any disk
_LITTLE = 2**30  # bytes; a checkpoint of a model with 100 million weights has as many
_FLEETING = {"tmpfs", "ramfs", "overlay"}
# A network file system may take this long to show what another host has written.
_SHOW_S = 5.0
_SHARED_S = 15.0  # for all ranks, of which each can take `_SHOW_S`


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTest:
    """Results of the test of a folder."""

    folder: str  # the tested folder: the run folder or the nearest existing one above it
    kind: str = ""  # type of the file system, such as ``nfs4``; empty if unknown
    free: int | None = None  # bytes that can still be written; None if unknown
    failed: dict[str, str] = field(default_factory=dict)  # steps with the error of the system
    seconds: dict[str, float] = field(default_factory=dict)  # duration of each step

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record the duration of a step, and its error, after which the test goes on."""
        begin = time.perf_counter()
        try:
            yield
        except OSError as error:
            self.failed[name] = error.strerror or str(error)
        self.seconds[name] = time.perf_counter() - begin


def check(context: Context) -> Result:
    """Check the run folder."""
    whole = context.run_folder.absolute()
    first = next(path for path in (whole, *whole.parents) if lies_at(path))
    if not first.is_dir():
        return Result(findings=[problem(f"The run folder {whole} cannot be made: {first} is no folder.")])
    return judge(probe_folder(existing_folder(context.run_folder), root=context.root))


def existing_folder(folder: Path) -> Path:
    """Return `folder`, or the nearest existing one above it."""
    whole = folder.absolute()
    return next((path for path in (whole, *whole.parents) if path.is_dir()), Path("/"))


def file_system_type(folder: Path, mountinfo: str) -> str:
    """Return the type of the file system of an absolute path, from /proc/self/mountinfo; see proc(5)."""
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


def probe_folder(folder: Path, *, root: Path = Path("/")) -> FolderTest:
    """Write, flush, rename, lock and remove a file in an existing folder."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = None
    kind = file_system_type(folder.resolve(), text_of(root / "proc/self/mountinfo"))
    test = FolderTest(folder=str(folder), kind=kind, free=free)
    with suppress(OSError):
        _run_steps(test, folder)
    return test


def _run_steps(test: FolderTest, folder: Path) -> None:
    drafts = []
    with test.step("write"):
        number, name = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        drafts.append(Path(name))
        with os.fdopen(number, "wb", buffering=0) as file:
            file.write(_CONTENT)
            with test.step("fsync"):
                os.fsync(file.fileno())
    for draft in drafts:
        final = draft.with_name(f"{draft.name}.renamed")
        try:
            with test.step("rename"):
                draft.replace(final)
                if final.read_bytes() != _CONTENT:
                    test.failed["rename"] = "the file has other content after it"
            path = final if final.exists() else draft
            with test.step("lock"), path.open("rb+") as first, path.open("rb+") as second:
                fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(BlockingIOError):  # the second lock must be refused
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    test.failed["lock"] = "two locks at once were granted"
        finally:
            draft.unlink(missing_ok=True)
            final.unlink(missing_ok=True)


def judge(test: FolderTest) -> Result:
    """Return the rows, findings and facts of the run folder's file system."""
    free = "" if test.free is None else f", {bytes_text(test.free)} free"
    works = "write, fsync, rename and lock work" if not test.failed else f"fails: {', '.join(test.failed)}"
    return Result(
        rows=[("run folder", f"{test.folder} ({test.kind or 'unknown kind'}{free}): {works}")],
        findings=[*_about_failures(test), *_about_file_system(test)],
        facts={"folder": asdict(test)},
    )


def _about_failures(test: FolderTest) -> Iterator[Finding]:
    where = f"{test.folder} ({test.kind})" if test.kind else test.folder
    for name, reason in test.failed.items():
        if name == "write":
            yield problem(f"Nothing can be written to {where}: {reason}. Choose another run folder.")
        elif name == "lock":
            yield problem(
                f"Locks do not work in {where}: {reason}. Two runs, or two downloads, in one folder can "
                "then write at the same time. Mount it with locks (NFS: lockd; Lustre: -o flock), or use "
                "another folder."
            )
        else:
            yield problem(
                f"{name} does not work in {where}: {reason}. Checkpoints need it; use another file system."
            )


def _about_file_system(test: FolderTest) -> Iterator[Finding]:
    slow = [f"{name} {seconds_text(took)}" for name, took in test.seconds.items() if took > _SLOW_S]
    if slow:
        yield problem(
            f"{test.folder} ({test.kind or 'file system'}) is slow: {', '.join(slow)} for "
            f"{len(_CONTENT)} bytes. Write checkpoints less often, or to another file system."
        )
    if "write" not in test.failed and test.free is not None and test.free < _LITTLE:
        yield problem(
            f"{test.folder} has {bytes_text(test.free)} left: checkpoints will not fit. Remove "
            "some, or choose another folder."
        )
    if test.kind in _FLEETING:
        yield note(
            f"{test.folder} is on {test.kind}: its files are lost with the machine or the "
            "container. Mount a persistent folder for runs that you keep."
        )


def check_shared(context: Context) -> Result:
    """Check that all ranks see one run folder, and that a lock of rank 0 excludes the others."""
    assert context.store is not None
    folder, place = existing_folder(context.run_folder), context.place
    return compare_folders(context.store, folder, rank=place.rank, size=place.size)


def compare_folders(store: ResultStore, folder: Path, *, rank: int, size: int) -> Result:
    """Check that rank 0's file is in the run folder, and that its lock excludes this rank."""
    deadline = time.monotonic() + _SHARED_S
    if rank:
        name = store.read("folder", deadline=deadline)
        findings = list(_about_shared(folder, name)) if name else []
        store.post(f"folder/{rank}", "checked")
        return Result(findings=findings)
    try:
        with tempfile.NamedTemporaryFile(prefix=_PREFIX, dir=folder) as file:
            with suppress(OSError):  # `check` has a finding for it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(file.fileno())
            store.post("folder", Path(file.name).name)
            for number in range(1, size):
                store.read(f"folder/{number}", deadline=deadline)
    except OSError:
        store.post("folder", "")
    return Result()


def _about_shared(folder: Path, name: str) -> Iterator[Finding]:
    # A listing refreshes the cache of file servers.
    if not holds_within(lambda: name in os.listdir(folder), _SHOW_S, least_s=0.1):  # noqa: PTH208
        yield problem(
            f"{folder} is not the folder that rank 0 sees under this name: a file of rank 0 is missing. "
            "Checkpoints and results need a file system that all nodes share; choose a folder on it."
        )
        return
    with suppress(OSError), (folder / name).open("rb+") as file:  # the lock excludes this rank, as it must
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield problem(
            f"A lock that rank 0 holds in {folder} does not keep this rank out: two runs in one folder can "
            "write at the same time. Mount it with locks that all nodes see (NFS: lockd; Lustre: -o flock)."
        )
