"""Processes send and receive messages, also at the same time and strided; deadlocks are reported."""

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


def test_simultaneous_and_single_messages_are_received(processes):
    first, second, third = processes.run(exchange, 3)

    assert first == ([2.0], [True], 0)
    assert second == ([0.0], [True], 0)
    assert third == ([1.0], [False], 0)


def send_in_a_ring(world):
    me, size = world.place.rank, world.place.size
    world.send(torch.ones(1), dst=(me + 1) % size)


def test_a_deadlock_of_sends_is_reported_with_its_ranks(processes):
    with pytest.raises(OutOfStep, match="wait for each other") as told:
        processes.run(send_in_a_ring, 3)
    for rank in range(3):
        assert f"rank {rank} sends to rank {(rank + 1) % 3}" in str(told.value)


def strided(world):
    """Return the columns of a matrix after each call, and whether the columns between them are unchanged."""
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


def test_strided_tensors_are_communicated_in_place(processes):
    columns = torch.arange(12.0).view(3, 4)[:, ::2].flatten()
    summed, first, second = (2 * columns + 100).tolist(), columns.tolist(), (columns + 100).tolist()

    for found in processes.run(strided, 2):
        assert found == [(summed, True), (second, True), (first, True), (summed, True)]


SENT = [torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.float64]


def exchanged_types(world):
    """Exchange tensors of many types with the neighbors; return those received."""
    rank, size = world.place.rank, world.place.size
    received = []
    for dtype in SENT:
        requires_grad = dtype.is_floating_point or dtype.is_complex
        mine = torch.full((3,), rank, dtype=dtype).requires_grad_(requires_grad)
        theirs = torch.zeros(3, dtype=dtype).requires_grad_(requires_grad)
        world.exchange(mine, theirs, dst=(rank + 1) % size, src=(rank - 1) % size).wait()
        received.append(theirs.detach())
    return received


def test_tensors_of_every_type_and_with_requires_grad_are_received(processes):
    for rank, received in enumerate(processes.run(exchanged_types, 3)):
        for dtype, theirs in zip(SENT, received, strict=True):
            assert torch.equal(theirs, torch.full((3,), (rank - 1) % 3, dtype=dtype))
