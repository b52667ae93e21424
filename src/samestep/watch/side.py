"""A process group beside the script's own, over which its ranks are compared without disturbing it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

T = TypeVar("T")
NAME = "samestep --sanitize"


class Side:
    """The group beside the default one, as long as there is one."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def size(self) -> int:
        """Ranks that can be compared; 1 while there is no group."""
        return int(c10d.get_world_size(self._group)) if self._is_up else 1

    @property
    def rank(self) -> int:
        """Of this process."""
        return int(c10d.get_rank(self._group)) if self._is_up else 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        c10d.all_gather_object(values, value, group=self._group)
        return values

    def open(self) -> None:
        """Make the group; called by all ranks when the default one is up."""
        self._group = c10d.new_group(backend="gloo", group_desc=NAME)

    def close(self) -> None:
        """Compare no more."""
        if self._is_up:
            with suppress(Exception):  # another rank may have gone
                c10d.destroy_process_group(self._group)
        self._group = None

    @property
    def _is_up(self) -> bool:
        return self._group is not None and bool(c10d.is_initialized())


@contextmanager
def beside(side: Side) -> Iterator[None]:
    """Within, `side` is opened with the default group, and closed at the end."""
    if c10d.is_initialized():
        side.open()
    began = c10d.init_process_group

    @wraps(began)
    def begin(*args: Any, **kwargs: Any) -> None:
        began(*args, **kwargs)
        side.open()

    with _in_both(begin):
        try:
            yield
        finally:
            side.close()


@contextmanager
def _in_both(begin: Callable[..., None]) -> Iterator[None]:
    with patch.object(c10d, "init_process_group", begin), patch.object(dist, "init_process_group", begin):
        yield
