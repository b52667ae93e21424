"""Collectives over direct connections between processes equal float64 references."""

import os
import signal
import socket
from functools import partial

import pytest
import torch

from samestep.base.errors import OutOfStep, PeerLost
from samestep.ranks.collectives import peer_connections
from samestep.ranks.collectives.direct import MOST, MOST_LATER, SMALL, by_connections, low_latency
from samestep.ranks.collectives.shared_memory import OneHostWorld
from samestep.ranks.hang.flight_recorder import DIRECT, PROGRESS
from samestep.ranks.rendezvous.authentication import AuthenticationError, connect
from samestep.ranks.world.operation import OPS
from samestep_lab.testing.ranks import on_processes
from support.tiers import long_param

ELEMENTS = [0, 1, 7, SMALL // 8 + 1, MOST // 4, MOST // 4 + 1]
"""Of float32: reduced as a whole, by chunks, and by Gloo."""


def tensor_of(rank, count, dtype):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(1000 * rank + count % 997)) * 10
    return numbers.to(dtype)


def reduced(world):
    """Return the largest error of each reduction relative to its reference, and whether ranks differ."""
    near, found = by_connections(world), {}
    size = world.place.size
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
        for op in OPS:
            if (op == "mean" and dtype is torch.int32) or (op == "product" and dtype is torch.int32):
                continue
            for count in ELEMENTS:
                tensors = [tensor_of(rank, count, dtype) for rank in range(size)]
                own = tensors[world.place.rank].clone()
                near.all_reduce(own, op=op)
                expected = reference(op, tensors)
                error = (own.double() - expected).abs() / (1 + expected.abs())
                all_bits = world.all_gather_objects(own.view(torch.uint8).numpy().tobytes() if count else b"")
                found[op, dtype, count] = (
                    float(error.max()) if count else 0.0,
                    all(bits == all_bits[0] for bits in all_bits),
                )
    return type(near).__name__, found


def reference(op, tensors):
    stacked = torch.stack([one.double() for one in tensors])
    ways = {
        "sum": lambda: stacked.sum(0),
        "mean": lambda: stacked.mean(0),
        "product": lambda: stacked.prod(0),
        "min": lambda: stacked.amin(0),
        "max": lambda: stacked.amax(0),
    }
    return ways[op]()


@pytest.mark.parametrize("size", [2, 3, long_param(5)])
def test_reductions_are_those_of_a_reference_and_equal_on_all_ranks(processes, size):
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-14, torch.bfloat16: 0.05, torch.int32: 0.0}

    for kind, found in processes.run(reduced, size):
        assert kind == "DirectWorld"
        for (op, dtype, count), (error, equal) in found.items():
            assert equal, (op, dtype, count)
            assert error <= tolerance[dtype], (op, dtype, count, error)


def reduced_later(world):
    """Return the sum and the mean of the ranks' numbers in a small and in a large tensor."""
    near, found = by_connections(world), []
    for count in (4, MOST_LATER // 4 + 1):
        for begin in (near.all_reduce_later, near.average_later):
            tensor = torch.full((count,), 1.0 + world.place.rank)
            begin(tensor).wait()
            found += tensor.unique().tolist()
    return found


def test_sums_and_means_that_are_waited_for_later_are_not_confused(processes):
    """Only this finds small gradients that are summed over the ranks of several hosts."""
    assert processes.run(reduced_later, 2) == [[3.0, 1.5] * 2] * 2


def gathered(world):
    near, rank = by_connections(world), world.place.rank
    kinds = {
        "strided": torch.arange(12.0).view(3, 4).t() + rank,
        "number": torch.tensor(rank),
        "empty": torch.ones(0, 3),
        "complex": torch.ones(2, dtype=torch.complex64) * (rank + 1j),
        "conjugate": (torch.ones(2, dtype=torch.complex64) * (rank + 1j)).conj(),
        "bool": torch.tensor([rank == 1, True]),
        "int8": torch.full((5,), rank, dtype=torch.int8),
        "requires_grad": torch.full((2,), float(rank), requires_grad=True),
    }
    return {name: [one.tolist() for one in near.all_gather(tensor)] for name, tensor in kinds.items()}


def test_tensors_of_any_kind_are_gathered_in_rank_order(processes):
    for found in processes.run(gathered, 3):
        assert found["number"] == [0, 1, 2]
        assert found["empty"] == [[], [], []]
        assert found["complex"] == [[complex(rank, 1)] * 2 for rank in range(3)]
        assert found["conjugate"] == [[complex(rank, -1)] * 2 for rank in range(3)]
        assert found["bool"] == [[False, True], [True, True], [False, True]]
        assert found["int8"] == [[rank] * 5 for rank in range(3)]
        assert found["requires_grad"] == [[float(rank)] * 2 for rank in range(3)]
        assert found["strided"][2] == (torch.arange(12.0).view(3, 4).t() + 2).tolist()


def by_which(world):
    """Return which calls the direct connections carry."""
    near = by_connections(world)
    group = PROGRESS[DIRECT]
    calls = {
        "small": partial(near.all_reduce, torch.ones(4)),
        "large": partial(near.all_reduce, torch.ones(MOST // 4 + 1)),
        "average": lambda: near.average_later(torch.ones(4)).wait(),
        "later": lambda: near.all_reduce_later(torch.ones(4)).wait(),
        "large later": lambda: near.all_reduce_later(torch.ones(MOST)).wait(),
        "barrier": near.barrier,
        "object": partial(near.all_gather_objects, "one"),
    }
    carried = []
    for name, call in calls.items():
        before = group.entered
        call()
        carried += [name] * (group.entered - before)
    return carried, group.entered == group.ended, by_connections(world) is near, by_connections(near) is near


def test_small_tensors_use_direct_connections_and_large_ones_use_gloo(processes):
    expected = ["small", "average", "later", "barrier"], True, True, True

    assert processes.run(by_which, 2) == [expected] * 2


def on_new_processes(task, size):
    """Return the results of a task on new processes, in rank order; None for a rank that has died."""
    (outcomes,) = on_processes([task], size, timeout_s=60)
    assert all(one.error in ("", "the process died") and not one.stuck for one in outcomes), outcomes
    return [one.value for one in outcomes]


def unlike(world):
    near = by_connections(world)
    with pytest.raises(OutOfStep) as raised:
        near.all_reduce(torch.ones(2 + world.place.rank))
    return str(raised.value)


def test_ranks_that_make_different_calls_are_named():
    for message in on_new_processes(unlike, 2):
        assert "rank 0 calls all_reduce(sum) of float32 [2]" in message
        assert "rank 1 calls all_reduce(sum) of float32 [3]" in message


def dying(world):
    near = by_connections(world)
    near.barrier()
    if world.place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLost) as raised:
        near.all_reduce(torch.ones(3))
    return str(raised.value)


def test_a_rank_that_dies_is_named_by_the_others():
    found = on_new_processes(dying, 3)

    assert [message is None for message in found] == [False, True, False]
    assert all("rank 1" in message for message in found if message is not None)


def waits_for_a_disconnected_rank(world):
    """Rank 0 loses Gloo's connections while the others wait for it in a direct collective."""
    near = by_connections(world)
    near.barrier()
    if world.place.rank == 0:
        monitor = world._waits._started()
        monitor.sever()
        monitor.stop()
        return "gave up"
    with pytest.raises(PeerLost) as raised:
        near.barrier()
    return str(raised.value)


def test_ranks_that_wait_for_a_disconnected_rank_get_an_error():
    first, *others = on_new_processes(waits_for_a_disconnected_rank, 3)

    assert first == "gave up"
    assert all(others)


def beside_unauthenticated(world):
    """Connect after processes that lack the key; return the world, a sum, and what those processes get."""
    got, served = [], peer_connections._served

    def disturbed(undo, key, callers):
        address, port = served(undo, key, callers)
        garbage = socket.create_connection((address, port))
        garbage.sendall(b"x" * 100)
        got.append(garbage.recv(1))
        garbage.close()
        with pytest.raises(AuthenticationError):
            connect(address, port, b"another key", timeout_s=5)
        got.append(port)
        return address, port

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_connections, "_served", disturbed)
        near = by_connections(world)
    total = torch.ones(2)
    near.all_reduce(total)
    with pytest.raises(ConnectionRefusedError):  # nothing listens any more
        socket.create_connection((peer_connections._address(), got[1]), timeout=5)
    return type(near).__name__, total.tolist(), got[0]


def test_connections_without_the_key_are_refused_and_the_ports_closed():
    assert on_new_processes(beside_unauthenticated, 3) == [("DirectWorld", [3.0, 3.0], b"")] * 3


def not_connected(world):
    with pytest.MonkeyPatch.context() as patch:
        if world.place.rank == 1:
            patch.setattr(peer_connections, "_address", lambda: "")
        near = by_connections(world)
        total = torch.ones(2)
        near.all_reduce(total)
    return type(near).__name__, total.tolist()


def test_ranks_that_cannot_be_connected_use_gloo():
    assert on_new_processes(not_connected, 2) == [("ProcessGroupWorld", [2.0, 2.0])] * 2


def test_ranks_of_one_host_share_memory_instead(processes):
    assert processes.run(kind_of_low_latency, 2) == [OneHostWorld.__name__] * 2


def kind_of_low_latency(world):
    return type(low_latency(world)).__name__
