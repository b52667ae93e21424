"""Shows a progress bar for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samestep.base.console import is_quiet


@contextmanager
def progress_bar(total: int | None, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar with the time left, if stderr is a terminal.

    It yields a function to call before each piece of work.

    Args:
        total: pieces of work; None if the number is unknown.
        shown: whether this process shows it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = shown and console.is_terminal and not is_quiet()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=total)
        completed = -1

        def begin(what: str) -> None:
            nonlocal completed
            completed += 1
            bar.update(task, completed=completed, description=what)

        yield begin
