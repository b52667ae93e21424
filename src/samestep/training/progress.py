"""What a person sees while a training runs: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from samestep.measure.clock import PHASES
from samestep.training.evaluate import Score


class Display(Protocol):
    """Shows how a training goes."""

    def __enter__(self) -> "Display":
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""

    def advance(self, *, step: int, loss: float, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show that `step` steps are done, the last with this loss; `ranks` are those of `Sink.ranks`."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """Show the score after an epoch, counted from 1.

        Args:
            epoch: the last that was trained.
            score: on the test set.
            loss: the mean training loss since the last evaluation.
            seconds: of all training so far.
        """

    def note(self, text: str) -> None:
        """Say something beside."""


class Silent:
    """Shows nothing: the display of every rank but the first."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def advance(self, *, step: int, loss: float, ranks: Sequence[Mapping[str, Any]]) -> None:
        """See `Display.advance`."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """See `Display.epoch_done`."""

    def note(self, text: str) -> None:
        """See `Display.note`."""


class Spoken:
    """A progress bar where the console is a terminal, and one line per evaluation everywhere.

    Args:
        steps: steps of the whole training.
        epochs: epochs of the whole training.
        console: where to show it; stderr, so that stdout stays for results.
        per_rank: whether each evaluation's line is followed by one for each worker.
    """

    def __init__(self, *, steps: int, epochs: int, console: Console, per_rank: bool = False) -> None:
        self._epochs = epochs
        self._console = console
        self._per_rank = per_rank
        self._ranks: list[_RankSums] = []
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=steps, loss=float("nan"))

    def __enter__(self) -> "Spoken":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, *, step: int, loss: float, ranks: Sequence[Mapping[str, Any]]) -> None:
        """See `Display.advance`."""
        self._bar.update(self._task, completed=step, loss=loss)
        if self._per_rank:
            self._ranks = self._ranks or [_RankSums() for _ in ranks]
            for sums, row in zip(self._ranks, ranks, strict=True):
                sums.add(row)

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """See `Display.epoch_done`."""
        width = len(str(self._epochs))
        learnt = "" if loss is None else f"  loss {loss:.4f}"
        others = "".join(f"  {name} {value:.4g}" for name, value in score.metrics.items())
        self.note(
            f"epoch {epoch:{width}}/{self._epochs}{learnt}  "
            f"test {score.accuracy:.2%} ({score.correct}/{score.total}){others}  {seconds:.1f} s"
        )
        for rank, sums in enumerate(self._ranks):
            self.note(f"  rank {rank}: {sums}")
        self._ranks = []

    def note(self, text: str) -> None:
        """See `Display.note`."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _RankSums:
    """One rank's work since the last evaluation."""

    def __init__(self) -> None:
        self._steps = 0
        self._samples = 0.0
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a window of steps; a row of `Sink.ranks`."""
        steps = row["steps"]
        lengths = {name: row[name] * steps for name in PHASES}
        self._steps += steps
        self._samples += row["samples_per_second"] * sum(lengths.values())
        for name, seconds in lengths.items():
            self._seconds[name] += seconds

    def __str__(self) -> str:
        whole = sum(self._seconds.values())
        parts = ", ".join(
            f"{name.replace('_', ' ')} {seconds / whole:.0%}" for name, seconds in self._seconds.items()
        )
        step_ms = whole / self._steps * 1e3
        return f"{self._samples / whole:,.0f} samples/s, a step takes {step_ms:.2f} ms: {parts}"
