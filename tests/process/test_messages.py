"""Messages between processes: both ways at once, with gaps in memory, and ranks that wait for each other."""

import pytest
import torch

from samestep.base.errors import OutOfStep


def exchange(world):
    me, size = world.place.rank, world.place.size
    got = torch.empty(2, 3)
    pending = world.exchange(torch.full((2, 3), float(me)), got, dst=(me + 1) % size, src=(me - 1) % size)
    pending.wait()
    pending.wait()
    flag = torch.tensor([me == 1])
    world.exchange(flag, None, dst=0).wait() if me == 1 else None
    world.exchange(None, flag, src=1).wait() if me == 0 else None
    world.exchange(None, None).wait()
    if me == 0:
        world.send(flag, dst=1)
    elif me == 1:
        world.recv(flag, src=0)
    return got.unique().tolist(), flag.tolist(), world.under_way


def test_ranks_exchange_and_send(processes):
    first, second, third = processes.run(exchange, 3)

    assert first == ([2.0], [True], 0)
    assert second == ([0.0], [True], 0)
    assert third == ([1.0], [False], 0)


def against_each_other(world):
    me, size = world.place.rank, world.place.size
    world.send(torch.ones(1), dst=(me + 1) % size)


def test_sends_against_each_other_are_named(processes):
    with pytest.raises(OutOfStep, match="wait for each other") as told:
        processes.run(against_each_other, 3)
    for rank in range(3):
        assert f"rank {rank} sends to rank {(rank + 1) % 3}" in str(told.value)


def strided(world):
    """Return what columns of a matrix hold after each call; those between them must not change."""
    me, found = world.place.rank, []

    def columns():
        matrix = torch.arange(12.0).view(3, 4) + 100 * me
        return matrix, matrix[:, ::2]

    def one_way(part):
        world.send(part, dst=1) if me == 0 else world.recv(part, src=0)

    for call in (world.all_reduce, lambda part: world.broadcast(part, src=1), one_way):
        matrix, part = columns()
        call(part)
        untouched = torch.equal(matrix[:, 1::2], columns()[0][:, 1::2])
        found.append((part.flatten().tolist(), untouched))
    matrix, part = columns()
    world.all_reduce_later(part).wait()
    found.append((part.flatten().tolist(), True))
    return found


def test_tensors_with_gaps_are_exchanged_in_place(processes):
    columns = torch.arange(12.0).view(3, 4)[:, ::2].flatten()
    summed, first, second = (2 * columns + 100).tolist(), columns.tolist(), (columns + 100).tolist()

    for found in processes.run(strided, 2):
        assert found == [(summed, True), (second, True), (first, True), (summed, True)]


SENT = [torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.float64]


def exchanged(world):
    """Exchange tensors of many types, and those that learn, with the neighbours; return what came."""
    rank, size = world.place.rank, world.place.size
    came = []
    for dtype in SENT:
        learns = dtype.is_floating_point or dtype.is_complex
        mine = torch.full((3,), rank, dtype=dtype).requires_grad_(learns)
        theirs = torch.zeros(3, dtype=dtype).requires_grad_(learns)
        world.exchange(mine, theirs, dst=(rank + 1) % size, src=(rank - 1) % size).wait()
        came.append(theirs.detach())
    return came


def test_exchanges_take_every_type_and_what_learns(processes):
    for rank, came in enumerate(processes.run(exchanged, 3)):
        for dtype, theirs in zip(SENT, came, strict=True):
            assert torch.equal(theirs, torch.full((3,), (rank - 1) % 3, dtype=dtype))
