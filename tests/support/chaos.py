"""Executes faults in a training, one after another at random moments, until it has ended.

    python -m support.chaos --faults 60

prints how long each took to get over, until the run is one step further than when it struck, under samestep's
launcher and under torchrun's.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

import psutil

import support.chaotic_training
from support.commands import environment

PROGRAM = support.chaotic_training.__file__
WORKERS, HANG_S = 4, 5
PATIENCE_S = 120.0
PREEMPTED = 75
TRAIN = (
    *("digits", "--exact", WORKERS, "--subset", 480, "--batch-size", 32, "--threads", 1, "--seed", 0),
    *("--evaluate-every", 1000, "--checkpoint-steps", 5, "--keep", 3),
)
RUN = (
    *("run", "-n", WORKERS, "--threads", 1, "--mode", "native"),
    *("--max-restarts", 1000, "--hang-timeout", HANG_S),
)
LAUNCHERS = {
    "samestep": [sys.executable, "-m", "samestep", *RUN],
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={WORKERS}", "--max-restarts=1000"),
    ],
}
DISK = "4m"
_ROOM = 200 << 10
"""Bytes left on a full disk: for lines, not for a checkpoint."""
_POLL_S = 0.02
_WAITING, _COMPLETE = "lines stay in memory", "can be written again and is complete"
_STEPS_BETWEEN = 25
"""Of the whole training, for each fault: it tells of its steps about once a second."""


@dataclass(frozen=True)
class Recovery:
    """A fault, the step at which it happened, and the seconds until the run was one step further."""

    fault: str
    step: int
    seconds: float


Launch: TypeAlias = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]


def launched_by(launcher: str) -> Launch:
    """Return what starts a program under one of `LAUNCHERS`, in interpreters of its own."""

    def launch(program: Sequence[str], said: Path) -> "subprocess.Popen[bytes]":
        command = [*map(str, LAUNCHERS[launcher]), *program]
        with said.open("ab") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=environment(), start_new_session=True
            )

    return launch


class Victim:
    """A training of `steps` steps in the folder of a small disk, which is restarted until it has ended well.

    Args:
        disk: where the run folder is made.
        steps: of the whole training, roughly.
        launch: starts a program with arguments on the workers; what it prints is added to a file.
    """

    def __init__(self, disk: Path, *, steps: int, launch: Launch) -> None:
        self.disk, self.folder = disk, disk / "run"
        self._launch = launch
        self._said = disk.parent / f"{disk.name}-said.txt"
        self._said.touch()
        train = [*TRAIN, "--epochs", -(-steps // 15), "--hang-timeout", HANG_S]
        self.process = self._start("--out", self.folder, *train)

    def _start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        return self._launch([PROGRAM, *map(str, arguments)], self._said)

    @property
    def said(self) -> str:
        """Its output."""
        return self._said.read_text()

    @property
    def step(self) -> int:
        """The last step in its metrics."""
        with suppress(OSError, IndexError, ValueError):
            return json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        return 0

    @property
    def sessions(self) -> int:
        """The number of its sessions."""
        with suppress(OSError):
            return len((self.folder / "sessions.jsonl").read_text().splitlines())
        return 0

    @property
    def checkpoints(self) -> list[Path]:
        """Its checkpoints, the newest last."""
        found = (self.folder / "checkpoints").glob("step-*")
        # One is named step-7.2 if step-7 holds foreign files.
        return sorted(found, key=lambda path: [*map(int, path.name.removeprefix("step-").split("."))])

    def workers(self) -> list[int]:
        """Return the process ids of its workers, once all of them run."""
        while True:
            with suppress(psutil.NoSuchProcess):
                children = [
                    child
                    for child in psutil.Process(self.process.pid).children()
                    if child.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
                ]
                if len(children) >= WORKERS:
                    return sorted(child.pid for child in children)
            self.resume_if_preempted()
            time.sleep(_POLL_S)

    def resume_if_preempted(self) -> None:
        """Resume it, as a scheduler would, if it was preempted."""
        code = self.process.poll()
        if code == PREEMPTED:
            self.process = self._start("--resume", self.folder)
        elif code is not None and not self.over:
            raise AssertionError(f"ended with {code}\n{self.said}")

    @property
    def over(self) -> bool:
        """Whether it has ended without an error."""
        return self.process.poll() == 0

    def await_step(self, step: int, since: int = 0) -> bool:
        """Return once it is at `step` in a session after the first `since`; False if it has ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while self.step < step or self.sessions <= since:
            self.resume_if_preempted()
            if self.over:
                return False
            if time.monotonic() > deadline:
                raise AssertionError(f"not at step {step} after {PATIENCE_S:g} s\n{self.said}")
            time.sleep(_POLL_S)
        return True

    def end(self) -> None:
        """Kill its processes."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _signals(number: int) -> Callable[[Victim, random.Random], bool]:
    def strike(victim: Victim, draw: random.Random) -> bool:
        os.kill(draw.choice(victim.workers()), number)
        return True

    return strike


def _fill_disk(victim: Victim, _: random.Random) -> bool:
    """Leave no room for a checkpoint until one has failed."""
    ballast = victim.disk / "ballast"
    before = victim.said.count("No space left")
    deadline = time.monotonic() + PATIENCE_S
    with ballast.open("wb", buffering=0) as stream:
        while victim.said.count("No space left") == before:
            free = os.statvfs(victim.disk)
            # Old checkpoints that are deleted make room again.
            stream.write(bytes(max(0, free.f_bavail * free.f_frsize - _ROOM)))
            victim.resume_if_preempted()
            if victim.over or time.monotonic() > deadline:
                raise AssertionError(f"no checkpoint failed for the full disk\n{victim.said}")
            time.sleep(_POLL_S)
    ballast.unlink()
    return False


def _corrupt(victim: Victim, _: random.Random) -> bool:
    """Change a byte of the newest checkpoint, and kill all workers before there is a newer one."""
    workers = victim.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    weights = victim.checkpoints[-1] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    return True


def _await_said(
    victim: Victim, enough: Callable[[str], bool], meanwhile: Callable[[], None] = lambda: None
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not enough(victim.said):
        victim.resume_if_preempted()
        if victim.over or time.monotonic() > deadline:
            raise AssertionError(f"nothing of what it does with its lines\n{victim.said}")
        meanwhile()
        time.sleep(_POLL_S)


def _lines_wait(victim: Victim, block: Callable[[], None], free: Callable[[], None]) -> bool:
    """Prevent writes of lines of metrics for a while; all of them are written in the end."""
    before = victim.said.count(_WAITING)
    try:
        # Again and again: a checkpoint that fails and is removed makes room.
        _await_said(victim, lambda said: said.count(_WAITING) > before, meanwhile=block)
    finally:
        free()
    _await_said(victim, lambda said: said.count(_COMPLETE) >= said.count(_WAITING))
    return False


def _fill_all(victim: Victim, _: random.Random) -> bool:
    """Fill the disk, up to the last line."""
    ballast = victim.disk / "ballast"

    def block() -> None:
        with suppress(OSError), ballast.open("ab", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))

    return _lines_wait(victim, block, ballast.unlink)


def _remount(disk: Path, how: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run(
        ["mount", "-o", f"remount,{how}", disk], capture_output=True, check=False
    ).returncode:
        if time.monotonic() > deadline:
            raise AssertionError(f"{disk} cannot be made {how}")
        time.sleep(_POLL_S)  # a file is open for writing


def _read_only(victim: Victim, _: random.Random) -> bool:
    """Make the disk read-only for a while."""
    return _lines_wait(
        victim, lambda: _remount(victim.disk, "ro"), lambda: _remount(victim.disk, f"rw,size={DISK}")
    )


FOREIGN_FOLDERS = ("photos-2024", ".notes.draft-2", ".photos.gone-2024", ".backup.old-2023")
"""Names of a user's folders; the hidden ones resemble those of samestep's own unfinished checkpoints."""
FOREIGN_LINKS = ("elsewhere", ".notes.draft-3")


def _foreign_files(victim: Victim, draw: random.Random) -> bool:
    """Put a user's files into the run folder and restart the workers, which clean up there."""
    outside = victim.disk.parent / "foreign"
    outside.mkdir(exist_ok=True)
    (outside / "file").write_text("mine")
    for folder in (victim.folder, victim.folder / "checkpoints"):
        for name in FOREIGN_FOLDERS:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "one").write_text("mine")
        (folder / "notes.txt").write_text("mine")
        for name in FOREIGN_LINKS:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(outside)
    return FAULTS["SIGKILL"](victim, draw)


def foreign_files_lost(victim: Victim) -> list[Path]:
    """Return which of a user's files are missing; for use after that fault."""
    names = [f"{name}/one" for name in FOREIGN_FOLDERS] + [f"{name}/file" for name in FOREIGN_LINKS]
    paths = [
        folder / name
        for folder in (victim.folder, victim.folder / "checkpoints")
        for name in (*names, "notes.txt")
    ]
    return [path for path in paths if not path.is_file()]


def steps_missing(victim: Victim) -> set[int]:
    """Return the steps of a finished training that its metrics lack."""
    rows = [json.loads(line) for line in (victim.folder / "metrics.jsonl").read_text().splitlines()]
    return set(range(1, int(str(result(victim.folder)["steps"])) + 1)) ^ {row["step"] for row in rows}


def _unreadable(victim: Victim, _: random.Random) -> bool:
    """Replace the newest checkpoint's weights, and kill all workers before there is a newer one."""
    workers = victim.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    weights = victim.checkpoints[-1] / "model.safetensors"
    weights.unlink()
    weights.mkdir()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    return True


FAULTS: dict[str, Callable[[Victim, random.Random], bool]] = {
    "SIGKILL": _signals(signal.SIGKILL),
    "SIGSTOP": _signals(signal.SIGSTOP),
    "SIGTERM": _signals(signal.SIGTERM),
    "exception": _signals(signal.SIGUSR2),
    "full disk": _fill_disk,
    "corrupted checkpoint": _corrupt,
    "unreadable checkpoint": _unreadable,
    "no room for metrics": _fill_all,
    "read-only disk": _read_only,
    "foreign files": _foreign_files,
}
"""Each returns whether the workers have to begin anew."""


def inject(victim: Victim, faults: Sequence[str], draw: random.Random) -> Iterator[Recovery]:
    """Yield the recovery of `victim` from each of `faults`; afterwards it runs to its end."""
    at = 6
    for fault in faults:
        if not victim.await_step(at):
            raise AssertionError(f"finished before {fault}: train for longer")
        sessions, step, began = victim.sessions, victim.step, time.monotonic()
        ends_session = FAULTS[fault](victim, draw)
        victim.await_step(step + 1, since=sessions if ends_session else 0)
        yield Recovery(fault, step, time.monotonic() - began)
        at = victim.step + draw.randrange(2, 12)
    deadline = time.monotonic() + PATIENCE_S
    while not victim.over:
        victim.resume_if_preempted()
        if time.monotonic() > deadline:
            raise AssertionError(f"not at its end after {PATIENCE_S:g} s\n{victim.said}")
        time.sleep(_POLL_S)


def result(folder: Path) -> dict[str, object]:
    """Return the result of a run."""
    return json.loads((folder / "result.json").read_text())


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system for the duration of a block.

    Raises:
        OSError: none can be mounted here.
    """
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        raise OSError(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def whole(folder: Path, *, steps: int) -> list[str]:
    """Return the arguments of samestep for the same training on one worker."""
    return ["train", *map(str, TRAIN), "--epochs", str(-(-steps // 15)), "--out", str(folder)]


def main() -> None:
    """Print the recoveries of one run under each launcher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    faults = [list(FAULTS)[number % len(FAULTS)] for number in range(asked.faults)]
    draw.shuffle(faults)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "whole"
        train = whole(folder, steps=_STEPS_BETWEEN * asked.faults)
        command = [sys.executable, "-m", "samestep", *train]
        subprocess.run(command, env=environment(), check=True, capture_output=True)
        undisturbed = result(folder)["weights_sha256"]
        print(f"undisturbed {undisturbed}")
        ended = [_run_with_faults(Path(name), launcher, faults, draw) for launcher in LAUNCHERS]
    sys.exit(any(weights != undisturbed for weights in ended))


def _run_with_faults(folder: Path, launcher: str, faults: Sequence[str], draw: random.Random) -> object:
    """Print the recoveries of one run from `faults`; return the digest of its weights."""
    print(f"{launcher}:", flush=True)
    recoveries = []
    with small_disk(folder / launcher) as disk:
        victim = Victim(disk, steps=_STEPS_BETWEEN * len(faults), launch=launched_by(launcher))
        try:
            for one in inject(victim, faults, draw):
                recoveries.append(one)
                print(f"step {one.step:4d}  {one.fault:20s}  {one.seconds:5.1f} s", flush=True)
            weights = result(victim.folder)["weights_sha256"]
            if missing := steps_missing(victim):
                weights = f"metrics lack steps {sorted(missing)}"
            if "foreign files" in faults and (lost := foreign_files_lost(victim)):
                weights = f"lost: {lost}"
        finally:
            victim.end()
    for fault in FAULTS:
        if taken := [one.seconds for one in recoveries if one.fault == fault]:
            print(f"{fault:20s}  median {median(taken):5.1f} s, longest {max(taken):5.1f} s of {len(taken)}")
    print(f"ended with  {weights}", flush=True)
    return weights


if __name__ == "__main__":
    main()
