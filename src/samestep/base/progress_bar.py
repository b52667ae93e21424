"""Shows a progress bar for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int | None, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar if stderr is a terminal; yield a function to call before each piece of work.

    Args:
        total: pieces of work; None if the number is unknown.
        shown: whether this process shows it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task("", total=total)
        completed = -1

        def begin(what: str) -> None:
            nonlocal completed
            completed += 1
            bar.update(task, completed=completed, description=what)

        yield begin
