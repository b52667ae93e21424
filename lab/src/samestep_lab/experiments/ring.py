"""Compares three all-reduces: naive, a ring of whole tensors, and a ring of chunks."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from statistics import median
from typing import Any

import torch
from torch import Tensor

from samestep.base.units import bytes_text, seconds_text
from samestep.bench.figures import quartiles
from samestep.bench.measurement import timed_interleaved
from samestep.ranks.world.protocol import World
from samestep_lab.collectives.all_reduce import NAIVE, RING
from samestep_lab.experiments.experiment import Outcome, Setup, Table
from samestep_lab.testing.checks import CountingWorld

SIZES = (4 << 10, 4 << 20)
SECONDS = 2.0
_SMALLEST = 1 << 10
"""Bytes from which messages are counted; those below check that the calls agree."""


class CountingTensors(CountingWorld):
    """World that counts the bytes of the tensors that this rank sends, without small messages."""

    def count(self, tensor: Tensor) -> None:
        """Count a tensor that is sent."""
        if tensor.nbytes >= _SMALLEST:
            super().count(tensor)


def whole_tensor_ring(world: World, tensor: Tensor) -> None:
    """Add up `tensor` over the ranks on a ring that forwards whole tensors, twice around."""
    rank, size = world.place.rank, world.place.size
    for is_first in (True, False):
        passed = tensor.clone()
        for _ in range(size - 1):
            arrived = torch.empty_like(passed)
            world.exchange(passed, arrived, dst=(rank + 1) % size, src=(rank - 1) % size).wait()
            if is_first:
                tensor += arrived
            else:
                tensor.copy_(arrived)
            passed = arrived


WAYS: dict[str, Callable[[World, Tensor], None]] = {
    "naive": NAIVE,
    "ring of whole tensors": whole_tensor_ring,
    "ring": RING,
}


def _call(way: Callable[[World, Tensor], None], world: World, tensor: Tensor, _: int) -> None:
    way(world, tensor)


def on_rank(world: World, seconds: float) -> dict[str, dict[str, Any]]:
    """Return bytes, bits and times of each way on this rank."""
    figures: dict[str, dict[str, Any]] = {}
    generator = torch.Generator().manual_seed(world.place.rank)
    numbers = torch.randn(SIZES[-1] // 4, generator=generator)
    for name, way in WAYS.items():
        counting, tensor = CountingTensors(world), numbers.clone()
        way(counting, tensor)
        digest = sha256(tensor.numpy().tobytes()).hexdigest()
        figures[name] = {"sent": counting.sent / tensor.nbytes, "digest": digest, "seconds": {}}
    for nbytes in SIZES:
        zeros = torch.zeros(nbytes // 4)
        calls = {name: partial(_call, way, world, zeros) for name, way in WAYS.items()}
        times = timed_interleaved(world, calls, seconds=seconds, finish=lambda: None)
        for name, taken in times.items():
            figures[name]["seconds"][nbytes] = taken
    return figures


def run(setup: Setup, *, seconds: float = SECONDS) -> Outcome:
    """Run the experiment."""
    ranks = setup.ranks(on_rank, setup.workers, seconds)
    values: dict[str, Any] = {}
    for name in WAYS:
        values[name] = {
            "sent_tensors": [rank[name]["sent"] for rank in ranks],
            "different_results": len({rank[name]["digest"] for rank in ranks}),
            "seconds": {
                nbytes: {"median": median(taken), "quartiles": quartiles(taken)}
                for nbytes, taken in ranks[0][name]["seconds"].items()
            },
        }
    rows = [
        (
            name,
            f"{max(figures['sent_tensors']):.3g}",
            str(figures["different_results"]),
            *(_time_text(figures["seconds"][nbytes]) for nbytes in SIZES),
        )
        for name, figures in values.items()
    ]
    head = ("all-reduce", "tensors sent by the busiest rank", "different results", *map(bytes_text, SIZES))
    n, whole, true = setup.workers, values["ring of whole tensors"], values["ring"]
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=(
            f"On {n} ranks a ring of chunks sends {max(true['sent_tensors']):.3g} times the tensor from each "
            f"rank, a ring of whole tensors {max(whole['sent_tensors']):.3g} times. The ranks end with "
            f"{true['different_results']} and {whole['different_results']} different results. Times are "
            "medians with quartiles, of interleaved rounds."
        ),
        values=values,
    )


def _time_text(taken: dict[str, Any]) -> str:
    low, high = taken["quartiles"]
    return f"{seconds_text(taken['median'])} ({seconds_text(low)} - {seconds_text(high)})"
