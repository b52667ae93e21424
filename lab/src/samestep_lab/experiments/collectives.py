"""Traces each collective hop by hop on N ranks, and counts its rounds and what each rank sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from samestep.ranks.world.protocol import World
from samestep.report.charts import Bar, BarChart
from samestep.report.drawing import color
from samestep_lab.collectives import ring, rooted_collectives
from samestep_lab.collectives.algorithms import ALL_REDUCE
from samestep_lab.collectives.all_reduce import NAIVE, RING, TREE, AllReduce
from samestep_lab.collectives.halving_doubling import HALVING_DOUBLING
from samestep_lab.collectives.schedule import Chunks, Schedule
from samestep_lab.experiments.experiment import Outcome, Setup, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Some chunks, from one rank to another."""

    source: int
    to: int
    chunks: Chunks

    def text(self) -> str:
        """Return the message as text."""
        return f"{self.source}>{self.to}[{','.join(map(str, self.chunks))}]"


def rounds_of(schedules: Sequence[Schedule]) -> list[list[Message]]:
    """Return the messages of each round, if every message takes one round.

    A message moves when its sender and its receiver have both reached that hop; a rank goes on to its next
    hop when its send and its receive are done.
    """
    left = [
        [({"to": hop.to, "chunks": hop.send} if hop.to is not None else None, hop.source) for hop in schedule]
        for schedule in schedules
    ]
    rounds = []
    while any(left):
        moving = []
        for rank, hops in enumerate(left):
            sent: Any = hops[0][0] if hops else None
            if sent and left[sent["to"]] and left[sent["to"]][0][1] == rank:
                moving.append(Message(source=rank, **sent))
        assert moving, "the schedules do not fit together"
        for message in moving:
            left[message.source][0] = (None, left[message.source][0][1])
            left[message.to][0] = (left[message.to][0][0], None)
        left = [hops[1:] if hops and hops[0] == (None, None) else hops for hops in left]
        rounds.append(moving)
    return rounds


Rooted = Callable[[int, int], Schedule]
_ALL_REDUCES = (NAIVE, TREE, RING, HALVING_DOUBLING)
_OTHERS: dict[str, tuple[Rooted, bool]] = {
    "broadcast, naive": (rooted_collectives.naive_broadcast_schedule, False),
    "broadcast, tree": (rooted_collectives.broadcast_schedule, False),
    "reduce, naive": (rooted_collectives.naive_reduce_schedule, False),
    "reduce, tree": (rooted_collectives.reduce_schedule, False),
    "gather, tree": (rooted_collectives.gather_schedule, True),
    "scatter, tree": (rooted_collectives.scatter_schedule, True),
    "all-gather, ring": (ring.all_gather_schedule, True),
    "reduce-scatter, ring": (ring.reduce_scatter_schedule, True),
}
"""The hops of a rank, and whether there is one chunk per rank."""


def _all_reduce(algorithm: AllReduce) -> Rooted:
    return lambda rank, size: [*algorithm.combine(rank, size), *algorithm.copy(rank, size)]


def reduced_on_ranks(world: World) -> dict[str, bool]:
    """Return whether each all-reduce gives the sum over the ranks, in whole numbers."""
    size = world.place.size
    expected = torch.full((24,), size * (size + 1) / 2)
    exact = {}
    for algorithm in _ALL_REDUCES:
        tensor = torch.full((24,), float(world.place.rank + 1))
        ALL_REDUCE[algorithm.name](world, tensor, "sum")
        exact[algorithm.name] = torch.equal(tensor, expected)
    return exact


def run(setup: Setup) -> Outcome:
    """Run the experiment."""
    size = setup.workers
    schedules = {
        f"all-reduce, {algorithm.name}": (_all_reduce(algorithm), algorithm.chunks(size))
        for algorithm in _ALL_REDUCES
    }
    schedules |= {name: (hops, size if cut else 1) for name, (hops, cut) in _OTHERS.items()}
    traces: list[Table] = []
    costs: dict[str, Any] = {}
    for name, (hops, chunks) in schedules.items():
        rounds = rounds_of([hops(rank, size) for rank in range(size)])
        sent = [0.0] * size
        for message in chain.from_iterable(rounds):
            sent[message.source] += len(message.chunks) / chunks
        costs[name] = {"rounds": len(rounds), "sent": sent}
        lines = [
            (str(number), "  ".join(message.text() for message in messages))
            for number, messages in enumerate(rounds)
        ]
        traces.append(Table(title=name, head=("round", "from>to[chunks]"), rows=lines))
    checked = setup.ranks(reduced_on_ranks, size)
    right = [name for name in checked[0] if all(exact[name] for exact in checked)]
    most = {name: max(cost["sent"]) for name, cost in costs.items()}
    rows = [
        (name, str(cost["rounds"]), f"{most[name]:.3g}", f"{sum(cost['sent']):.3g}")
        for name, cost in costs.items()
    ]
    head = ("collective", "rounds", "tensors sent by the busiest rank", "by all ranks")
    chart = BarChart(
        title=f"Sent by the busiest of {size} ranks",
        x="collective",
        y="tensors",
        kinds=[(color(0), "sent")],
        groups={name: [Bar(parts={0: value}, text=f"{value:.3g}")] for name, value in most.items()},
    )
    return Outcome(
        tables=[*traces, Table(head=head, rows=rows)],
        measured=(
            f"On {size} ranks, {len(right)} of {len(_ALL_REDUCES)} all-reduces gave the exact sum on every "
            f"rank. The busiest rank sends {most['all-reduce, naive']:.3g} tensors by naive and "
            f"{most['all-reduce, ring']:.3g} by ring."
        ),
        values={"costs": costs, "right": right},
        charts=[chart],
    )
