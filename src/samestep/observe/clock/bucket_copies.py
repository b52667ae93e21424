"""Times the copies of gradients into buckets that DistributedDataParallel makes inside backward.

DDP has a hook on each parameter, which copies the gradient into a bucket and starts the all-reduce of a full
bucket, on the script's own thread::

    gradient accumulated | post-accumulate-grad hooks, ours the last | the node's hooks: DDP's, then ours |
                                                                     ^ begins                        ends ^
"""

from collections.abc import Callable
from typing import Any

from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

MIN_ELEMENTS = 65_536
"""Smallest parameter that is timed: below, two Python calls cost more than 1 % of its gradient's time."""


def time_copies(
    model: DistributedDataParallel, begin: Callable[..., None], end: Callable[..., None]
) -> list[RemovableHandle]:
    """Call `begin` and `end` around what DDP does with each large gradient.

    Args:
        model: a model whose own hooks are registered already, so that these hooks run after them.
        begin: called before, with the arguments of such a hook.
        end: called after.

    Returns:
        the handles that remove the hooks.
    """
    handles: list[Any] = []
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.numel() >= MIN_ELEMENTS:
            handles += (
                parameter.register_post_accumulate_grad_hook(begin),  # type: ignore[no-untyped-call]
                get_gradient_edge(parameter).node.register_hook(end),
            )
    return handles
