"""Gradients of everything that split calls compute with, averaged at the end of each outermost backward."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from samestep.base.errors import OutOfStep, UsageError
from samestep.collectives.by_algorithm import works_beside
from samestep.replicas.bucketed import Bucketed
from samestep.replicas.fingerprint import check_alike
from samestep.replicas.plan import MEBIBYTE
from samestep.replicas.synchroniser import Job, Synchroniser
from samestep.world.world import World

_EARLY = (2, 10)
"""Gradient all-reduces after which parameters are compared as well.

What drifts from the first step on is found in the backward pass of the second, before a loss is printed or a
file written that the serial run does not have; the tenth is for what a warm-up hides.
"""


class Gradients:
    """Follows parameters, and leaves each with the gradient of the whole batch.

    Args:
        world: the ranks; its all-reduces carry the gradients.
        check_every: after how many gradient all-reduces parameters are compared between ranks; 0 is never.
    """

    def __init__(self, world: World, *, check_every: int = 100) -> None:
        self._world = world
        self._check_every = check_every
        self._followed: dict[int, Tensor] = {}
        """By id, which is theirs as long as they are kept here."""
        self._names: list[str] = []
        """Of each followed tensor, for messages."""
        self._synchronisers: list[Synchroniser] = []
        self._exchanges = 0

    def follow(
        self, tensors: Iterable[Tensor], *, may_overlap: bool = False, names: Sequence[str] = ()
    ) -> None:
        """Average the gradients of these as well, from the next backward on; called alike on all ranks.

        Args:
            tensors: parameters, and whatever else a backward accumulates gradients in.
            may_overlap: whether gradients may leave while backward still computes: where it has no
                exchanges of its own.
            names: what messages call these tensors; without it they are numbered.

        Raises:
            OutOfStep: they are not equal on all ranks.
        """
        new: dict[int, Tensor] = {}
        named: dict[str, Tensor] = {}
        for tensor, name in zip_longest(list(tensors), names, fillvalue=""):
            if not isinstance(tensor, Tensor) or not _can_learn(tensor) or not tensor.is_leaf:
                continue  # what a tensor is computed from is followed once a call has shown it
            if id(tensor) not in self._followed and id(tensor) not in new:
                number = len(self._followed) + len(new)
                unique = name and name not in self._names and name not in named
                named[name if unique else f"{name or 'parameter'} ({number})"] = tensor
                new[id(tensor)] = tensor
        if not new:
            return
        self._followed |= new
        self._names += named
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
        if not self._check_every:
            return
        if self._exchanges in _EARLY or self._exchanges % self._check_every == 0:
            self.check()

    def check(self) -> None:
        """Compare the parameters between ranks; all ranks call this.

        A script may have given them another type or shape since they were followed, or freed their memory.

        Raises:
            OutOfStep: they differ in type, shape or bits; the same on all ranks.
        """
        named = dict(zip(self._names, self._followed.values(), strict=True))
        forms = self._world.all_gather_objects([(name, _form(tensor)) for name, tensor in named.items()])
        for rank, theirs in enumerate(forms):
            for here, there in zip_longest(forms[0], theirs, fillvalue=("nothing", "")):
                if here != there:
                    raise OutOfStep(
                        f"the parameters differ between ranks: {' '.join(there)} on rank {rank}, "
                        f"{' '.join(here)} on rank 0. A branch of the script depends on something that "
                        "differs between ranks, such as time, a process number or an unordered set."
                    )
        readable = {name: tensor for name, tensor in named.items() if _has_values(tensor)}
        if readable:
            check_alike(self._world, readable)


def _form(tensor: Tensor) -> str:
    values = "" if _has_values(tensor) else ", without values"
    return f"({str(tensor.dtype).removeprefix('torch.')}, {list(tensor.shape)}{values})"


def _has_values(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor are in memory, as a plain array."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        return False
    if not tensor.numel():
        return True
    last = tensor.storage_offset() + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


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
                "torch.autograd.grad(..., create_graph=True) of a model's parameters cannot be split: "
                "the penalty it is for would be that of each worker's slice. Run this script with -n 1."
            )
        gradients.average(own)
        return found

    torch.autograd.grad = grad
    try:
        yield
    finally:
        torch.autograd.grad = original
