"""A deadlock in a measurement is ended after a timeout, and the algorithm or synchronizer is named."""

import os
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from samestep.base.place import Place
from samestep.bench.measurement import perform
from samestep.bench.request import Request
from samestep.bench.step_times import measure
from samestep.bench.synchronizers import ALONE, WAYS, Problem
from samestep.bench.time_limit import Limit, exit_on_timeout
from samestep.ranks.collectives.algorithms import ALL_REDUCE
from samestep_lab.testing.ranks import on_processes


def stuck_from(nbytes):
    """Return an all-reduce in which, from a size on, rank 0 waits for a message that rank 1 does not send."""

    def all_reduce(world, tensor, op):
        if tensor.nbytes < nbytes:
            ALL_REDUCE["native"](world, tensor, op)
        elif world.place.is_main:
            world.recv(torch.empty(1), src=1)

    return all_reduce


def measured(folder, world):
    def give_up(what):
        (Path(folder) / str(world.place.rank)).write_text(what)
        os._exit(1)

    request = Request(
        collective="all_reduce",
        sizes=(4, 64),
        seconds=0.01,
        timeout_s=0.5,
    )
    algorithms = {"native": ALL_REDUCE["native"], "stuck": stuck_from(64)}
    perform(world, request, algorithms, give_up=give_up)


def test_the_algorithm_and_the_size_are_named_on_every_rank(tmp_path):
    ((first, second),) = on_processes([partial(measured, str(tmp_path))], 2, timeout_s=20)

    assert first.error == second.error == "the process died"
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["stuck at 64 B"] * 2


@contextmanager
def stuck(_, world):
    """Take steps in which rank 0 waits for a message that rank 1 does not send."""

    def step():
        if world.place.is_main:
            world.recv(torch.empty(1), src=1)

    yield step


def stepped(folder, world):
    rank = world.place.rank
    stderr = (Path(folder) / str(rank)).open("w")
    problem = Problem(batch_per_worker=2, shape=(1, 8, 8))
    end = partial(exit_on_timeout, place=Place(rank=rank, size=2), timeout_s=0.5)
    with redirect_stderr(stderr), patch.dict(WAYS, {ALONE: stuck}), Limit(0.5, end) as limit:
        measure(world, problem, ["reference"], seconds=0.01, around=limit.of)


def test_the_synchronizer_is_named_by_rank_0(tmp_path):
    ((first, second),) = on_processes([partial(stepped, str(tmp_path))], 2, timeout_s=20)

    assert first.error == second.error == "the process died"
    (line,) = (tmp_path / "0").read_text().splitlines()
    assert line.startswith("samestep: error: alone ")
    assert "0.5 s" in line
    assert "samestep: error" not in (tmp_path / "1").read_text()
