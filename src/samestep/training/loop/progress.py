"""Shows the progress of a training: a bar on a terminal, and one line per evaluation."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from samestep.base.step_phases import OF_LOOP, phase_text
from samestep.training.loop.evaluate import Score
from samestep.training.output.step_journal import Window


class Display:
    """Shows the progress of a training; this one shows nothing, on every rank but the first."""

    def __enter__(self) -> "Display":
        """Start the display."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the display and restore the terminal."""

    def advance(self, window: Window) -> None:
        """Show that the steps of a window are done; it has at least one."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """Show the score after an epoch, counted from 1, and the mean loss since the last evaluation."""

    def note(self, text: str) -> None:
        """Print one line."""


class ConsoleDisplay(Display):
    """A progress bar if the console is a terminal, and one line per evaluation.

    The console is on stderr, because stdout is for results. With `per_rank`, a line for each worker follows.
    With `print_every`, every step whose number it divides has a line.
    """

    def __init__(
        self,
        *,
        steps: int,
        epochs: int,
        console: Console,
        per_rank: bool = False,
        print_every: int | None = None,
    ) -> None:
        self._steps, self._epochs, self._print_every = steps, epochs, print_every
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

    def advance(self, window: Window) -> None:
        """See `Display.advance`."""
        last = window.rows[-1]
        self._bar.update(self._task, completed=last["step"], loss=last["loss"])
        for row in window.rows:
            if self._print_every is not None and row["step"] % self._print_every == 0:
                self.note(f"step {row['step']}/{self._steps}, epoch {row['epoch']}: loss {row['loss']:.4f}")
        if self._per_rank:
            self._ranks = self._ranks or [_RankSums() for _ in window.ranks]
            for sums, row in zip(self._ranks, window.ranks, strict=True):
                sums.add(row)

    def epoch_done(self, epoch: int, *, score: Score, loss: float | None, seconds: float) -> None:
        """See `Display.epoch_done`."""
        width = len(str(self._epochs))
        train_loss = "" if loss is None else f"  loss {loss:.4f}"
        figures = "".join(f"  {name} {value:.4g}" for name, value in score.metrics.items())
        self.note(
            f"epoch {epoch:{width}}/{self._epochs}{train_loss}  "
            f"test {score.accuracy:.2%} ({score.correct}/{score.total}){figures}  {seconds:.1f} s, "
            f"evaluation {score.seconds:.1f} s"
        )
        for rank, (sums, (right, count)) in enumerate(zip(self._ranks, score.ranks, strict=False)):
            self.note(f"  rank {rank}: {sums}, test {right}/{count} right, {sums.speed}")
        self._ranks = []

    def note(self, text: str) -> None:
        """See `Display.note`."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _RankSums:
    """Sums of one rank's steps, samples and times since the last evaluation."""

    def __init__(self) -> None:
        self._steps = 0
        self._samples = 0.0
        self._loss_sum = 0.0
        self._seconds = dict.fromkeys(OF_LOOP, 0.0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a window of steps, given as a row of `Sink.ranks`."""
        steps = row["steps"]
        lengths = {name: row[name] * steps for name in OF_LOOP}
        self._steps += steps
        samples = row["samples_per_second"] * sum(lengths.values())
        self._samples += samples
        self._loss_sum += (row["loss"] or 0.0) * samples
        for name, seconds in lengths.items():
            self._seconds[name] += seconds

    def __str__(self) -> str:
        return f"loss {self._loss_sum / self._samples:.4f}" if self._samples else "no training sample"

    @property
    def speed(self) -> str:
        """Samples per second, time of a step and the shares of its phases, as text."""
        total_s = sum(self._seconds.values())
        parts = ", ".join(
            f"{phase_text(name)} {seconds / total_s:.0%}" for name, seconds in self._seconds.items()
        )
        step_ms = total_s / self._steps * 1e3
        return f"{self._samples / total_s:,.0f} samples/s, a step takes {step_ms:.2f} ms: {parts}"
