"""Gloo sends messages from the memory of the host; tensors of a device are copied to it."""

import torch

from samestep.ranks.world import process_group


def messages(world):
    """Exchange, send and receive tensors that count as those of a device."""
    rank, other = world.place.rank, 1 - world.place.rank
    found = torch.zeros(3)
    before, process_group._is_on_host = process_group._is_on_host, lambda _: False
    try:
        work = world.exchange(torch.full((3,), float(rank)), found, dst=other, src=other)
        during = found.tolist()
        work.wait()
        exchanged = found.tolist()
        if rank == 0:
            world.send(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T, 1)
            return during, exchanged, None
        received = torch.zeros(2, 2).T
        world.recv(received, 0)
        return during, exchanged, received.tolist()
    finally:
        process_group._is_on_host = before


def test_messages_of_a_device_are_copied_through_the_host(processes):
    first, second = processes.run(messages, 2)
    assert first == ([0.0] * 3, [1.0] * 3, None)
    assert second == ([0.0] * 3, [0.0] * 3, [[1.0, 3.0], [2.0, 4.0]])
