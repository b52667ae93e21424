"""Gradients of everything that split calls compute with, averaged at the end of each outermost backward."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.collectives.by_algorithm import works_beside
from samestep.replicas.bucketed import Bucketed
from samestep.replicas.fingerprint import check_alike
from samestep.replicas.plan import MEBIBYTE
from samestep.replicas.synchroniser import Job, Synchroniser
from samestep.world.world import World


class Gradients:
    """Follows parameters, and leaves each with the gradient of the whole batch.

    Args:
        world: the ranks; its all-reduces carry the gradients.
        check_every: after how many exchanges replicas are compared; 0 is never.
    """

    def __init__(self, world: World, *, check_every: int = 100) -> None:
        self._world = world
        self._check_every = check_every
        self._followed: dict[int, Tensor] = {}
        """By id, which is theirs as long as they are kept here."""
        self._synchronisers: list[Synchroniser] = []
        self._exchanges = 0

    def follow(self, tensors: Iterable[Tensor], *, may_overlap: bool = False) -> None:
        """Average the gradients of these as well, from the next backward on; called alike on all ranks.

        Args:
            tensors: parameters, and whatever else a backward accumulates gradients in.
            may_overlap: whether gradients may leave while backward still computes: where it has no
                exchanges of its own.

        Raises:
            OutOfStep: they are not equal on all ranks.
        """
        new = {id(tensor): tensor for tensor in tensors if _can_learn(tensor)}
        new = {key: tensor for key, tensor in new.items() if key not in self._followed}
        if not new:
            return
        named = {f"parameter {len(self._followed) + i}": tensor for i, tensor in enumerate(new.values())}
        self._followed |= new
        check_alike(self._world, named)
        job = Job(
            world=self._world,
            model=ref(nn.Module()),
            parameters=named,
            statistics=(),
            bucket_bytes=25 * MEBIBYTE,
            may_overlap=may_overlap and works_beside(self._world),
            exchanged=self._exchanged,
        )
        synchroniser = Bucketed(job)
        synchroniser.attach()
        self._synchronisers.append(synchroniser)

    def follows(self, tensor: Tensor) -> bool:
        """Return whether the gradients of `tensor` are averaged."""
        return id(tensor) in self._followed

    def average(self, gradients: Sequence[Tensor | None]) -> None:
        """Average gradients that did not go to their parameters, in place."""
        for gradient in gradients:
            if gradient is not None:
                self._world.all_reduce(gradient)
                gradient.div_(self._world.place.size)

    def detach(self) -> None:
        """Follow nothing any more."""
        while self._synchronisers:
            self._synchronisers.pop().detach()

    def _exchanged(self) -> None:
        self._exchanges += 1
        if self._check_every and self._exchanges % self._check_every == 0:
            named = {f"parameter {i}": tensor for i, tensor in enumerate(self._followed.values())}
            check_alike(self._world, named)


def _can_learn(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def leaves_of(*outputs: Tensor) -> list[Tensor]:
    """Return the tensors at the end of the graphs of `outputs`, whose gradients a backward accumulates."""
    found: dict[int, Tensor] = {}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        for one, _ in node.next_functions:
            if one is not None and one not in seen:
                seen.add(one)
                waiting.append(one)
    return list(found.values())


@contextmanager
def averaging_grad(of: Callable[[], Gradients | None]) -> Iterator[None]:
    """Have `torch.autograd.grad` return averages where it is asked for gradients of parameters.

    Args:
        of: returns whose parameters, on the calling rank.
    """
    original = torch.autograd.grad

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)  # it may be a generator
        found = original(outputs, asked, *args, **kwargs)
        gradients = of()
        if gradients is None:
            return found
        own = [one for one, tensor in zip(found, asked, strict=False) if gradients.follows(tensor)]
        if own and any(one is not None and one.requires_grad for one in own):
            raise UsageError(
                "torch.autograd.grad(..., create_graph=True) of a model's parameters cannot be shared out: "
                "the penalty it is for would be that of each worker's slice. Run this script with -n 1."
            )
        gradients.average(own)
        return found

    torch.autograd.grad = grad
    try:
        yield
    finally:
        torch.autograd.grad = original
