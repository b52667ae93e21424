"""Runs scripts without the care that a CUDA device needs, to show that the strict device notices."""

from collections.abc import Callable, Mapping

import pytest
import torch

from samestep.autopilot.equivalence import positions
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.parallel.gradients import batch_norm
from support.script_runner import run_script


def filling_indices(patch):
    """Fill inputs that are indices, too, and compare no position with its range."""
    patch.setattr(positions, "positions_in", lambda *_: [])


def undefined_statistics(patch):
    """Pass no saved statistics to the backward kernel of batch norm."""

    def own_sums(grad, batch, statistics, eps):
        mean, var, _ = statistics
        _, by_xhat, plain = torch.ops.aten.native_batch_norm_backward(
            grad, batch, None, mean, var, None, None, False, eps, [False, True, True]
        )
        return by_xhat, plain

    patch.setattr(batch_norm, "_own_sums", own_sums)


def views_as_slices(patch):
    """Give a module views of the whole batch."""

    def view(split, whole, dim, *, every=1):
        return whole.narrow(dim, split.start * every, split.local * every)

    patch.setattr(BatchSplit, "sliced", view)


CARELESS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    function.__name__: function for function in (filling_indices, undefined_statistics, views_as_slices)
}


def run_careless(world, how, *args):
    """Run a script without one kind of care; return what `run_script` does, or the error of a lost device."""
    with pytest.MonkeyPatch.context() as patch:
        CARELESS[how](patch)
        try:
            return run_script(world, *args)
        except getattr(torch, "AcceleratorError", RuntimeError) as error:  # of a device that is lost
            return "", [], str(error)
