"""Creates a second process group, over which a script's ranks are compared without disturbing the script."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from torch.distributed import distributed_c10d as c10d

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

T = TypeVar("T")
NAME = "samestep --sanitize"


class SideGroup:
    """A second group with the ranks of the default group."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def size(self) -> int:
        """Number of ranks in the group; 1 while there is no group."""
        return int(c10d.get_world_size(self._group)) if self._is_up else 1

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return int(c10d.get_rank(self._group)) if self._is_up else 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        c10d.all_gather_object(values, value, group=self._group)
        return values

    def open(self) -> None:
        """Create the group; all ranks call this after creating the default group."""
        self._group = c10d.new_group(backend="gloo", group_desc=NAME)

    def close(self) -> None:
        """Destroy the group."""
        if self._is_up:
            with suppress(Exception):  # another rank may have ended
                c10d.destroy_process_group(self._group)
        self._group = None

    @property
    def _is_up(self) -> bool:
        return self._group is not None and bool(c10d.is_initialized())


@contextmanager
def opened_with_default(side: SideGroup) -> Iterator[None]:
    """Open `side` when the default group is created inside the block, and close it at the end."""
    if c10d.is_initialized():
        side.open()

    def begin(began: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        began(*args, **kwargs)
        side.open()

    hooks = {declarations.SIDE_GROUP: wrapping(begin), declarations.SIDE_GROUP_PUBLIC: wrapping(begin)}
    with attached_all(hooks):
        try:
            yield
        finally:
            side.close()
