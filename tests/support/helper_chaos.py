"""Executes faults in runs of a serial script with helpers: a run goes on, and gives the undisturbed weights.

    python -m support.helper_chaos --faults 60

runs `chaotic_script.py` with a fault at a random moment, each time with another model. It prints the seconds
from the fault to the next completed step, and whether the weights have equal bits: they are equal to rounding
if the main rank has computed rows of a helper. A fault that ends the run must end all of its processes.
"""

import argparse
import getpass
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

import support.chaotic_script as script
from samestep.base import event_record
from support.commands import environment, shared_memory

PATIENCE_S = 60.0
HANG_S = 1.5
STEPS = 40
KINDS = "perceptron", "convolutions", "adversarial", "retained", "evaluated", "interrupted"
_POLL_S = 0.0005
CAUGHT = "SIGINT of a main process that catches it, 5 times"
_SMALL = 1 << 18
"""Bytes that suffice for a file of the script, and not for messages to helpers."""
_PHASES = {
    "a pause": script.PAUSES,
    "a call": script.CALLS,
    "a backward": script.DIFFERENTIATES,
}


class Process(Protocol):
    """A started command."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""


Launch = Callable[[Sequence[str], Path], Process]


def launched(arguments: Sequence[str], into: Path, **changes: str) -> Process:
    """Start ``samestep ARGUMENTS`` in an interpreter of its own, as leader of a session."""
    with into.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "samestep", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment(TMPDIR=str(into.parent), **changes),
            start_new_session=True,
        )


class Run:
    """A run of the script, in a folder of its own.

    Args:
        kind: of the model, see `chaotic_script.py`.
        folder: for its output and its temporary files.
        workers: the number of processes that compute.
        steps: of its training.
        launch: starts samestep with arguments; what it prints is added to a file.
    """

    def __init__(
        self, kind: str, folder: Path, *, workers: int, steps: int = STEPS, launch: Launch = launched
    ) -> None:
        folder.mkdir()
        self.folder, self.workers, self.steps = folder, workers, steps
        self._progress, self._said = folder / "progress", folder / "said"
        self._progress.write_bytes(bytes(script.PROGRESS.size))
        self._said.touch()
        self._segments = shared_memory()
        self.process = launch(
            [
                *("run", "-n", str(workers), "--threads", "1"),
                *("--hang-timeout", str(HANG_S), "--short-calls", "split", script.__file__),
                *(kind, str(steps), str(self._progress), str(folder / "weights")),
            ],
            self._said,
        )

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self._said.read_text()

    @property
    def losses(self) -> list[str]:
        """The lines that the script prints."""
        return [line for line in self.said.splitlines() if line[:1].isdecimal()]

    @property
    def now(self) -> tuple[int, int]:
        """The completed steps, and what it does."""
        found = script.PROGRESS.unpack(self._progress.read_bytes())
        return found[0], found[1]

    @property
    def main(self) -> int:
        """The process that runs the script."""
        return self._children(self.process.pid, 2)[0]

    @property
    def starter(self) -> int:
        """The process that starts the helpers, which the launcher has adopted."""
        return self._children(self.process.pid, 2)[1]

    @property
    def helpers(self) -> list[int]:
        """The helpers that there are, once there are all."""
        return self._children(self.starter, self.workers - 1)

    def _children(self, parent: int, least: int) -> list[int]:
        for _ in self._waiting(f"{least} children of {parent}"):
            with suppress(psutil.NoSuchProcess):
                found = psutil.Process(parent).children()
                if len(found) >= least:
                    return sorted(one.pid for one in found)
        raise Ended

    def await_phase(self, step: int, phase: int) -> None:
        """Return once it has completed `step` steps, and does this.

        Raises:
            Ended: it has ended before.
        """
        for _ in self._waiting(f"phase {phase} of step {step}"):
            now = self.now
            if now[0] >= step and now[1] == phase:
                return
        raise Ended

    def await_step(self, step: int) -> None:
        """Return once it has completed `step` steps, or has ended."""
        for _ in self._waiting(f"step {step}"):
            if self.now[0] >= step:
                return

    def await_end(self) -> int:
        """Return its exit code."""
        for _ in self._waiting("its end"):
            pass
        code = self.process.poll()
        assert code is not None
        return code

    def _waiting(self, what: str) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE_S
        while (self.process.poll() is None and self.now[1] != script.ENDS) or what == "its end":
            if self.process.poll() is not None:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} after {PATIENCE_S:g} s; it printed:\n{self.said}")
            yield
            time.sleep(_POLL_S)

    def processes(self) -> list[int]:
        """Return its processes that run: those of its session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    state, _, _, session = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
                    if int(session) == self.process.pid and state not in "ZX":
                        found.append(int(entry.name))
        return sorted(found)

    def left(self) -> list[str]:
        """Return what remains of it a second after its end: processes, temporary files, shared memory."""
        deadline = time.monotonic() + 1.0
        while (remains := self._remains()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return remains

    def _remains(self) -> list[str]:
        own = {"progress", "said", "weights", f"torchinductor_{getpass.getuser()}"}  # the last is torch's
        if self.process.poll():  # the records of its last events
            own.add(event_record.folder().name)
        files = [_described(file) for file in self.folder.iterdir() if file.name not in own]
        if self.process.poll() in (-signal.SIGKILL, -signal.SIGQUIT):  # the next command deletes it
            files = [one for one in files if not one.startswith("samestep-")]
        segments = [name for name in shared_memory() - self._segments if _is_of_ended_process(name)]
        return [*map(str, self.processes()), *files, *sorted(segments)]

    def weights(self) -> list[torch.Tensor]:
        """Return the weights that it has written."""
        return torch.load(self.folder / "weights", weights_only=True)

    def end(self) -> None:
        """Kill all of its processes."""
        while left := self.processes():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)
        self.process.poll()


def _is_of_ended_process(segment: str) -> bool:
    """Return whether torch made a segment in a process that has ended: other tests have files there, too."""
    maker = re.match(r"torch_(\d+)_", segment)
    return maker is not None and not Path(f"/proc/{maker[1]}").exists()


def _described(file: Path) -> str:
    """Return the name of a file, and its size and first bytes, or the names in a folder."""
    try:
        if file.is_dir():
            return f"{file.name} with {sorted(found.name for found in file.iterdir())}"
        return f"{file.name} of {file.lstat().st_size} bytes, {file.read_bytes()[:200]!r}"
    except OSError as error:  # it has gone meanwhile, or is a socket or a link to nothing
        return f"{file.name}: {error}"


class Ended(Exception):
    """A run has ended before a fault could strike."""


@dataclass(frozen=True)
class Moment:
    """When a fault strikes: in a phase of the first step from `step` on."""

    step: int
    phase: str

    def await_it(self, run: Run) -> None:
        """Return when it has come."""
        if self.phase == "its start":
            run._children(run.starter, 1)
        elif self.phase == "a check":
            run.await_phase(0, script.CALLS)
        else:
            run.await_phase(self.step, _PHASES[self.phase])


def drawn_moment(draw: random.Random, fault: str) -> Moment:
    """Return a random moment of a run at which a fault can strike, early enough to strike again."""
    # Without descriptors, the script itself could not begin.
    early = ["its start", "a check"] if fault not in ("no descriptors in the main process", CAUGHT) else []
    phase = draw.choice([*early, *[*_PHASES] * 3])
    return Moment(draw.randrange(1, 4 if "times" in fault else STEPS // 2), phase)


def _to_helper(*numbers: int, all_of_them: bool = False, after_s: float = 0.0) -> Callable[..., None]:
    """Return a fault: signals to a helper, with a pause between them."""

    def strike(run: Run, draw: random.Random) -> None:
        struck = run.helpers if all_of_them else [draw.choice(run.helpers)]
        for place, number in enumerate(numbers):
            if place:
                time.sleep(after_s)
            for helper in struck:
                with suppress(ProcessLookupError):
                    os.kill(helper, number)

    return strike


def _to_starter(*numbers: int, also_helper: bool = False) -> Callable[..., None]:
    def strike(run: Run, _: random.Random) -> None:
        helpers = run.helpers if also_helper else []
        for number in numbers:
            os.kill(run.starter, number)
        for helper in helpers:
            os.kill(helper, signal.SIGKILL)

    return strike


def _again_and_again(run: Run, draw: random.Random) -> None:
    for _ in range(10):
        os.kill(draw.choice(run.helpers), signal.SIGKILL)
        run.await_step(run.now[0] + 1)


def _stopped_main(run: Run, _: random.Random) -> None:
    """Stop the main process for longer than its helpers wait."""
    main = run.main
    os.kill(main, signal.SIGSTOP)
    time.sleep(2 * HANG_S + 0.5)
    os.kill(main, signal.SIGCONT)


def _caught(run: Run, draw: random.Random) -> None:
    """Send Ctrl-C, which the script catches to begin its step again."""
    for _ in range(5):
        run.await_phase(run.now[0], draw.choice([script.CALLS, script.DIFFERENTIATES]))
        time.sleep(draw.random() * script.PACE_S / 2)
        os.kill(run.main, signal.SIGINT)
        run.await_step(run.now[0] + 1)


def _stopped_all(run: Run, _: random.Random) -> None:
    """Stop all processes for longer than they wait for each other, as Ctrl-Z and fg do."""
    for number in signal.SIGSTOP, signal.SIGCONT:
        os.killpg(run.process.pid, number)
        if number == signal.SIGSTOP:
            time.sleep(HANG_S + 0.5)


def _limited_helper(kind: int, limit: int) -> Callable[..., None]:
    """Return a fault: a helper gets no more of a resource."""

    def strike(run: Run, draw: random.Random) -> None:
        resource.prlimit(draw.choice(run.helpers), kind, (limit, limit))

    return strike


def _limited_main(kind: int, limit: Callable[[int], int], seconds: float) -> Callable[..., None]:
    """Return a fault: a helper is lost while the main process gets no more of a resource."""

    def strike(run: Run, draw: random.Random) -> None:
        main = run.main
        before = resource.prlimit(main, kind, (limit(main), resource.prlimit(main, kind)[1]))
        os.kill(draw.choice(run.helpers), signal.SIGKILL)
        if seconds:
            time.sleep(seconds)
            with suppress(ProcessLookupError):
                resource.prlimit(main, kind, before)

    return strike


def _descriptors(process: int) -> int:
    return max(int(one.name) for one in Path(f"/proc/{process}/fd").iterdir()) + 1


FAULTS: Mapping[str, Callable[[Run, random.Random], None]] = {
    "SIGKILL of a helper": _to_helper(signal.SIGKILL),
    "SIGKILL of all helpers": _to_helper(signal.SIGKILL, all_of_them=True),
    "SIGKILL of a helper, 10 times": _again_and_again,
    "SIGTERM of a helper": _to_helper(signal.SIGTERM),
    "SIGSEGV of a helper": _to_helper(signal.SIGSEGV),
    "SIGHUP of a helper": _to_helper(signal.SIGHUP),
    "SIGINT of a helper": _to_helper(signal.SIGINT),
    "SIGSTOP of a helper for a moment": _to_helper(signal.SIGSTOP, signal.SIGCONT, after_s=0.4),
    "SIGSTOP of a helper": _to_helper(signal.SIGSTOP),
    "SIGSTOP of a helper, SIGCONT too late": _to_helper(signal.SIGSTOP, signal.SIGCONT, after_s=HANG_S + 0.2),
    "SIGSTOP of the main process for longer than the limit": _stopped_main,
    "SIGSTOP of all for longer than the limit": _stopped_all,
    CAUGHT: _caught,
    "SIGKILL of the starter": _to_starter(signal.SIGKILL),
    "SIGTERM of the starter": _to_starter(signal.SIGTERM),
    "SIGHUP of the starter": _to_starter(signal.SIGHUP),
    "SIGINT of the starter": _to_starter(signal.SIGINT),
    "SIGSTOP of the starter, SIGKILL of helpers": _to_starter(signal.SIGSTOP, also_helper=True),
    "SIGKILL of the starter and of helpers": _to_starter(signal.SIGKILL, also_helper=True),
    "no memory in a helper": _limited_helper(resource.RLIMIT_AS, 1 << 20),
    "no descriptors in a helper": _limited_helper(resource.RLIMIT_NOFILE, 3),
    "no memory files in the main process": _limited_main(resource.RLIMIT_FSIZE, lambda _: _SMALL, 0),
    "no memory files in the main process for a moment": _limited_main(
        resource.RLIMIT_FSIZE, lambda _: _SMALL, 0.1
    ),
    "no descriptors in the main process": _limited_main(resource.RLIMIT_NOFILE, _descriptors, 0.5),
}
"""Those that a run survives."""
_LOSSLESS = (
    *(f"{name} of {who}" for name in ("SIGINT", "SIGTERM", "SIGHUP") for who in ("a helper", "the starter")),
    "SIGSTOP of a helper for a moment",
    CAUGHT,
)


def _signal_to(role: str, number: int) -> Callable[[Run], None]:
    def strike(run: Run) -> None:
        if role == "group":
            os.killpg(run.process.pid, number)
        else:
            os.kill(run.process.pid if role == "launcher" else run.main, number)

    return strike


ENDINGS: Mapping[str, tuple[Callable[[Run], None], tuple[int, ...]]] = {
    "SIGKILL of the main process": (_signal_to("main", signal.SIGKILL), (137,)),
    "SIGTERM of the main process": (_signal_to("main", signal.SIGTERM), (143,)),
    "SIGINT of the main process": (_signal_to("main", signal.SIGINT), (130,)),
    "SIGKILL of the launcher": (_signal_to("launcher", signal.SIGKILL), (-9,)),
    "SIGTERM of the launcher": (_signal_to("launcher", signal.SIGTERM), (143, -15)),
    "SIGINT of the launcher": (_signal_to("launcher", signal.SIGINT), (130, -2)),
    "SIGHUP of the launcher": (_signal_to("launcher", signal.SIGHUP), (129, -1)),
    "SIGINT of all, as Ctrl-C": (_signal_to("group", signal.SIGINT), (130, -2)),
    "SIGTERM of all": (_signal_to("group", signal.SIGTERM), (143, -15)),
    "SIGHUP of all, as a closed terminal": (_signal_to("group", signal.SIGHUP), (129, -1)),
    "SIGQUIT of all": (_signal_to("group", signal.SIGQUIT), (131, -3)),
}
"""Those that end a run, each with the exit codes that it may have."""


@dataclass
class Outcome:
    """The result of a run with faults."""

    kind: str
    workers: int
    faults: list[str]
    moments: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From each fault to the next completed step."""
    wrong: list[str] = field(default_factory=list)
    difference: float = 0.0
    is_equal: bool = False
    said: str = ""


def survived(run: Run, outcome: Outcome, draw: random.Random, moments: Sequence[Moment]) -> Outcome:
    """Let faults strike a run, which goes on to its end; `wrong` then has what it should not have done."""
    try:
        for fault, moment in zip(outcome.faults, moments, strict=True):
            try:
                moment.await_it(run)
                step, began = run.now[0], time.monotonic()
                outcome.moments.append(f"{moment.phase} {step}")
                FAULTS[fault](run, draw)
            except Ended:
                outcome.wrong.append("over before the fault")
                break
            run.await_step(step + 1)
            outcome.seconds.append(time.monotonic() - began)
        code = run.await_end()
        if code:
            outcome.wrong.append(f"exit code {code}")
        outcome.wrong += [f"left: {one}" for one in run.left()]
    except AssertionError as error:
        outcome.wrong.append(str(error).splitlines()[0])
    finally:
        run.end()
    outcome.said = run.said
    if "Traceback" in outcome.said:
        outcome.wrong.append("a traceback")
    return outcome


def compared(outcome: Outcome, run: Run, whole: Run) -> None:
    """Compare the weights and the losses of a run with those of the undisturbed one."""
    if any(one.startswith(("exit code", "no ")) for one in outcome.wrong):
        return
    pairs = [*zip(run.weights(), whole.weights(), strict=True)]
    outcome.is_equal = all(torch.equal(one, other) for one, other in pairs)
    outcome.difference = max((one - other).abs().max().item() for one, other in pairs)
    if outcome.difference > 1e-9:
        outcome.wrong.append(f"weights differ by {outcome.difference:.1e}")
    if not outcome.is_equal and all(fault in _LOSSLESS for fault in outcome.faults):
        outcome.wrong.append("bits differ")
    losses = [[float(line.split()[1]) for line in one.losses] for one in (run, whole)]
    if len(losses[0]) != len(losses[1]) or any(abs(a - b) > 2e-9 for a, b in zip(*losses, strict=True)):
        outcome.wrong.append("losses differ")


def ended(run: Run, fault: str, moment: Moment) -> Outcome:
    """Let a fault end a run; `wrong` then has what it should not have done."""
    outcome = Outcome("", run.workers, [fault])
    strike, codes = ENDINGS[fault]
    try:
        moment.await_it(run)
        outcome.moments.append(f"{moment.phase} {run.now[0]}")
        began = time.monotonic()
        strike(run)
        code = run.await_end()
        outcome.seconds.append(time.monotonic() - began)
        if code not in codes:
            outcome.wrong.append(f"exit code {code}")
        outcome.wrong += [f"left: {one}" for one in run.left()]
    except Ended:
        outcome.wrong.append("over before the fault")
    except AssertionError as error:
        outcome.wrong.append(str(error).splitlines()[0])
    finally:
        run.end()
    outcome.said = run.said
    return outcome


@contextmanager
def undisturbed(folder: Path, **how: Any) -> Iterator[Callable[[str, int], Run]]:
    """Yield a function that returns the undisturbed run of a kind on a number of workers."""
    known: dict[tuple[str, int], Run] = {}

    def found(kind: str, workers: int) -> Run:
        if (kind, workers) not in known:
            run = Run(kind, folder / f"{kind}-{workers}", workers=workers, **how)
            code = run.await_end()
            assert code == 0, run.said
            known[kind, workers] = run
        return known[kind, workers]

    yield found


def main() -> None:
    """Print the outcome of each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", choices=KINDS)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    names = [one for one in [*FAULTS, *ENDINGS] if asked.only in one]
    faults = [names[number % len(names)] for number in range(asked.faults)]
    draw.shuffle(faults)
    wrong = 0
    with tempfile.TemporaryDirectory() as name, undisturbed(Path(name)) as whole:
        for number, fault in enumerate(faults):
            kind, workers = (
                asked.kind or ("interrupted" if fault == CAUGHT else draw.choice(KINDS)),
                draw.choice([2, 3]),
            )
            calm = whole(kind, workers)
            run = Run(kind, Path(name) / str(number), workers=workers)
            moment = drawn_moment(draw, fault)
            if fault in ENDINGS:
                outcome = ended(run, fault, moment)
            else:
                outcome = survived(run, Outcome(kind, workers, [fault]), draw, [moment])
                compared(outcome, run, calm)
            wrong += bool(outcome.wrong)
            how = "ended" if fault in ENDINGS else "bits" if outcome.is_equal else f"{outcome.difference:.1e}"
            print(
                f"{fault:55s} {kind:12s} {workers} {outcome.moments[0] if outcome.moments else '-':14s} "
                f"{sum(outcome.seconds):5.2f} s {how:8s} {'; '.join(outcome.wrong) or 'right'}",
                flush=True,
            )
            if outcome.wrong:
                print(
                    "\n".join(one for one in outcome.said.splitlines() if not one[:1].isdecimal()), flush=True
                )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
