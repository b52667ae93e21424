"""Runs a function in workers that are fresh interpreters, if this process cannot be forked into them."""

import multiprocessing.spawn
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from samestep.base.errors import UsageError
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.hosting import leave
from samestep.launch.local.worker_report import Report, Word

_START = "from samestep.launch.local.fresh_interpreter import main; main({payload}, {word})"

Call: TypeAlias = Callable[[Callable[..., Any], Sequence[Any]], Report]


@contextmanager
def fresh_entry(call: Call, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Entry]:
    """Yield an entry that replaces the worker by a fresh interpreter, which runs ``call(fn, args)``.

    Raises:
        UsageError: function or arguments cannot be pickled.
    """
    with tempfile.TemporaryFile() as payload:
        # multiprocessing passes this to a spawned child: path, argv, and how to import __main__ again.
        preparation = multiprocessing.spawn.get_preparation_data("samestep")
        del preparation["authkey"]  # a secret, which cannot be pickled
        try:
            for part in (preparation, (call, fn, args)):
                payload.write(pickle.dumps(part))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"this process cannot be forked (a device is in use, or threads run), and {fn!r} with its "
                f"arguments cannot be pickled for fresh ones: {error}. Use a module's top-level function."
            ) from error
        payload.flush()

        def entry(_start: Start, word: Word) -> Report:
            # Each worker opens the file again, so that it has a separate offset.
            own = os.open(f"/proc/self/fd/{payload.fileno()}", os.O_RDONLY)
            for fd in (own, word.fd):
                os.set_inheritable(fd, True)  # noqa: FBT003 - no keyword there
            os.execv(sys.executable, [sys.executable, "-c", _START.format(payload=own, word=word.fd)])  # noqa: S606

        yield entry


def main(payload: int, word: int) -> None:
    """Run the fresh worker: import the parent's ``__main__``, call the function, report and exit."""
    own = Word.of(word)
    with os.fdopen(payload, "rb") as file:
        multiprocessing.spawn.prepare(pickle.load(file))  # noqa: S301 - our own parent's
        call, fn, args = pickle.load(file)  # noqa: S301
    report: Report = call(fn, args)
    own.send(report)
    leave(report.ending.exit_code)
