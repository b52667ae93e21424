"""Training whose weights do not depend on the number of workers, to the last bit.

The global batch is S logical shards at any number of workers, each computed as if alone: with random numbers
of its own and the buffers of the step's beginning. Gradients, and what shards make of buffers, are summed in
one fixed tree. What a worker computes of it, and with whom, makes no difference then::

    shard          0    1    2    3    4    5    6    7
    1 worker       0    0    0    0    0    0    0    0
    3 workers      0    0    0    1    1    1    2    2       3 in turn: 8 / (3 * 3) = 89 % efficiency
    8 workers      0    1    2    3    4    5    6    7
"""

import hashlib
import time
from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.collectives.one_host import on_one_host
from samestep.exact.buffers import Buffers
from samestep.exact.exchange import Exchange
from samestep.exact.gradients import Gradients
from samestep.exact.identity import check_alike_here
from samestep.exact.random import drawing
from samestep.exact.tree import TreeSum
from samestep.replicas.agreement import broadcast_values, check_same_structure, check_supported
from samestep.replicas.fingerprint import check_equal
from samestep.sharding.share import share
from samestep.world.current import current
from samestep.world.world import World


@dataclass(frozen=True, slots=True)
class Shard:
    """One logical shard of a step."""

    index: int
    count: int
    """Shards of the step."""

    def of(self, samples: int) -> slice:
        """Return the places of this shard's samples among those of the global batch; may be none."""
        places = share(samples, self.index, self.count)
        return slice(places.start, places.stop)


class Exact:
    """A model that is trained shard by shard, with equal bits at any number of workers.

    ::

        exact = samestep.Exact(model, shards=8)
        for step, (images, labels) in enumerate(batches):              # the global batches, on every worker
            for shard in exact.shards(step):                           # this worker's
                own = shard.of(len(images))
                loss = cross_entropy(model(images[own]), labels[own], reduction="sum") / len(images)
                loss.backward()
            optimizer.step()                                           # p.grad is that of the global batch
            optimizer.zero_grad()

    Parameters and buffers become those of rank 0; called by all ranks. The bits are those of this number of
    threads, processor capability and version of torch (see `samestep.exact.identity`), and training is
    deterministic only as far as its operations are.

    Args:
        model: of modules whose training forward depends on the shard's samples, on random numbers of torch,
            numpy or Python, and on buffers alone.
        shards: S, at least the number of ranks.
        seed: of the random numbers in forward.
        world: the ranks; by default those of the job that was joined here.

    Raises:
        UsageError: more ranks than shards, or a model that cannot be trained so.
        OutOfStep: the ranks hold different models, or their machines compute other bits.
    """

    def __init__(self, model: nn.Module, *, shards: int, seed: int = 0, world: World | None = None) -> None:
        self._world = current() if world is None else world
        place = self._world.place
        if shards < place.size:
            raise UsageError(
                f"{shards} logical shards cannot keep {place.size} workers busy. Use at most {shards}: "
                "another number of shards is another training."
            )
        check_supported(model)
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            raise UsageError(
                "the model has SyncBatchNorm, which normalises over workers: its result depends on their "
                "number. Under exact shards batch norm is over each shard; use nn.BatchNorm."
            )
        if place.size > 1:
            check_alike_here(self._world)
            check_same_structure(self._world, model)
            broadcast_values(self._world, model)
        self._world = on_one_host(self._world)
        self.model, self.num_shards, self.seed = model, shards, seed
        self.own, self.num_ranks, self.device = (
            share(shards, place.rank, place.size),
            place.size,
            self._world.device,
        )
        self.exposed_s = 0.0
        """Seconds that the last exchange took."""
        self._exchange = Exchange(self._world, shards)

    def shards(self, step: int) -> Generator[Shard, None, None]:
        """Yield this rank's shards of a step; once they are through, every ``p.grad`` is the global batch's.

        Whatever is done to gradients within a shard adds up, such as the backwards of micro-batches. A shard
        without samples is passed by without a backward. Gradients from before, such as those of another loop
        over shards, are added to, as a backward adds to them: clear them between steps. They have to be equal
        on all ranks.

        Args:
            step: number of the step, which with the seed decides what is drawn.

        Raises:
            UsageError: a shard has changed parameters, or which buffers there are; or there is no one value
                for what the shards made of a buffer of whole numbers.
        """
        buffers, gradients, tree = Buffers(self.model), Gradients(self.model), TreeSum(self.num_shards)
        with drawing(self.device) as seed_all:
            for index in self.own:
                gradients.begin()
                seed_all(_seed(self.seed, step, index))
                yield Shard(index, self.num_shards)
                with torch.no_grad():
                    tree.add((index, index + 1), self._leaf(gradients, buffers))
        with torch.no_grad():
            began = time.perf_counter()
            if self.num_ranks > 1 and buffers.largest is not None:
                self._world.all_reduce(buffers.largest, op="max")
            row = self._exchange.total(tree)
            self.exposed_s = time.perf_counter() - began
            self._put(row, gradients, buffers)

    def check(self) -> None:
        """Compare the bits of all parameters and buffers between the ranks, now.

        Raises:
            OutOfStep: they differ; names ranks and the first tensor.
        """
        if self._world.place.size > 1:
            state = self.model.state_dict(keep_vars=True)
            check_equal(
                self._world, {name: value for name, value in state.items() if isinstance(value, Tensor)}
            )

    def _leaf(self, gradients: Gradients, buffers: Buffers) -> list[Tensor]:
        """Return what a shard adds: flags, gradients, buffers by dtype."""
        used, added = gradients.take()
        changed, values = buffers.take()
        flags = torch.tensor([*used, *changed], dtype=gradients.dtype, device=self.device)
        return [flags, *added, *values]

    def _put(self, row: list[Tensor], gradients: Gradients, buffers: Buffers) -> None:
        counts, count = row[0].tolist(), len(gradients)
        gradients.put(counts[:count], row[1 : 1 + count])
        buffers.put(counts[count:], row[1 + count :])


def _seed(seed: int, step: int, shard: int) -> int:
    """Return the seed of a shard's random numbers, alike for all who compute it."""
    digest = hashlib.sha256(f"samestep exact {seed} {step} {shard}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
