"""An algorithm whose ranks wait for each other is named, and the measurement ends."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from samestep.bench.perform import perform
from samestep.bench.request import Request
from samestep.collectives.algorithms import ALL_REDUCE
from samestep.testing.ranks import on_processes


def stuck_from(nbytes):
    """Return an all-reduce in which rank 0 waits, from a size on, for what rank 1 does not send."""

    def all_reduce(world, tensor, op):
        if tensor.nbytes < nbytes:
            ALL_REDUCE["native"](world, tensor, op)
        elif world.place.is_main:
            world.receive(torch.empty(1), source=1)

    return all_reduce


def measured(folder, world):
    def give_up(what):
        (Path(folder) / str(world.place.rank)).write_text(what)
        os._exit(1)

    request = Request(
        collective="all_reduce",
        sizes=(4, 64),
        algorithms=("native", "ring", "tree"),
        rounds=1,
        timeout_s=0.5,
    )
    with patch.dict(ALL_REDUCE, {"ring": stuck_from(64)}):
        perform(world, request, give_up=give_up)


def test_the_algorithm_and_the_size_are_named_on_every_rank(tmp_path):
    ((first, second),) = on_processes([partial(measured, str(tmp_path))], 2, timeout_s=20)

    assert first.error == second.error == "the process died"
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["ring at 64 B"] * 2
