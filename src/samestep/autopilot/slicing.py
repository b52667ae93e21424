"""``--split loader``: the script's loop runs on this rank's slice of each batch.

Nothing is gathered. What the script has to be told is the loss of the whole batch, and what its gradient
weighs; both follow from how the loss was reduced (`reduction`), at the moment backward is called::

    this rank      loss = mean over 3 of 5 samples            gradient times 2 * 3/5, then averaged
    the other      loss = mean over 2 of 5 samples            gradient times 2 * 2/5, then averaged
    both           loss.data = mean over 5 samples            once backward is through

A pass in evaluation, without gradients or with all models in ``eval()`` as it begins, reads whole batches.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from samestep.autopilot.account import Account, calling_site
from samestep.autopilot.cut import Cut
from samestep.autopilot.draws import GlobalDraws
from samestep.autopilot.options import Options
from samestep.autopilot.reduction import Reduction, reduction_of
from samestep.autopilot.slice_call import Forward, as_slice
from samestep.base.errors import UsageError
from samestep.world.world import World

_INSTEAD = "Run it with --split call, which needs not to understand that."


class Slicing:
    """The slices that one rank's script has been given.

    Args:
        world: the ranks.
        account: told of each sliced call.
        options: how slices are normalised, and drawn for.
    """

    def __init__(self, world: World, account: Account, options: Options) -> None:
        self._world, self._account, self._options = world, account, options
        self.cut: Cut | None = None
        """Of the batch the script was given last; None where it has the whole of it."""
        self._models: WeakSet[nn.Module] = WeakSet()
        self._draws: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._stream = torch.get_rng_state()
        self.backwards = 0
        """Backwards from losses of slices, so far."""

    def begins(self) -> bool:
        """Return whether the pass that begins now is training, whose batches are sliced."""
        self.cut = None
        is_evaluating = len(self._models) > 0 and not any(model.training for model in self._models)
        if is_evaluating or not torch.is_grad_enabled():
            return False
        self._account.note_exception(
            "losses are those of whole batches once backward is called; what else the script computes of a "
            "batch in training is of its worker's slice (--split loader)"
        )
        return True

    def gives(self, total: int | None) -> None:
        """Note that the script gets its slice of a batch of `total` samples next, or a whole one."""
        self.cut = None if total is None else Cut(self._world, total)
        self._stream = torch.get_rng_state()

    def ends(self, site: str, backwards: int) -> None:
        """End a sliced pass that began after so many backwards.

        Raises:
            UsageError: nothing was learnt in it.
        """
        self.cut = None
        if self.backwards == backwards:
            raise UsageError(
                f"the pass over the loader at {site} ended without a backward: its batches were slices, and "
                "what the script has counted is this worker's. Call torch.no_grad() or model.eval() before a "
                "loop that evaluates, or run with --split call."
            )

    def call(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module on a slice."""
        assert self.cut is not None
        self._refuse_draws()
        self._models.add(module)
        self._account.split[f"{type(module).__name__} at {calling_site()}"] += 1
        is_known = module in self._draws
        draws = self._draws.get(module, True)
        mode = GlobalDraws(self.cut) if draws else None
        with as_slice(self.cut, mode, self._options):
            outputs = forward(module, *args, **kwargs)
        if mode is not None and mode.unknown:
            raise UsageError(
                f"{type(module).__name__} draws by its values ({', '.join(mode.unknown)}). {_INSTEAD}"
            )
        drew = not torch.equal(self._stream, torch.get_rng_state())
        if drew and not draws:
            raise UsageError(f"{type(module).__name__} draws in some of its calls only. {_INSTEAD}")
        if not is_known:
            self._draws[module] = drew
        self._stream = torch.get_rng_state()
        return outputs

    def weights(self, roots: Sequence[Tensor], given: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Return what the gradients of these losses weigh on this rank, and the losses of the whole batch."""
        assert self.cut is not None
        self._refuse_draws()
        found = [self._reduction(root) for root in roots]
        if given is not None:
            raise UsageError(f"backward at {calling_site()} is given gradients of its own. {_INSTEAD}")
        sums = torch.tensor(
            [_weighed(float(root.detach()), one) for root, one in zip(roots, found, strict=True)]
            + [one.weight for one in found],
            dtype=torch.float64,
            device=self._world.device,
        )
        self._world.all_reduce(sums)
        values, totals = sums.chunk(2)
        size = self._world.place.size
        factors: list[Tensor] = []
        losses: list[Tensor] = []
        for root, one, value, total in zip(roots, found, values, totals, strict=True):
            if one.kind == "sum":
                factor, loss = float(size), value
            else:  # of nothing, on any rank, it is NaN, and its gradient zeros
                factor = size * one.weight / float(total) if total else 1.0
                loss = value / total
            factors.append(torch.full_like(root, factor))
            losses.append(loss.to(root.dtype).reshape(root.shape))
        self.backwards += 1
        return factors, losses

    def _reduction(self, root: Tensor) -> Reduction:
        found = reduction_of(root) if root.numel() == 1 else None
        if found is None or found.others:
            raise UsageError(
                f"--split loader cannot tell from the graph of the loss at {calling_site()} how it was "
                f"reduced over the samples, and so not what it is over all of them. {_INSTEAD}"
            )
        return found

    def _refuse_draws(self) -> None:
        if not torch.equal(self._stream, torch.get_rng_state()):
            raise UsageError(
                f"the script draws random numbers for its slice (before {calling_site()}), which are not "
                f"those of the whole batch. {_INSTEAD}"
            )


def _weighed(value: float, one: Reduction) -> float:
    """Return this rank's part of a sum of losses; a mean over nothing is none."""
    return value * one.weight if one.weight else 0.0


@contextmanager
def losses_of_slices(slicing: Slicing) -> Iterator[None]:
    """Have each backward from the losses of a slice weigh them, and leave those of the whole batch."""
    backward, grad = torch.autograd.backward, torch.autograd.grad
    inside = False

    @functools.wraps(backward)
    def weighed(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if slicing.cut is None or inside:
            return backward(tensors, grad_tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        factors, losses = slicing.weights(roots, grad_tensors)
        inside = True
        try:
            backward(roots, factors, *args, **kwargs)
        finally:
            inside = False
        for root, loss in zip(roots, losses, strict=True):
            root.data = loss  # another tensor: the graph may be gone through again
        return None

    @functools.wraps(grad)
    def refused(*args: Any, **kwargs: Any) -> Any:
        if slicing.cut is not None:
            raise UsageError(f"torch.autograd.grad at {calling_site()} is of a slice. {_INSTEAD}")
        return grad(*args, **kwargs)

    torch.autograd.backward, torch.autograd.grad = weighed, refused
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad
