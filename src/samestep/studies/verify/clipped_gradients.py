"""Records the norm of gradients before they are clipped, because clipping hides their scale."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from samestep.hooks import verify_declarations
from samestep.hooks.registry import attached_all, wrapping


@contextmanager
def clipping_recorded(record: Callable[[float], None]) -> Iterator[None]:
    """Call `record` with the norm that each `clip_grad_norm_` of the block returns."""

    def clip(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        total = original(*args, **kwargs)
        if type(total) is Tensor:  # the number of a DTensor is that of one shard
            record(float(total))
        return total

    with attached_all({hook: wrapping(clip) for hook in verify_declarations.NORM_CLIPS}):
        yield
