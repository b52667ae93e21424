"""Ends runs abnormally, and finds the processes and files that remain once the next command has started.

    python -m support.abnormal_ends

ends runs of all kinds in more than 40 ways, and prints what is left of each: processes, segments of shared
memory, files.
"""

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from samestep.base import event_record
from support.forked_commands import samestep, start

DEADLINE_S = 90.0
"""How long a run may take until it trains."""
ENDED_S = 5.0
"""How long what belongs to a run may live on."""
_CACHES = {
    "torchinductor_root",
    "torchinductor_" + os.environ.get("USER", "root"),
    event_record.folder().name,
}

_TRAIN = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

how = sys.argv[1]


class Data(TensorDataset):
    def __getitem__(self, index):
        if how == "loader" and index == 200:
            raise ValueError("a sample that cannot be read")
        return super().__getitem__(index)


torch.manual_seed(0)
data = Data(torch.randn(256, 4), torch.randn(256, 1))
model = MODEL(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=16, num_workers=1, persistent_workers=True)
step = 0
while step < 100_000:
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        step += 1
        if step == 4:
            with open("large", "wb") as file:
                file.write(bytes(1 << 20))
            open("ready", "w").close()
            if how == "fork" and os.fork() == 0:
                sys.exit()
            if how == "_exit":
                os._exit(5)
            if how == "exit":
                sys.exit(5)
            if how == "close":
                sys.stdout.close()
                sys.stderr.close()
                sys.exit(5)
        if step == 8 and how == "fork":
            sys.exit(5)
        if how == "endless":
            time.sleep(0.01)
"""
SERIAL = _TRAIN.replace("MODEL(torch.nn.Linear(4, 1))", "torch.nn.Linear(4, 1)")
NATIVE = _TRAIN.replace(
    "torch.manual_seed(0)",
    "import torch.distributed as dist\ndist.init_process_group('gloo')\ntorch.manual_seed(0)",
).replace("MODEL", "torch.nn.parallel.DistributedDataParallel")


@dataclass(frozen=True)
class Case:
    """A run and how it ends.

    Args:
        kind: serial or native (scripts), train or verify.
        end: what the script does, or the name of a signal.
        target: which processes the signal is sent to: launcher, rank or all.
    """

    kind: str
    end: str
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.end} {self.target}".strip()


@dataclass(frozen=True)
class Remains:
    """Remains of a run: numbers of processes, names of segments and of files."""

    processes: list[int]
    segments: list[str]
    files: list[str]

    def __bool__(self) -> bool:
        return bool(self.processes or self.segments or self.files)


SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
SCRIPTED = [
    *(("serial", end) for end in ("_exit", "exit", "fork", "loader", "close")),
    *(("native", end) for end in ("_exit", "exit", "loader", "close")),
]
CASES = [
    *(
        Case(kind, number, target)
        for kind in ("serial", "native")
        for number in SIGNALS
        for target in ("launcher", "rank", "all")
    ),
    *(Case(kind, end) for kind, end in SCRIPTED),
    *(Case("train", number, "launcher") for number in SIGNALS),
    *(Case(kind, "SIGKILL", "all") for kind in ("train", "verify")),
    *(Case("verify", number, "launcher") for number in SIGNALS),
]


def end(case: Case, folder: Path) -> Remains:
    """Have a run end abnormally in a folder, start another command there, and return what remains."""
    folder.mkdir(exist_ok=True)
    # A path as short as users have: multiprocessing's sockets in it must not be too long for the system.
    with tempfile.TemporaryDirectory() as temporary:
        return _end(case, folder, Path(temporary))


def _end(case: Case, folder: Path, temporary: Path) -> Remains:
    script = folder / "script.py"
    script.write_text(NATIVE if case.kind == "native" else SERIAL)
    said = folder / "said.txt"
    said.touch()
    before = {path.name for path in Path("/dev/shm").iterdir()}
    command = start(*_arguments(case, folder), into=said, TMPDIR=str(temporary))
    seen = {command.pid}
    try:
        if case.target:
            _await(lambda: _is_training(case, folder, temporary), command, folder)
            seen |= _session(command.pid)
            for pid in _targets(case, command.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.Signals[case.end])
        deadline = time.monotonic() + DEADLINE_S
        while command.poll() is None and time.monotonic() < deadline:
            seen |= _session(command.pid)
            time.sleep(0.05)
        processes = _await_end(command.pid)
    finally:
        for pid in _session(command.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.wait()
    _next_start(temporary)
    segments = {path.name for path in Path("/dev/shm").iterdir()} - before
    made = re.compile(rf"torch_({'|'.join(map(str, seen))})_")
    files = sorted({path.name for path in temporary.iterdir()} - _CACHES)
    return Remains(processes, sorted(name for name in segments if made.match(name)), files)


def _arguments(case: Case, folder: Path) -> list[object]:
    script, end = folder / "script.py", "endless" if case.target else case.end
    if case.kind == "train":
        return ["train", "digits", "-n", 2, "--epochs", 10_000, "--out", folder / "run"]
    if case.kind == "verify":
        return ["verify", "-n", 2, "--steps", 10_000, script, end]
    return ["run", "-n", 2, script, end]


def _is_training(case: Case, folder: Path, temporary: Path) -> bool:
    if case.kind == "train":
        return (folder / "run" / "metrics.jsonl").exists()
    with suppress(OSError):
        return (folder / "ready").exists() or any(temporary.rglob("ready"))
    return False


def _await(condition: Callable[[], bool], command, folder: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if command.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it does not train\n{(folder / 'said.txt').read_text()}")
        time.sleep(0.02)


def _session(leader: int) -> set[int]:
    """Return the processes of a run: they stay in its session."""
    found = set()
    for process in psutil.process_iter(["status"]):
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def _targets(case: Case, launcher: int) -> list[int]:
    if case.target == "launcher":
        return [launcher]
    ranks = [child.pid for child in psutil.Process(launcher).children()]
    one = min if case.kind == "serial" else max  # the others help it
    return [one(ranks)] if case.target == "rank" else [launcher, *ranks]


def _await_end(leader: int) -> list[int]:
    deadline = time.monotonic() + ENDED_S
    while (left := _session(leader)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(left)


def _next_start(temporary: Path) -> None:
    done = samestep("data", "list", TMPDIR=str(temporary))
    assert done.code == 0, done.err


def main() -> None:
    """Print the remains of each end; exit with 1 if there are any."""
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for number, case in enumerate(CASES):
            folder = Path(name) / str(number)
            folder.mkdir()
            os.chdir(folder)
            left = end(case, folder)
            bad += bool(left)
            print(
                f"{case!s:30s} {len(left.processes)} processes, {len(left.segments)} segments, "
                f"{len(left.files)} files {left or ''}",
                flush=True,
            )
    print(f"{len(CASES)} abnormal ends, {bad} left something")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
