"""The interface of observers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from samestep.hooks.training_events import Listener, subscribed
from samestep.studies.verify.trace import Note


class Observer(Listener):
    """Receives the events of a script on one rank and returns notes at its end; it changes nothing.

    An observer is precise before it is exhaustive: it returns a note only for what is certainly a mistake.
    """

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Observe the script for the duration of a block."""
        with subscribed(self):
            yield

    def notes(self) -> Iterable[Note]:
        """Return the notes, at the end of the script or after its last step."""
        raise NotImplementedError
