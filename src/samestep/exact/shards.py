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
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.collectives.one_host import on_one_host
from samestep.exact.buffers import Buffers
from samestep.exact.exchange import total
from samestep.exact.random import drawing
from samestep.exact.tree import TreeSum
from samestep.replicas.agreement import broadcast_values, refuse_differing, refuse_unfit
from samestep.replicas.bucket import dense_gradient, real
from samestep.replicas.fingerprint import check_alike
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

    Parameters and buffers become those of rank 0; called by all ranks. The bits are those of this number of
    threads, processor capability and version of torch (see `samestep.exact.identity`), and training is
    deterministic only as far as its operations are.

    Args:
        model: of modules whose training forward depends on the shard's samples, on torch's random numbers
            and on buffers alone.
        shards: S, at least the number of ranks.
        seed: of the random numbers in forward.
        world: the ranks; by default those of the job that was joined here.

    Raises:
        UsageError: more ranks than shards, or a model that cannot be trained so.
        OutOfStep: the ranks hold different models.
    """

    def __init__(self, model: nn.Module, *, shards: int, seed: int = 0, world: World | None = None) -> None:
        self._world = current() if world is None else world
        place = self._world.place
        if shards < place.size:
            raise UsageError(
                f"{shards} logical shards cannot keep {place.size} workers busy. Use at most {shards}: "
                "another number of shards is another training."
            )
        refuse_unfit(model)
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            raise UsageError(
                "the model has SyncBatchNorm, which normalises over workers: its result depends on their "
                "number. Under exact shards batch norm is over each shard; use nn.BatchNorm."
            )
        if place.size > 1:
            refuse_differing(self._world, model)
            broadcast_values(self._world, model)
        self._world = on_one_host(self._world)
        self.model, self.num_shards, self.seed = model, shards, seed
        self.own, self.num_ranks, self.device = (
            share(shards, place.rank, place.size),
            place.size,
            self._world.device,
        )
        self._parameters = dict(model.named_parameters())

    def shards(self, step: int) -> Generator[Shard, None, None]:
        """Yield this rank's shards of a step; once they are through, every ``p.grad`` is the global batch's.

        Whatever is done to gradients within a shard adds up, such as the backwards of micro-batches. A shard
        without samples is passed by without a backward.

        Args:
            step: number of the step, which with the seed decides what is drawn.
        """
        buffers, tree = Buffers(self.model), TreeSum(self.num_shards)
        for index in self.own:
            with torch.no_grad():
                buffers.restore()
            for parameter in self._parameters.values():
                parameter.grad = None
            with drawing(_seed(self.seed, step, index), self.device):
                yield Shard(index, self.num_shards)
            with torch.no_grad():
                tree.add((index, index + 1), self._leaf(buffers))
        with torch.no_grad():
            for whole_numbers in buffers.largest.values() if self.num_ranks > 1 else ():
                self._world.all_reduce(whole_numbers, op="max")
            self._take(total(self._world, tree, self.num_shards), buffers)

    def check(self) -> None:
        """Compare the bits of all parameters and buffers between the ranks, now.

        Raises:
            OutOfStep: they differ; names ranks and the first tensor.
        """
        if self._world.place.size > 1:
            state = self.model.state_dict(keep_vars=True)
            check_alike(
                self._world, {name: value for name, value in state.items() if isinstance(value, Tensor)}
            )

    def _leaf(self, buffers: Buffers) -> list[Tensor]:
        """Return what a shard adds: flags, gradients by dtype, buffers by dtype."""
        flags, values = buffers.rows()
        used = torch.tensor([p.grad is not None for p in self._parameters.values()], dtype=torch.float64)
        rows: list[Tensor] = [torch.cat([used, flags])]
        for group in self._groups():
            parts = []
            for name, parameter in group:
                grad = dense_gradient(name, parameter)
                parts.append((torch.zeros_like(real(parameter)) if grad is None else grad).reshape(-1))
            rows.append(torch.cat(parts).to(torch.promote_types(parts[0].dtype, torch.float32)))
        return [*rows, *values]

    def _take(self, rows: list[Tensor], buffers: Buffers) -> None:
        groups = list(self._groups())
        flags, grads, values = rows[0], rows[1 : 1 + len(groups)], rows[1 + len(groups) :]
        used = dict(zip(self._parameters, flags[: len(self._parameters)].tolist(), strict=True))
        for group, row in zip(groups, grads, strict=True):
            sizes = [real(parameter).numel() for _, parameter in group]
            for (name, parameter), part in zip(group, torch.split(row, sizes), strict=True):
                # In the parameter's own layout always: what is summed over it next has one order then.
                parameter.grad = torch.empty_like(parameter) if used[name] else None
                if parameter.grad is not None:
                    real(parameter.grad).copy_(part.view(real(parameter).shape))
        buffers.put(flags[len(self._parameters) :], values)

    def _groups(self) -> Iterator[list[tuple[str, nn.Parameter]]]:
        """Yield the parameters that are trained, those of one dtype and device together."""
        groups: dict[tuple[torch.dtype, torch.device], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                kind = real(parameter).dtype, parameter.device
                groups.setdefault(kind, []).append((name, parameter))
        yield from groups.values()


def _seed(seed: int, step: int, shard: int) -> int:
    """Return the seed of a shard's random numbers, alike for all who compute it."""
    digest = hashlib.sha256(f"samestep exact {seed} {step} {shard}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
