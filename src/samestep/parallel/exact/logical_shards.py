"""Trains with bit-equal weights for any number of workers.

The global batch is split into S logical shards, for any number of workers. Each shard is computed with its
own random numbers and with the buffers from the start of the step. Gradients and buffers of all shards are
summed in one fixed tree, so the result does not depend on which worker computes which shard::

    shard          0    1    2    3    4    5    6    7
    1 worker       0    0    0    0    0    0    0    0
    3 workers      0    0    0    1    1    1    2    2       3 per step: 8 / (3 * 3) = 89 % efficiency
    8 workers      0    1    2    3    4    5    6    7

Floating-point buffers, such as batch norm's running statistics, become the mean over the shards that changed
them. Integer buffers become the value on which all shards that changed them agree, such as a pointer that
wraps or a flag that is cleared; or, if no shard decreased a number, the maximum, such as a count. Other
differences have no common value, and raise UsageError.
"""

import hashlib
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.parallel.exact.identity import check_same_environment
from samestep.parallel.exact.summation_tree import ShardReduction, TreeSum
from samestep.parallel.gradients.agreement import (
    broadcast_values,
    check_equal,
    check_same_structure,
    check_supported,
)
from samestep.parallel.gradients.bucket import dense_gradient, real
from samestep.parallel.sharding import share
from samestep.ranks.collectives.shared_memory import on_one_host
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World


class _Gradients:
    """The gradients of the trained parameters in a step.

    Sums have at least single precision and the strides of their parameter: later sums over a gradient then
    have one order, and fused optimizers ignore strides.
    """

    def __init__(self, model: nn.Module) -> None:
        self._all = dict(model.named_parameters())
        self._trained = {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}
        self._previous = {name: parameter.grad for name, parameter in self._all.items()}
        self._forms = [_sum_form(parameter) for parameter in self._trained.values()]
        self._versions: list[int] = []
        self.dtype = self._forms[0].dtype if self._forms else torch.float32  # the dtype of a sum

    def __len__(self) -> int:
        """Return the number of tensors that a shard contributes."""
        return len(self._trained)

    def begin(self) -> None:
        """Clear all gradients, before a shard."""
        for parameter in self._all.values():
            parameter.grad = None
        self._versions = [parameter._version for parameter in self._all.values()]  # noqa: SLF001 - no other name

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return whether the shard has a gradient, for each parameter, and the gradients, zeros without one.

        Raises:
            UsageError: the shard has changed a parameter, or a gradient is sparse.
        """
        self._refuse_changed()
        used = [parameter.grad is not None for parameter in self._trained.values()]
        taken: list[Tensor] = []
        seen: set[int] = set()
        for (name, parameter), form in zip(self._trained.items(), self._forms, strict=True):
            grad = dense_gradient(name, parameter)
            if grad is None:
                taken.append(torch.zeros_like(form, device=parameter.device))
                continue
            memory = grad.untyped_storage().data_ptr()
            # Two gradients may share memory, such as those of two views of one sum.
            if grad.dtype is form.dtype and grad.stride() == form.stride() and memory not in seen:
                taken.append(grad.detach())
            else:
                taken.append(torch.empty_like(form, device=parameter.device).copy_(grad))
            seen.add(memory)
        return used, taken

    def put(self, used: Sequence[float], sums: Sequence[Tensor]) -> None:
        """Add sums to the parameters' gradients from before the step, as a backward does.

        Args:
            used: number of shards with a gradient, for each parameter.
            sums: the sums over all shards; overwritten.
        """
        for name, parameter in self._all.items():
            parameter.grad = self._previous[name]
        for (name, parameter), count, total in zip(self._trained.items(), used, sums, strict=True):
            if not count:
                continue
            if (previous := dense_gradient(name, parameter)) is not None:
                total.add_(previous)
            if total.dtype is parameter.dtype:
                parameter.grad = total
            else:
                parameter.grad = torch.empty_like(parameter)
                real(parameter.grad).copy_(total)

    def _refuse_changed(self) -> None:
        for (name, parameter), version in zip(self._all.items(), self._versions, strict=True):
            if parameter._version != version:  # noqa: SLF001
                raise UsageError(
                    f"{name} changed while a shard was computed, so the next shards of this worker begin "
                    "with other parameters. Step the optimizer after the loop over shards."
                )


def _sum_form(parameter: Tensor) -> Tensor:
    """Return a meta tensor with shape, strides and dtype of a sum of gradients."""
    numbers = real(parameter.detach())
    dtype = torch.promote_types(numbers.dtype, torch.float32)
    return torch.empty_like(numbers, dtype=dtype, device="meta")


@dataclass(frozen=True, slots=True)
class _IntegerBuffer:
    """The shards' values of an integer buffer."""

    before: Tensor
    maximum: Tensor  # maximum of each number over the shards
    inverted: Tensor  # complement of the minimum, so that a maximum over ranks combines both

    def add(self, value: Tensor) -> None:
        """Add the value of one more shard."""
        torch.maximum(self.maximum, value, out=self.maximum)
        torch.maximum(self.inverted, ~value, out=self.inverted)

    def next_value(self, name: str) -> Tensor:
        """Return the value for the next step of a buffer that was changed.

        Raises:
            UsageError: the shards' values have no common value.
        """
        minimum = ~self.inverted
        if not torch.equal(self.maximum, minimum) and bool((minimum < self.before).any()):
            raise UsageError(
                f"exact shards: the shards of one step changed the integer buffer {name} to different "
                "values, some smaller than before. All shards that change it must agree, or only increase it."
            )
        return self.maximum


class _Buffers:
    """The buffers of a model at the start of a step."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        whole = {
            name: before.long()
            for name, before in self._before.items()
            if not (before.is_floating_point() or before.is_complex())
        }
        flat = [before.reshape(-1) for before in whole.values()]
        self.largest = torch.cat(flat * 2).fill_(torch.iinfo(torch.int64).min) if flat else None
        """For integer buffers, int64: the maxima over this rank's shards, then the complements of the minima;
        None without integer buffers."""
        parts = (
            [] if self.largest is None else torch.split(self.largest, [buffer.numel() for buffer in flat * 2])
        )
        self._integers = {
            name: _IntegerBuffer(before, maximum.view(before.shape), inverted.view(before.shape))
            for (name, before), maximum, inverted in zip(
                whole.items(), parts[: len(flat)], parts[len(flat) :], strict=True
            )
        }

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return the buffers that a shard has changed, and restore those of the start of the step.

        Integer buffers are combined in `largest` instead.

        Returns:
            whether each buffer was changed; and the values, one tensor for each dtype, zero if unchanged.

        Raises:
            UsageError: buffers were added or removed.
        """
        now = self._now()
        # Compared by value: batch norm changes its statistics without increasing their version.
        changed = {name for name, before in self._before.items() if not torch.equal(now[name], before)}
        for name in changed & self._integers.keys():
            self._integers[name].add(now[name].long())
        rows = []
        for dtype, names in self._by_dtype().items():
            values = [
                (now[name] if name in changed else torch.zeros_like(now[name])).reshape(-1) for name in names
            ]
            rows.append(torch.cat(values).to(torch.promote_types(dtype, torch.float32)))
        if changed:
            torch._foreach_copy_([now[name] for name in changed], [self._before[name] for name in changed])
        return [name in changed for name in self._before], rows

    def put(self, changed: Sequence[float], rows: Sequence[Tensor]) -> None:
        """Set the buffers to the combined values of all shards.

        Raises:
            UsageError: the shards' values of an integer buffer have no common value.
        """
        counts = dict(zip(self._before, changed, strict=True))
        now = self._now()
        for names, row in zip(self._by_dtype().values(), rows, strict=True):
            sizes = [self._before[name].numel() for name in names]
            for name, value in zip(names, torch.split(row, sizes), strict=True):
                if counts[name]:
                    now[name].copy_((value / counts[name]).view(now[name].shape))
        for name, whole in self._integers.items():
            if counts[name]:
                now[name].copy_(whole.next_value(name))

    def _now(self) -> dict[str, Tensor]:
        now = {name: buffer.detach() for name, buffer in self._model.named_buffers()}
        if now.keys() != self._before.keys():
            raise UsageError(
                "--exact: the model added or removed buffers during a step. Register them before training."
            )
        return now

    def _by_dtype(self) -> dict[torch.dtype, list[str]]:
        """Return the names of the floating-point buffers."""
        groups: dict[torch.dtype, list[str]] = {}
        for name, before in self._before.items():
            if name not in self._integers:
                groups.setdefault(before.dtype, []).append(name)
        return groups


_generators = threading.Lock()  # ranks that are threads share the generators of the process
_owners: set[int] = set()  # id of the thread that holds the lock; empty if none does


@dataclass(frozen=True, slots=True)
class LogicalShard:
    """One logical shard of a step."""

    index: int
    """Number of this shard, from 0."""
    count: int
    """Number of shards of the step."""

    def of(self, samples: int) -> slice:
        """Return the slice of this shard's samples in a global batch; it can be empty."""
        places = share(samples, self.index, self.count)
        return slice(places.start, places.stop)


class Exact:
    """A model that is trained shard by shard, with equal bits for any number of workers.

    ::

        exact = samestep.Exact(model, shards=8)
        for step, (images, labels) in enumerate(batches):              # the global batches, on every worker
            for shard in exact.shards(step):                           # this worker's
                own = shard.of(len(images))
                loss = cross_entropy(model(images[own]), labels[own], reduction="sum") / len(images)
                loss.backward()
            optimizer.step()                                           # p.grad is that of the global batch
            optimizer.zero_grad()

    All ranks create it; parameters and buffers become those of rank 0. The bits depend on the number of
    threads, which must not be each worker's share of the cores, and on the processor and the version of torch
    (see `samestep.parallel.exact.identity`). Training is deterministic only if its operations are.

    Args:
        model: a model whose training forward depends only on the shard's samples, on random numbers of torch,
            numpy or Python, and on buffers.
        shards: S, at least the number of ranks.
        seed: the seed of the random numbers in forward.
        threads: threads with which this process computes from now on; None: those that it has.
        world: the ranks; by default those of the job that was joined here.

    Raises:
        UsageError: more ranks than shards, or an unsupported model.
        OutOfStep: the ranks have different models, or their machines compute other bits.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        shards: int,
        seed: int = 0,
        threads: int | None = 1,
        world: World | None = None,
    ) -> None:
        self._world = current() if world is None else world
        place = self._world.place
        if shards < place.size:
            raise UsageError(
                f"{shards} logical shards are too few for {place.size} workers. Use at most {shards} "
                "workers, or more shards, which is another training."
            )
        check_supported(model)
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            raise UsageError(
                "the model has SyncBatchNorm, whose result depends on the number of workers. Use "
                "nn.BatchNorm, which normalizes each shard."
            )
        if threads is not None:
            torch.set_num_threads(threads)
        if place.size > 1:
            check_same_environment(self._world)
            check_same_structure(self._world, model)
            broadcast_values(self._world, model)
        self._world = on_one_host(self._world)
        self.model, self.num_shards, self.seed = model, shards, seed
        self.num_ranks, self.device = place.size, self._world.device
        self._indices = share(shards, place.rank, place.size)
        self.exposed_s = 0.0  # seconds that the last reduction took
        self._reduction = ShardReduction(self._world, shards)

    def shards(self, step: int) -> Generator[LogicalShard, None, None]:
        """Yield this rank's shards of a step; after the last, every ``p.grad`` is that of the global batch.

        A shard may run several backwards, such as those of micro-batches, or none, if it has no samples.
        Existing gradients are added to, as by a backward, and must be equal on all ranks: clear them between
        steps.

        Args:
            step: number of the step, which decides the random numbers together with the seed.

        Raises:
            UsageError: a shard has changed parameters, or added or removed buffers; or the shards' values of
                an integer buffer have no common value.
        """
        buffers, gradients, tree = _Buffers(self.model), _Gradients(self.model), TreeSum(self.num_shards)
        with isolated_generators(self.device):
            for index in self._indices:
                gradients.begin()
                seed_generators(_seed(self.seed, step, index), self.device)
                yield LogicalShard(index, self.num_shards)
                with torch.no_grad():
                    tree.add((index, index + 1), self._leaf(gradients, buffers))
        with torch.no_grad():
            began = time.perf_counter()
            if self.num_ranks > 1 and buffers.largest is not None:
                self._world.all_reduce(buffers.largest, op="max")
            row = self._reduction.total(tree)
            self.exposed_s = time.perf_counter() - began
            self._put(row, gradients, buffers)

    def check(self) -> None:
        """Compare the bits of all parameters and buffers between the ranks.

        Raises:
            OutOfStep: they differ; the message names ranks and the first tensor.
        """
        if self._world.place.size > 1:
            state = self.model.state_dict(keep_vars=True)
            check_equal(
                self._world, {name: value for name, value in state.items() if isinstance(value, Tensor)}
            )

    def _leaf(self, gradients: _Gradients, buffers: _Buffers) -> list[Tensor]:
        """Return the tensors that a shard contributes: flags, gradients, buffers by dtype."""
        used, added = gradients.take()
        changed, values = buffers.take()
        flags = torch.tensor([*used, *changed], dtype=gradients.dtype, device=self.device)
        return [flags, *added, *values]

    def _put(self, row: list[Tensor], gradients: _Gradients, buffers: _Buffers) -> None:
        counts, count = row[0].tolist(), len(gradients)
        gradients.put(counts[:count], row[1 : 1 + count])
        buffers.put(counts[count:], row[1 + count :])


@contextmanager
def isolated_generators(device: torch.device) -> Iterator[None]:
    """Reserve torch's, NumPy's and Python's generators for a block; their states are restored at its end.

    Raises:
        UsageError: this thread has reserved them already.
    """
    thread = threading.get_ident()
    if thread in _owners:
        raise UsageError(
            "a loop over the shards of another step or model has not ended in this thread. Finish it, or "
            "close its generator if it was left early."
        )
    with _generators:
        before = RngState.now(device)
        _owners.add(thread)
        try:
            yield
        finally:
            _owners.remove(thread)
            before.restore()


def _seed(seed: int, step: int, shard: int) -> int:
    """Return the seed of a shard's random numbers, which is the same on any worker."""
    digest = hashlib.sha256(f"samestep exact {seed} {step} {shard}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
