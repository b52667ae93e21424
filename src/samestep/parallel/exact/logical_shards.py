"""Trains with bit-equal weights for any number of workers.

The global batch is split into S logical shards, for any number of workers. Each shard is computed with its
own random numbers and with the buffers from the start of the step. Gradients and buffers of all shards are
summed in one fixed tree, so the result does not depend on which worker computes which shard::

    shard          0    1    2    3    4    5    6    7
    1 worker       0    0    0    0    0    0    0    0
    3 workers      0    0    0    1    1    1    2    2       3 per step: 8 / (3 * 3) = 89 % efficiency
    8 workers      0    1    2    3    4    5    6    7
"""

import hashlib
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.parallel.exact.buffers import Buffers
from samestep.parallel.exact.gradients import Gradients
from samestep.parallel.exact.identity import check_same_environment
from samestep.parallel.exact.summation_tree import ShardReduction, TreeSum
from samestep.parallel.gradients.initial_agreement import (
    broadcast_values,
    check_same_structure,
    check_supported,
)
from samestep.parallel.gradients.weight_checksum import check_equal
from samestep.parallel.sharding.share import share
from samestep.ranks.collectives.shared_memory import on_one_host
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World

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
    threads, the processor and the version of torch (see `samestep.parallel.exact.identity`), and training is
    deterministic only if its operations are.

    Args:
        model: a model whose training forward depends only on the shard's samples, on random numbers of torch,
            numpy or Python, and on buffers.
        shards: S, at least the number of ranks.
        seed: the seed of the random numbers in forward.
        world: the ranks; by default those of the job that was joined here.

    Raises:
        UsageError: more ranks than shards, or an unsupported model.
        OutOfStep: the ranks have different models, or their machines compute other bits.
    """

    def __init__(self, model: nn.Module, *, shards: int, seed: int = 0, world: World | None = None) -> None:
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
        if place.size > 1:
            check_same_environment(self._world)
            check_same_structure(self._world, model)
            broadcast_values(self._world, model)
        self._world = on_one_host(self._world)
        self.model, self.num_shards, self.seed = model, shards, seed
        self.own, self.num_ranks, self.device = (
            share(shards, place.rank, place.size),
            place.size,
            self._world.device,
        )
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
        buffers, gradients, tree = Buffers(self.model), Gradients(self.model), TreeSum(self.num_shards)
        with isolated_generators(self.device):
            for index in self.own:
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

    def _leaf(self, gradients: Gradients, buffers: Buffers) -> list[Tensor]:
        """Return the tensors that a shard contributes: flags, gradients, buffers by dtype."""
        used, added = gradients.take()
        changed, values = buffers.take()
        flags = torch.tensor([*used, *changed], dtype=gradients.dtype, device=self.device)
        return [flags, *added, *values]

    def _put(self, row: list[Tensor], gradients: Gradients, buffers: Buffers) -> None:
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
