"""Defines a run of a study, its outcome, and the interface that executes runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from samestep.base.units import counted
from samestep.studies.scaling.sweep.host_load import Load

Mode: TypeAlias = Literal["strong", "weak"]

SAMESTEP = "samestep"
"""The launcher that is samestep itself."""


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
    samples_per_second: float = 0.0  # the measured rate; 0 if it has no result
    seconds: float | None = None  # its duration, with start and end of its processes; None if unknown
    background: Load | None = None  # the load of other programs before it; None if it was not sampled


Report: TypeAlias = Callable[[str], None]
"""Shows a line of progress to the user."""


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
