"""Finds calls of modules that a CUDA graph captures: it would contain the collectives of a split call."""

import torch
from torch import nn

from samestep.base.errors import UsageError

CAPTURED = "a CUDA graph captures it"


def graph_obstacle(module: nn.Module) -> str | None:
    """Return why a call within a capture is unsplit; None elsewhere.

    Raises:
        UsageError: the call has gradients, whose averages the graph cannot contain.
    """
    is_open = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not (is_open and torch.cuda.is_current_stream_capturing()):
        return None
    if torch.is_grad_enabled():
        raise UsageError(
            f"a CUDA graph captures a call of {type(module).__name__} with gradients, which cannot be split "
            "across workers. Run the script with -n 1, or without its CUDA graphs."
        )
    return CAPTURED
