"""Sends a message from rank 0 to all, and reports how each rank was identified."""

from typing import Any

import torch

from samestep.base import env
from samestep.launchers.detect import detect
from samestep.ranks.world.protocol import World
from samestep_lab.experiments.experiment import Outcome, Setup, Table


def greet(world: World) -> dict[str, Any]:
    """Send zeros from rank 0 to every other rank, whose tensors hold ones before; report this rank."""
    place = world.place
    message = torch.zeros(1) if place.is_main else torch.ones(1)
    before = message.item()
    if place.is_main:
        for rank in range(1, place.size):
            world.send(message, dst=rank)
    else:
        world.recv(message, src=0)
    return {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "node": place.node,
        "identified_by": [
            f"{name}={value}"
            for name, value in detect(env.snapshot()).evidence
            if not name.endswith("RUN_ID")
        ],
        "before": before,
        "after": message.item(),
    }


def run(setup: Setup) -> Outcome:
    """Run the experiment."""
    ranks = setup.ranks(greet, setup.workers)
    rows = [
        (
            *(str(rank[name]) for name in ("rank", "local_rank", "node")),
            f"{rank['before']:g} -> {rank['after']:g}",
            " ".join(rank["identified_by"]) or "its thread",
        )
        for rank in ranks
    ]
    received = sum(rank["after"] != rank["before"] for rank in ranks)
    return Outcome(
        tables=[Table(head=("rank", "local rank", "node", "tensor", "identified by"), rows=rows)],
        measured=f"{received} of {setup.workers - 1} other ranks hold the 0 of rank 0 in place of their 1.",
        values={"ranks": ranks},
    )
