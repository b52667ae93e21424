"""What a person sees while a training runs: a bar on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from samestep.training.evaluate import Score


class Display(Protocol):
    """Shows how a training goes."""

    def __enter__(self) -> "Display":
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""

    def advance(self, *, step: int, loss: float) -> None:
        """Show that `step` steps are done, the last with this loss."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float, seconds: float) -> None:
        """Show the score after an epoch (counted from 1), its mean training loss and its length."""


class Silent:
    """Shows nothing: the display of every rank but the first."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def advance(self, *, step: int, loss: float) -> None:
        """See `Display.advance`."""

    def epoch_done(self, epoch: int, *, score: Score, loss: float, seconds: float) -> None:
        """See `Display.epoch_done`."""


class Spoken:
    """A progress bar where the console is a terminal, and one line per epoch everywhere.

    Args:
        steps: steps of the whole training.
        epochs: epochs of the whole training.
        console: where to show it; stderr, so that stdout stays for results.
    """

    def __init__(self, *, steps: int, epochs: int, console: Console) -> None:
        self._epochs = epochs
        self._console = console
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

    def advance(self, *, step: int, loss: float) -> None:
        """See `Display.advance`."""
        self._bar.update(self._task, completed=step, loss=loss)

    def epoch_done(self, epoch: int, *, score: Score, loss: float, seconds: float) -> None:
        """See `Display.epoch_done`."""
        width = len(str(self._epochs))
        self._console.print(
            f"epoch {epoch:{width}}/{self._epochs}  loss {loss:.4f}  "
            f"test {score.accuracy:.2%} ({score.correct}/{score.total})  {seconds:.1f} s",
            highlight=False,
        )
