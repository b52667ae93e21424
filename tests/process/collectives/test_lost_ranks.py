"""A rank that is killed or stopped inside a collective is named by all others; no rank waits forever."""

import os
import re
import signal
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import PeerLost
from samestep.ranks.collectives import shared_memory
from samestep.ranks.collectives.direct import Connections
from samestep.ranks.collectives.semaphores import Semaphores
from samestep.ranks.collectives.shared_memory import FILE_SYSTEM, OneHostWorld, on_one_host
from samestep.ranks.hang import peer_waits
from samestep_lab.collectives.algorithms import ALL_GATHER, ALL_REDUCE, BROADCAST
from samestep_lab.testing.checks import CountingWorld
from samestep_lab.testing.ranks import on_processes
from support.tiers import mostly_long

SIZE, LOST = 4, 1
"""Rank 3 of a ring of four exchanges no messages with rank 1."""
ELEMENTS = 400_000
"""So many that each message of the tensor is longer than any in which ranks agree."""


def all_reduce(name, world, tensor):
    ALL_REDUCE[name](world, tensor, "sum")


CALLS = {
    **{f"all_reduce {name}": partial(all_reduce, name) for name in ALL_REDUCE},
    "broadcast in parts": lambda world, tensor: BROADCAST["scatter_all_gather"](world, tensor, 0),
    "all_gather ring": lambda world, tensor: ALL_GATHER["ring"](world, tensor),
}


class SignaledWorld(CountingWorld):
    """A world that sends its rank a signal before a part of a tensor is sent or received."""

    def __init__(self, inner, number):
        super().__init__(inner)
        self.number = number

    def exchange(self, send, receive, *, dst=None, src=None):
        if max(one.nbytes for one in (send, receive) if one is not None) > ELEMENTS // 10:
            os.kill(os.getpid(), self.number)
        return super().exchange(send, receive, dst=dst, src=src)


def with_signal(world, name, number):
    """Return a world whose next call sends this rank a signal, in the middle of the call."""
    if isinstance(world, OneHostWorld):
        posts = count()
        original = Semaphores.post
        patch.object(
            Semaphores, "post", lambda own: original(own) if next(posts) < 2 else os.kill(os.getpid(), number)
        ).start()
    elif name == "all_reduce direct":
        calls, exchange = count(), Connections.exchange
        patch.object(
            Connections,
            "exchange",
            lambda own, *messages, **checks: (
                exchange(own, *messages, **checks) if next(calls) < 2 else os.kill(os.getpid(), number)
            ),
        ).start()
        return world
    elif name == "all_reduce native":
        os.kill(os.getpid(), number)
    return SignaledWorld(world, number) if "shared" not in name else world


def losing(name, number):
    """Return a task in which rank `LOST` gets a signal, and the others return their errors."""

    def task(world):
        rank, store = world.place.rank, _get_default_store()
        pids = world.all_gather_objects(os.getpid())
        if name == "all_reduce shared_memory":
            world = on_one_host(world)
        world = with_signal(world, name, number) if rank == LOST else world
        with pytest.raises(PeerLost) as told:
            CALLS[name](world, torch.ones(ELEMENTS))
        store.set(f"told/{rank}", "")
        if rank == 0:
            store.wait([f"told/{other}" for other in range(SIZE) if other != LOST])
            with suppress(ProcessLookupError):
                os.kill(pids[LOST], signal.SIGKILL)  # one that is stopped would be waited for
        return str(told.value)

    return task


@pytest.fixture
def short_timeouts(monkeypatch):
    """Poll more often and wait for less time than a real network needs."""
    monkeypatch.setattr(peer_waits, "INTERVAL_S", 0.2)
    monkeypatch.setattr(peer_waits, "GRACE_S", 0.8)


@pytest.fixture
def memory(monkeypatch):
    """A folder in the shared-memory file system, in which the memory of this test is allocated."""
    with tempfile.TemporaryDirectory(dir=FILE_SYSTEM) as folder:
        monkeypatch.setattr(shared_memory, "FILE_SYSTEM", Path(folder))
        yield Path(folder)


LOSSES = [(name, signal.SIGKILL) for name in CALLS]
LOSSES += [(name, signal.SIGSTOP) for name in CALLS if "all_reduce" in name]
SHORT = (
    *("all_reduce direct SIGKILL", "all_reduce native SIGKILL", "all_reduce ring SIGKILL"),
    *("all_reduce shared_memory SIGKILL", "broadcast in parts SIGKILL"),
    *("all_reduce direct SIGSTOP", "all_reduce native SIGSTOP", "all_reduce shared_memory SIGSTOP"),
)
"""Each transport, by which a rank is lost in another way."""


@pytest.mark.parametrize("loss", mostly_long(LOSSES, SHORT, lambda loss: f"{loss[0]} {loss[1].name}"))
@pytest.mark.usefixtures("short_timeouts")
def test_a_lost_rank_is_named_by_all_others(loss, memory):
    name, number = loss
    ((*outcomes,),) = on_processes([losing(name, number)], SIZE, timeout_s=30, group_timeout_s=2)

    lost = outcomes.pop(LOST)
    assert lost.error == "the process died"
    for outcome in outcomes:
        said = outcome.value or ""
        assert re.match(f"rank {LOST} (is lost to rank|has died|did not come within)", said), outcome
    assert list(memory.iterdir()) == []


@pytest.mark.usefixtures("short_timeouts")
def test_a_rank_that_waits_for_a_missing_rank_is_not_reported_as_missing():
    def task(world):
        rank, tensor = world.place.rank, torch.ones(1)
        if rank == 2:
            _get_default_store().wait(["told/0", "told/1"])
            return ""
        if rank == 1:
            time.sleep(1.0)  # so that rank 0 has waited for longer, and gives up first
        with pytest.raises(PeerLost) as told:
            world.recv(tensor, src=rank + 1)
        _get_default_store().set(f"told/{rank}", "")
        return str(told.value)

    ((first, second, _),) = on_processes([task], 3, timeout_s=30, group_timeout_s=2)

    assert first.value.startswith("rank 2 is lost to rank 0 (rank 0 waited for rank 1, rank 1 for rank 2): ")
    assert second.value.startswith("rank 2 is lost to rank 1: ")
