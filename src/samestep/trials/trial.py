"""One run of a study as a value, how it went, and who runs it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from samestep.base.units import counted
from samestep.trials.load import Load

Mode: TypeAlias = Literal["strong", "weak"]

SAMESTEP = "samestep"
"""The launcher that is samestep itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run.

    Args:
        number: which one of the study, in the order of the runs.
        workers: in total.
        nodes: on how many; as many workers on each.
        modes: what was asked for: the global batch stays (strong) or a worker's does (weak). At the smallest
            number of workers it is both.
        variant: which of the things compared; empty for none.
        also: others that this run counts for too, since on one worker they are the same.
        launcher: who is to start the workers; empty for whoever does where the run is.
        repeat: the round.
        command: the words behind ``samestep``, without ``-n``.
        environment: what is added to this process's variables.
        folder: an absolute path, for all that the run leaves.
    """

    number: int
    workers: int
    nodes: int = 1
    modes: tuple[Mode, ...]
    variant: str = ""
    also: tuple[str, ...] = ()
    launcher: str = ""
    repeat: int = 0
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path

    @property
    def clock(self) -> Path:
        """The folder of its rank files."""
        return self.folder / "clock"

    @property
    def scratch(self) -> Path:
        """The folder of what the script writes, which nobody keeps."""
        return self.folder / "scratch"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / "log.txt"

    @property
    def case(self) -> tuple[int, str, tuple[str, ...]]:
        """What its repeats have in common with it: workers, variant, command but for folders."""
        return self.workers, self.variant, self.modes

    def started(self, python: str) -> list[str]:
        """Return the command that starts the workers and waits for them."""
        verb, *rest = self.command
        return [python, "-m", "samestep", verb, "-n", str(self.workers), *rest]

    def as_task(self, python: str) -> list[str]:
        """Return the command of each task where another launcher starts the workers."""
        return [python, "-m", "samestep", *self.command]

    def in_words(self) -> str:
        """Return what it is, in a few words.

        >>> Trial(number=0, workers=2, modes=("strong",), variant="sync=flat", repeat=1, command=("run",),
        ...       folder=Path("/")).in_words()
        '2 workers, sync=flat, round 2'
        """
        workers = counted(self.workers, "worker")
        mode = "weak" if self.modes == ("weak",) else ""
        of_all = [name.split() for name in self.also]
        variant = " ".join(word for word in self.variant.split() if all(word in words for words in of_all))
        return ", ".join(part for part in (workers, mode, variant, f"round {self.repeat + 1}") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run went.

    Args:
        trial: the run.
        exit_code: of its launcher; None where it was never started.
        error: why it gave nothing, in one line; empty where it did.
        samples_per_second: what was measured; 0 where it gave nothing.
        seconds: it took, with its start and end; None where nobody saw both.
        others: what other programs did before it; None where nobody looked.
    """

    trial: Trial
    exit_code: int | None = 0
    error: str = ""
    samples_per_second: float = 0.0
    seconds: float | None = None
    others: Load | None = None


Told: TypeAlias = Callable[[str], None]
"""Takes what is begun, in words."""


class Runner(Protocol):
    """Runs trials somewhere."""

    def run(self, trials: Sequence[Trial], told: Told) -> Iterator[Outcome]:
        """Run trials and yield how each went, as it ends; what an earlier end leaves out is not yielded.

        Args:
            trials: in the order in which they are to run where they run one after another.
            told: before each.

        Raises:
            UsageError: they cannot be run here, or not as they are called; nothing was measured.
            KeyboardInterrupt: somebody ended it; no process is left.
        """
