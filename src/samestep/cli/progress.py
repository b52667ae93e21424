"""A progress bar for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int | None, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar where stderr is a terminal; gives what is told before each piece of work.

    Args:
        total: pieces of work; None where nobody knows.
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
        begun = -1

        def done(what: str) -> None:
            nonlocal begun
            begun += 1
            bar.update(task, completed=begun, description=what)

        yield done
