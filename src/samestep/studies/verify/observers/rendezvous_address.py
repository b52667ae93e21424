"""Notes a rendezvous address that the script sets itself."""

from collections.abc import Iterator

from samestep.base import env
from samestep.studies.verify.observers.observer import Observer
from samestep.studies.verify.trace import Note

_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


class RendezvousAddress(Observer):
    """Compares the launcher's variables at the begin and at the end of the script."""

    def __init__(self) -> None:
        environment = env.snapshot()
        self._before = {name: environment.get(name) for name in _VARIABLES}

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        environment = env.snapshot()
        changed = {name: environment.get(name) for name in _VARIABLES}
        if all(self._before.values()) and changed != self._before:
            values = ", ".join(f"{name}={value}" for name, value in changed.items() if value is not None)
            yield Note(
                "own-address",
                f"the script replaces the rendezvous address of the launcher: {values}. On several nodes, or "
                "beside another run on this node, the ranks do not find each other. Use "
                "os.environ.setdefault, or leave these variables to the launcher.",
            )
