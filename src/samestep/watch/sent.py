"""How many bytes of gradients a worker gives to the exchange in a step: what its cost is told by."""

from collections.abc import Iterable

from samestep.watch.models import Replica


class Sent:
    """Counts the gradients of the step under way, as large as they travel.

    Those of a replica are exchanged in the first backward after it was called, once however often it was;
    those of a synchroniser when it says so.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._is_known = True
        self._called: set[Replica] = set()
        """Those whose gradients the next backward exchanges."""

    def called(self, replicas: Iterable[Replica]) -> None:
        """Note a call of training."""
        self._called.update(replicas)

    def differentiated(self) -> None:
        """Note that a backward begins."""
        for replica in self._called:
            self.finished(replica.gradient_bytes)
        self._called.clear()

    def finished(self, size: int | None) -> None:
        """Note an exchange of so many bytes; None where nobody can say."""
        self._is_known &= size is not None
        self._bytes = (self._bytes or 0) + (size or 0)

    def take(self) -> int | None:
        """Return the bytes of the step that ends; None where there were none, or nobody can say."""
        found, is_known = self._bytes, self._is_known
        self._bytes, self._is_known = None, True
        return found if is_known else None
