"""What torch's DistributedDataParallel does for its exchange within backward, on the thread of the script.

A hook of its own on each parameter copies the gradient into a bucket, and starts the exchange of one that is
full::

    gradient accumulated | post-accumulate-grad hooks, ours the last | the node's hooks: DDP's, then ours |
                                                                     ^ begins                        ends ^
"""

from collections.abc import Callable
from typing import Any

from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

LEAST_ELEMENTS = 65_536
"""Of a parameter that is timed: two calls of Python cost less than 1 % of what its gradient takes."""


def time_copies(
    model: DistributedDataParallel, begin: Callable[..., None], end: Callable[..., None]
) -> list[RemovableHandle]:
    """Have `begin` and `end` called around what DDP does with each large gradient.

    Args:
        model: whose hooks are registered already, so that those of this function come after them.
        begin: called before, with whatever such a hook is given.
        end: called after.

    Returns:
        what takes that back.
    """
    handles: list[Any] = []
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.numel() >= LEAST_ELEMENTS:
            handles += (
                parameter.register_post_accumulate_grad_hook(begin),  # type: ignore[no-untyped-call]
                get_gradient_edge(parameter).node.register_hook(end),
            )
    return handles
