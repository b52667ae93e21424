"""Shows the progress of a training: a bar on a terminal, and one line per evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from samestep.base.step_phases import OF_LOOP
from samestep.training.loop.evaluate import Score


class Display:
    """Shows the progress of a training; this one shows nothing, on every rank but the first."""

    def __enter__(self) -> "Display":
        """Start the display."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the display and restore the terminal."""

    def advance(self, *, step: int, loss: float, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Show that `step` steps are done, the last with this loss; `ranks` are those of `Sink.ranks`."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """Show the score after an epoch, counted from 1, and the mean loss since the last evaluation."""

    def note(self, text: str) -> None:
        """Print one line."""


class ConsoleDisplay(Display):
    """A progress bar if the console is a terminal, and one line per evaluation.

    The console is on stderr, because stdout is for results. With `per_rank`, a line for each worker follows.
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

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        train_loss = "" if loss is None else f"  loss {loss:.4f}"
        others = "".join(f"  {name} {value:.4g}" for name, value in score.metrics.items())
        self.note(
            f"epoch {epoch:{width}}/{self._epochs}{train_loss}  "
            f"test {score.accuracy:.2%} ({score.correct}/{score.total}){others}  {seconds:.1f} s"
        )
        for rank, sums in enumerate(self._ranks):
            self.note(f"  rank {rank}: {sums}")
        self._ranks = []

    def note(self, text: str) -> None:
        """See `Display.note`."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _RankSums:
    """Sums of one rank's steps, samples and times since the last evaluation."""

    def __init__(self) -> None:
        self._steps = 0
        self._samples = 0.0
        self._seconds = dict.fromkeys(OF_LOOP, 0.0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a window of steps, given as a row of `Sink.ranks`."""
        steps = row["steps"]
        lengths = {name: row[name] * steps for name in OF_LOOP}
        self._steps += steps
        self._samples += row["samples_per_second"] * sum(lengths.values())
        for name, seconds in lengths.items():
            self._seconds[name] += seconds

    def __str__(self) -> str:
        total_s = sum(self._seconds.values())
        parts = ", ".join(
            f"{name.replace('_', ' ')} {seconds / total_s:.0%}" for name, seconds in self._seconds.items()
        )
        step_ms = total_s / self._steps * 1e3
        return f"{self._samples / total_s:,.0f} samples/s, a step takes {step_ms:.2f} ms: {parts}"
