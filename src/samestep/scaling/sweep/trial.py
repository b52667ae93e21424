"""Defines a run of a study and the interface that executes runs, and determines the outcome of one.

Before a run, the CPU load of other programs on this host is sampled.
"""

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import Literal, NamedTuple, Protocol, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.machine.description import cpu_share
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import counted, one_line
from samestep.launch.local.failure import follows_from_another
from samestep.scaling.analysis.runs import Run, in_samples, read_ranks, steady_steps
from samestep.scaling.analysis.study import Note

SAMPLE_S = 0.3
"""The duration of a sample; the kernel counts in hundredths of a second."""

# The number of busy processors that is reported, of any number, since a step waits for the slowest.
_MUCH = 0.25
_THIN = 0.1  # the part of a processor that an idle system uses, a little of it on each of many
_WAITS = (3, 4)  # the columns of a processor's line that are idle time: idle, and waiting for a disk
_COUNTED = 8  # the number of columns to read; the later ones are included in them


class Load(NamedTuple):
    """The CPU load of other programs."""

    busy: float  # busy processors
    among: int  # the processors of this process's affinity mask; a CPU quota is not included

    @property
    def is_much(self) -> bool:
        """Whether it is reported."""
        return self.busy >= _MUCH

    def in_words(self) -> str:
        """Return the busy processors and their total number.

        >>> Load(1.234, 2).in_words()
        '1.2 of 2 processors'
        """
        return f"{self.busy:.1f} of {counted(self.among, 'processor')}"


def sample_load(stat: Path = Path("/proc/stat")) -> Load | None:
    """Return the current load of other programs; None if the system has no counters."""
    before = _counts(stat)
    sleep(SAMPLE_S)
    after = _counts(stat)
    allowed = [f"cpu{number}" for number in cpu_share().allowed]
    passed = [
        [now - then for then, now in zip(before[name], after[name], strict=True)]
        for name in allowed
        if name in before and name in after
    ]
    known = [ticks for ticks in passed if sum(ticks) > 0]
    if not known:
        return None
    shares = [1 - sum(ticks[k] for k in _WAITS) / sum(ticks) for ticks in known]
    return Load(sum(share for share in shares if share > _THIN), len(known))


def load_notes(samples: Sequence[Load]) -> Iterator[Note]:
    """Yield a note on the load before each of some runs, if it was large."""
    if any(load.is_much for load in samples):
        least, most, usual = min(samples), max(samples), fmean(load.busy for load in samples)
        ends = "" if f"{least.busy:.1f}" == f"{most.busy:.1f}" else f"{least.busy:.1f} to "
        text = f"Other programs used {ends}{most.in_words()} before the runs, {usual:.1f} on average."
        yield Note("background-load", text)


def _counts(stat: Path) -> Mapping[str, Sequence[int]]:
    """Return the ticks of each processor since its start, by kind."""
    lines = [line.split() for line in text_of(stat).splitlines() if line.startswith("cpu")]
    return {name: [int(ticks) for ticks in counts[:_COUNTED]] for name, *counts in lines}


Mode: TypeAlias = Literal["strong", "weak"]

SAMESTEP = "samestep"
"""The launcher that is samestep itself."""
Report: TypeAlias = Callable[[str], None]
"""Shows a line of progress to the user."""
LATE_S = 5.0
"""The longest time until a file that was written on another node is visible here."""
_REFUSED = "samestep: error: "
# The prefix of a launcher's line, which names the rank that ended but not the reason.
_LAUNCHER = "samestep: "
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")  # the beginning of the last line of a traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run; its number is its position in the study, and its repeat the round, both from 0."""

    number: int
    workers: int
    nodes: int = 1
    # the number of workers whose cores the one worker has, as a process without samestep has all of them; 1
    # for a worker like all others
    cores_of: int = 1
    # the requested modes: a constant global batch (strong) or a constant batch of each worker (weak). The run
    # at the smallest number of workers is in both
    modes: tuple[Mode, ...]
    variant: str = ""
    # other variants that are the same run, because one worker does not communicate
    also: tuple[str, ...] = ()
    launcher: str = ""  # the launcher of the workers; empty for the default
    repeat: int = 0
    command: tuple[str, ...]  # the words after ``samestep``, without ``-n``
    # variables that are added to those of this process
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path  # an absolute path for all files of the run

    @property
    def clock(self) -> Path:
        """The folder of the files of its workers."""
        return self.folder / "clock"

    @property
    def scratch(self) -> Path:
        """The folder of the script's own files, which are deleted after the run."""
        return self.folder / "scratch"

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / "log.txt"

    @property
    def case(self) -> tuple[int, int, str, tuple[str, ...]]:
        """The key that its repeats have in common."""
        return self.workers, self.cores_of, self.variant, self.modes

    def launch_command(self, python: str) -> list[str]:
        """Return the command that starts the workers and waits for them."""
        verb, *rest = self.command
        return [python, "-m", "samestep", verb, "-n", str(self.workers), *rest]

    def task_command(self, python: str) -> list[str]:
        """Return the command of each worker if another launcher starts them."""
        return [python, "-m", "samestep", *self.command]

    def workers_in_words(self) -> str:
        """Return the workers, with their cores if these are those of several."""
        workers = counted(self.workers, "worker")
        return workers if self.cores_of == 1 else f"{workers} with the cores of {self.cores_of}"

    def in_words(self) -> str:
        """Return a short description.

        >>> Trial(number=0, workers=2, modes=("strong",), variant="sync=flat", repeat=1, command=("run",),
        ...       folder=Path("/")).in_words()
        '2 workers, sync=flat, round 2'
        """
        mode = "weak" if self.modes == ("weak",) else ""
        of_all = [name.split() for name in self.also]
        variant = " ".join(word for word in self.variant.split() if all(word in words for words in of_all))
        parts = (self.workers_in_words(), mode, variant, f"round {self.repeat + 1}")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run."""

    trial: Trial
    exit_code: int | None = 0  # of its launcher; None if it was not started
    error: str = ""  # the reason why it has no result, in one line; empty if it has one
    is_late: bool = False  # whether it was ended at its limit of time
    samples_per_second: float = 0.0  # the measured rate; 0 if it has no result
    seconds: float | None = None  # its duration, with start and end of its processes; None if unknown
    background: Load | None = None  # the load of other programs before it; None if it was not sampled


class Runner(Protocol):
    """Executes runs."""

    def run(self, trials: Sequence[Trial], report: Report) -> Iterator[Outcome]:
        """Execute runs and yield the outcome of each, in the order in which they end.

        Runs that are skipped because of an earlier failure have no outcome. The report is called with the
        description of each run.

        Raises:
            UsageError: they cannot be executed here, or have a wrong flag; nothing was measured.
            KeyboardInterrupt: the user ended it; no process is left.
        """


def outcome_of(trial: Trial, exit_code: int) -> Outcome:
    """Return the outcome of a run that has ended with an exit code, in the convention of shells."""
    if exit_code:
        why = _reason(trial) or f"exit code {exit_code}{_signal(exit_code)} without output"
        return Outcome(trial=trial, exit_code=exit_code, error=one_line(why))
    try:
        rate = _measured(trial)
    except UsageError as error:
        return Outcome(trial=trial, error=one_line(str(error)))
    return Outcome(trial=trial, samples_per_second=rate)


def _measured(trial: Trial) -> float:
    """Return the samples per second of a run that ended with exit code 0.

    Raises:
        UsageError: it has none.
    """
    ranks = read_ranks(trial.clock)
    if not any(rank.steps for rank in ranks):
        made, before = max(rank.end.get("made", 0) for rank in ranks), ranks[0].header.get("warm_up", 0)
        raise UsageError(
            f"it ended after {counted(made, 'step')}, and the first {before} (--warm-up) are not measured"
            if made
            else "it has no training step: neither an optimizer step nor a backward"
        )
    recorded = Run(ranks=ranks)
    if recorded.workers != trial.workers:
        raise UsageError(f"{recorded.workers} of {trial.workers} workers took part")
    (run,) = in_samples([recorded])
    return steady_steps(run).samples_per_second


def is_complete(trial: Trial) -> bool:
    """Return whether the files of all workers of a run are complete."""
    try:
        ranks = read_ranks(trial.clock)
    except UsageError:
        return False
    return Run(ranks=ranks).workers == trial.workers and all(rank.end for rank in ranks)


def is_usage_error(outcome: Outcome) -> bool:
    """Return whether a run had wrong arguments: it ended with exit code 2 before its first step."""
    if outcome.exit_code != UsageError.exit_code:
        return False
    with suppress(UsageError):  # a run that ended before its first step can have no file
        return not any(rank.end.get("made", 0) or rank.steps for rank in read_ranks(outcome.trial.clock))
    return True


def _reason(trial: Trial) -> str:
    """Return the error that a worker or the launcher reported; else the last line of output."""
    failed = sorted(_failed(trial.clock), key=lambda error: follows_from_another(error[1], error[2]))
    for rank, kind, message in failed:
        if message or not kind.startswith("exit code"):
            return f"rank {rank}: {kind}: {message}".removesuffix(": ")
    lines = log_lines(trial.log)
    refused = [line for line in lines if line.startswith(_REFUSED)]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    printed = [line for line in lines if not line.startswith(_LAUNCHER)]
    return (refused or raised or printed or lines or [""])[-1].removeprefix(_REFUSED)


def _failed(clock: Path) -> Iterator[tuple[object, str, str]]:
    """Yield rank, kind and message of each error that a worker recorded."""
    with suppress(UsageError):  # a file is missing or damaged
        for rank in read_ranks(clock):
            ended, _, kind = str(rank.end.get("ended", "")).partition(":")
            if ended == "error":
                yield rank.header["rank"], kind.strip(), str(rank.end.get("message", ""))


def log_lines(log: Path) -> list[str]:
    """Return the lines of a log that are not empty, without spaces around them."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()]


def _signal(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""
