"""Averages the gradients of all tensors that split calls use, at the end of each top-level backward."""

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from operator import and_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from samestep.autopilot.split.deferred_checks import DeferredChecks
from samestep.autopilot.split.sharded_autograd import uses_split_call
from samestep.autopilot.split.slice_context import before_collective
from samestep.base.context_values import bound
from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping
from samestep.parallel.gradients.bucket_layout import MEBIBYTE
from samestep.parallel.gradients.bucketed import Bucketed
from samestep.parallel.gradients.synchronizer import GradientSynchronizer, SyncConfig
from samestep.parallel.gradients.weight_checksum import check_equal
from samestep.ranks.collectives.algorithms import overlaps_compute
from samestep.ranks.world.protocol import World

_TOGETHER = 25 * MEBIBYTE
"""Bytes of a bucket of gradients that are sent at the end of backward."""
_OVERLAPPING, _BUCKETS = (MEBIBYTE, 8 * MEBIBYTE), 6
"""Least and most bytes of a bucket that is sent within backward, and how many of them there are in between.

The last bucket is sent at the end of backward, so it should be small.
"""
_FEWEST_GROUPS = 16
"""Groups of followed tensors, from which on those that are no longer used are released."""
_EARLY = (2, 10)
"""Gradient all-reduces after which parameters are compared, too.

The second finds a drift that begins in the first step, before a wrong loss is printed or a wrong file is
written; the tenth finds a drift that a warm-up hides.
"""


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors whose gradients are averaged together."""

    named: Mapping[str, Tensor]
    sparse: frozenset[str]
    overlaps: bool


class Gradients:
    """The gradient synchronizer of a script: it averages the gradients of the tensors that it follows.

    Args:
        world: the ranks; its all-reduces carry the gradients.
        check_every: the number of gradient all-reduces between comparisons of parameters across ranks; 0 for
            no comparison.
    """

    def __init__(self, world: World, *, check_every: int = 100) -> None:
        self._world = world
        self._check_every = check_every
        self.deferred = DeferredChecks()
        """The checks of the script's calls that are read later: after each all-reduce, at the latest here."""
        self._followed: dict[int, Tensor] = {}  # by id, which is unique as long as the tensors are kept here
        self._names: list[str] = []  # the names of the followed tensors, for messages
        self._synchronizers: list[GradientSynchronizer] = []
        self._groups: list[_Group] = []  # the tensors of each synchronizer
        self._num_followed = 0  # also those that are no longer followed
        self._all_reduces = 0
        self._release_at = _FEWEST_GROUPS

    def follow(
        self,
        tensors: Iterable[Tensor],
        *,
        may_overlap: bool = False,
        names: Sequence[str] = (),
        sparse: Iterable[Tensor] = (),
    ) -> None:
        """Average the gradients of these tensors too, from the next backward on; all ranks call this equally.

        Args:
            tensors: parameters, and other tensors in which a backward accumulates gradients.
            may_overlap: whether all-reduces may begin within backward, which does not communicate itself.
            names: the names of these tensors in messages; by default they are numbered.
            sparse: those that get sparse gradients.

        Raises:
            OutOfStep: the tensors are not equal on all ranks.
        """
        new: dict[int, Tensor] = {}
        named: dict[str, Tensor] = {}
        sparse_ids = {id(tensor) for tensor in sparse}
        for tensor, name in zip_longest(list(tensors), names, fillvalue=""):
            if not isinstance(tensor, Tensor) or not tensor.is_leaf:
                continue  # its leaves are followed once a call has used them
            if not tensor.is_floating_point() and not tensor.is_complex():
                continue
            if id(tensor) not in self._followed and id(tensor) not in new:
                number = self._num_followed + len(new)
                unique = name and name not in self._names and name not in named
                named[name if unique else f"{name or 'parameter'} ({number})"] = tensor
                new[id(tensor)] = tensor
        if not new:
            return
        self._num_followed += len(new)
        check_equal(self._world, named)
        if len(self._groups) >= self._release_at:
            self._release_unused()
        sparse_names = frozenset(name for name, tensor in named.items() if id(tensor) in sparse_ids)
        self._attach(_Group(named, sparse_names, may_overlap and overlaps_compute(self._world)))

    def _attach(self, group: "_Group") -> None:
        """Average the gradients of a group of tensors from now on."""
        tensors = group.named.values()
        self._followed |= {id(tensor): tensor for tensor in tensors}
        self._names += group.named
        job = SyncConfig(
            world=self._world,
            model=ref(nn.Module()),
            parameters=group.named,
            statistics=(),
            bucket_bytes=_bucket_bytes(tensors) if group.overlaps else _TOGETHER,
            may_overlap=group.overlaps,
            after_sync=self._count_all_reduce,
            sparse=group.sparse,
            has_cpu_tensors=True,
        )
        synchronizer = Bucketed(job)
        synchronizer.attach()
        self._synchronizers.append(synchronizer)
        self._groups.append(group)

    def _release_unused(self) -> None:
        """Stop following the tensors that only this object holds, as of models that a loop makes one by one.

        It lets go of all groups, and follows those again of which a tensor is left on all ranks: in the
        script, in a module or in a graph.
        """
        held = [
            (group.sparse, group.overlaps, {name: TensorWeakRef(one) for name, one in group.named.items()})
            for group in self._groups
        ]
        self.detach()
        self._followed.clear()
        self._names.clear()
        self._groups.clear()
        gc.collect()
        left = [{name for name, one in tensors.items() if one() is not None} for *_, tensors in held]
        every = zip(*self._world.all_gather_objects(left), strict=True)
        on_all = [set.intersection(*names) for names in every]
        for (sparse, overlaps, tensors), names in zip(held, on_all, strict=True):
            found = {name: one() for name, one in tensors.items() if name in names}
            if found:
                self._attach(_Group(found, sparse, overlaps))
        self._release_at = max(_FEWEST_GROUPS, 2 * len(self._groups))

    def follow_leaves(
        self, graph: Iterable[Tensor], *, vary: bool | None = None, created: Container[Tensor] = ()
    ) -> bool:
        """Follow the leaves of a split call's graph that are weights of the script but no parameters.

        Args:
            graph: all leaves of the graph that the script holds.
            vary: whether ranks have found different leaves in such a call; None before the first one.
            created: the tensors that the call itself has created. Values are read and compared only if a rank
                has found a new leaf that is not among them.

        Returns:
            Whether ranks have found different leaves: the call creates some from its slice.
        """
        new = [leaf for leaf in graph if leaf.is_leaf and not self.follows(leaf)]
        if vary is False and not new:
            return False
        if vary and not self._is_on_any_rank(any(leaf not in created for leaf in new)):
            return True
        keys = [(tuple(leaf.shape), complex(leaf.detach().to(torch.complex128).sum())) for leaf in new]
        on_ranks = self._world.all_gather_objects(keys)
        common = reduce(and_, map(Counter, on_ranks))
        vary = bool(vary) or any(len(one) != common.total() for one in on_ranks)
        own: defaultdict[Any, deque[Tensor]] = defaultdict(deque)
        for key, leaf in zip(keys, new, strict=True):
            own[key].append(leaf)
        weights: list[Tensor] = []
        for key in on_ranks[0]:  # in an order that all ranks know
            if common[key]:
                common[key] -= 1
                weights.append(own[key].popleft())
        self.follow(weights)
        return vary

    def _is_on_any_rank(self, here: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether any rank has passed True; the ranks' hosts exchange this, not their devices."""
        flag = torch.tensor([here], dtype=torch.int64, device="cpu")
        self._world.all_reduce(flag, op="max")
        return bool(flag)

    def follows(self, tensor: Tensor) -> bool:
        """Return whether the gradients of `tensor` are averaged."""
        return id(tensor) in self._followed

    def average(self, gradients: Sequence[Tensor | None]) -> None:
        """Average gradients in place that are not stored in their parameters."""
        for gradient in gradients:
            if gradient is not None:
                self._world.all_reduce(gradient)
                gradient.div_(self._world.place.size)

    def detach_in_child(self) -> None:
        """Stop following all tensors in a forked process, and keep the buffers.

        To free a tensor that an all-reduce has used, torch records an event of the device, which fails there.
        """
        for synchronizer in self._synchronizers:
            synchronizer.detach()

    def detach(self) -> None:
        """Stop following all tensors."""
        while self._synchronizers:
            self._synchronizers.pop().detach()

    def _count_all_reduce(self) -> None:
        """Count a gradient all-reduce, and compare the parameters at intervals."""
        self._all_reduces += 1
        self.deferred.poll()
        if not self._check_every:
            return
        if self._all_reduces in _EARLY or self._all_reduces % self._check_every == 0:
            self.check()

    def check(self) -> None:
        """Compare type, shape and bits of parameters between ranks.

        A script may have changed their type or shape since they were followed, or freed their memory.

        Raises:
            OutOfStep: they differ.
            UsageError: a deferred check has failed.
        """
        self.deferred.finish()
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
            check_equal(self._world, readable)


def _bucket_bytes(tensors: Iterable[Tensor]) -> int:
    least, most = _OVERLAPPING
    return min(most, max(least, sum(tensor.nbytes for tensor in tensors) // _BUCKETS))


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


def leaves_of(*outputs: Tensor) -> list[Tensor]:
    """Return the tensors at the end of the graphs of `outputs`, in which a backward accumulates gradients."""
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


_differentiated: ContextVar[tuple[int, ...]] = ContextVar("samestep_differentiated", default=())
"""The outputs of a running `torch.autograd.grad`, which torch calls by name again under a function mode."""


def unaveraged(outputs: Tensor | Sequence[Tensor]) -> AbstractContextManager[None]:
    """Let `torch.autograd.grad` return the gradients of these outputs as this rank computes them."""
    return bound(_differentiated, _identities(outputs))


def _identities(outputs: Tensor | Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(id, [outputs] if isinstance(outputs, Tensor) else outputs))


@contextmanager
def averaging_grad(of: Callable[[], Gradients | None]) -> Iterator[None]:
    """Let `torch.autograd.grad` return averages for gradients of parameters."""

    def grad(original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _differentiated.get() == _identities(outputs):
            return original(outputs, inputs, *args, **kwargs)
        tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)  # it may be a generator
        with unaveraged(outputs):
            found = original(outputs, tensors, *args, **kwargs)
        gradients = of()
        if gradients is None:
            return found
        own = [one for one, tensor in zip(found, tensors, strict=False) if gradients.follows(tensor)]
        if own and any(one is not None and one.requires_grad for one in own):
            if not uses_split_call(outputs):
                return found  # each rank has computed all of it
            raise UsageError(
                "torch.autograd.grad(..., create_graph=True) of a model's parameters cannot be split, "
                "because a penalty from it covers only a worker's slice. Run this script with -n 1."
            )
        if own:
            before_collective()
            gradients.average(own)
        return found

    with attached(declarations.AVERAGED_GRAD, wrapping(grad)):
        yield
