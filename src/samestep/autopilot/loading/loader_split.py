"""Implements ``--split loader``: the script's loop runs on this rank's slice of each batch.

Outputs are not gathered. When the script calls backward, the loss gets the value of the whole batch, and its
gradient is weighted; both follow from the reduction of the loss (`reduction`)::

    this rank      loss = mean over 3 of 5 samples            gradient times 2 * 3/5, then averaged
    the other      loss = mean over 2 of 5 samples            gradient times 2 * 2/5, then averaged
    both           loss.data = mean over 5 samples            after backward

A pass that begins without gradients, or with all models in ``eval()``, reads whole batches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from samestep.autopilot.script.call_account import Account, calling_site
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.gradients import Gradients
from samestep.autopilot.split.loss_reduction import Reduction, reduction_of
from samestep.autopilot.split.random_draws import GlobalDraws
from samestep.autopilot.split.sharded_autograd import BatchSplit, call_graph
from samestep.autopilot.split.slice_call import Forward, as_slice
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached_all, wrapping
from samestep.ranks.world.protocol import World

_INSTEAD = "Run it with --split call, which supports this."


class Slicing:
    """The slices that one rank's script gets."""

    def __init__(self, world: World, account: Account, options: Options) -> None:
        self._world, self._account, self._options = world, account, options
        self.split: BatchSplit | None = None
        """The division of the script's last batch; None if it got the whole batch."""
        self._models: WeakSet[nn.Module] = WeakSet()
        self._draws: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._stream = RngState.now(world.device)
        self._leaves_vary: bool | None = None  # whether the script creates leaves from a slice
        self.backwards = 0  # the number of backward passes from losses of slices so far

    def begin_pass(self) -> bool:
        """Begin a pass; return whether it is training, whose batches are sliced."""
        self.split = None
        is_evaluating = len(self._models) > 0 and not any(model.training for model in self._models)
        if is_evaluating or not torch.is_grad_enabled():
            return False
        self._account.note_exception(
            "losses are those of whole batches once backward is called; other values that the script "
            "computes from a batch in training are those of its worker's slice (--split loader)"
        )
        return True

    def record_batch(self, total: int | None) -> None:
        """Record the size of the next batch, of which the script gets its slice; None for a whole batch."""
        self.split = None if total is None else BatchSplit(self._world, total)
        self._stream = RngState.now(self._world.device)

    def end_pass(self, site: str, backwards: int) -> None:
        """End a sliced pass; raise `UsageError` if there was no backward in it."""
        self.split = None
        if self.backwards == backwards:
            raise UsageError(
                f"the pass over the loader at {site} ended without a backward, so its values are those of "
                "this worker's slices. Call torch.no_grad() or model.eval() before a loop that evaluates, or "
                "run with --split call."
            )

    def call(self, forward: Forward, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module on a slice."""
        assert self.split is not None
        self._refuse_draws()
        self._models.add(module)
        self._account.split[f"{type(module).__name__} at {calling_site()}"] += 1
        is_known = module in self._draws
        draws = self._draws.get(module, True)
        mode = GlobalDraws(self.split) if draws else None
        with as_slice(self.split, mode, self._options):
            outputs = forward(module, *args, **kwargs)
        if mode is not None and mode.unknown:
            raise UsageError(
                f"{type(module).__name__} draws random numbers that depend on values "
                f"({', '.join(mode.unknown)}). {_INSTEAD}"
            )
        now = RngState.now(self._world.device)
        drew = not self._stream.same_of_torch(now)
        if drew and not draws:
            raise UsageError(
                f"{type(module).__name__} draws random numbers only in some of its calls. {_INSTEAD}"
            )
        if not is_known:
            self._draws[module] = drew
        self._stream = now
        return outputs

    def follow_weights(self, roots: Sequence[Tensor], gradients: Gradients) -> None:
        """Average the gradients of the weights of the script, too, to which a backward leads."""
        self._leaves_vary = gradients.follow_leaves(call_graph(roots).leaves, vary=self._leaves_vary)

    def weights(self, roots: Sequence[Tensor], given: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradient weights of these losses on this rank, and the losses of the whole batch."""
        assert self.split is not None
        self._refuse_draws()
        found = [self._reduction(root) for root in roots]
        if given is not None:
            raise UsageError(f"backward at {calling_site()} has a gradient argument. {_INSTEAD}")
        weights = [one.weight.on(self._world.device) for one in found]  # of shape () each
        values = [root.detach().reshape(()).double() for root in roots]
        # A mean over no samples is NaN, and has no part in the sum.
        own = [(one * by).masked_fill(by == 0, 0.0) for one, by in zip(values, weights, strict=True)]
        sums = torch.stack([*own, *weights])
        self._world.all_reduce(sums)
        size = self._world.place.size
        factors: list[Tensor] = []
        losses: list[Tensor] = []
        for root, one, by, value, total in zip(roots, found, weights, *sums.chunk(2), strict=True):
            if one.kind == "sum":
                factor, loss = torch.full_like(root, float(size)), value
            else:  # without samples on any rank, it is NaN, and its gradient zero
                factor, loss = (size * by / total).masked_fill(total == 0, 1.0), value / total
            factors.append(factor.to(root.dtype).reshape(root.shape))
            losses.append(loss.to(root.dtype).reshape(root.shape))
        self.backwards += 1
        return factors, losses

    def _reduction(self, root: Tensor) -> Reduction:
        found = reduction_of(root) if root.numel() == 1 else None
        if found is None or found.others:
            raise UsageError(
                f"--split loader cannot read from the graph of the loss at {calling_site()} how it was "
                f"reduced over the samples. {_INSTEAD}"
            )
        return found

    def _refuse_draws(self) -> None:
        if not self._stream.same_of_torch(RngState.now(self._world.device)):
            raise UsageError(
                f"the script draws random numbers for its slice (before {calling_site()}), which differ from "
                f"those of the whole batch. {_INSTEAD}"
            )


@contextmanager
def losses_of_slices(slicing: Slicing, gradients: Gradients) -> Iterator[None]:
    """Let each backward weight the losses of a slice, and then set them to those of the whole batch."""
    inside = False

    def weighed(
        backward: Callable[..., None], tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        nonlocal inside
        if slicing.split is None or inside:
            return backward(tensors, grad_tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        factors, losses = slicing.weights(roots, grad_tensors)
        slicing.follow_weights(roots, gradients)
        inside = True
        try:
            backward(roots, factors, *args, **kwargs)
        finally:
            inside = False
        for root, loss in zip(roots, losses, strict=True):
            root.data = loss  # a new tensor, because a second backward may use the graph
        return None

    def refused(grad: Any, *args: Any, **kwargs: Any) -> Any:
        if slicing.split is not None:
            raise UsageError(f"torch.autograd.grad at {calling_site()} is for a slice. {_INSTEAD}")
        return grad(*args, **kwargs)

    hooks = {declarations.WEIGHTED_BACKWARD: wrapping(weighed), declarations.REFUSED_GRAD: wrapping(refused)}
    with attached_all(hooks):
        yield
