"""Gloo's groups are made of this job's ranks; whoever else is quicker does not get in.

Ranks are threads, and so is the stranger, who connects to each socket of Gloo's when it listens.
"""

import socket
import struct
import threading
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistNetworkError, PrefixStore, ProcessGroupGloo

from samestep.ranks.rendezvous.network_store import NetworkStore, serve
from samestep.ranks.rendezvous.packet_filter import own_listeners
from samestep.ranks.world.gloo_groups import Group, connected

KEY = b"k" * 32
LIMIT = timedelta(seconds=20)
EVERY_ATTEMPT = ("samestep/0/", "samestep/1/")


class Attacked(NetworkStore):
    """The store of a rank whose Gloo a stranger connects to.

    Args:
        served: the job's.
        early: parts of keys of the attempts in which the stranger comes before the socket is guarded.
    """

    def __init__(self, served, early=()):
        super().__init__("127.0.0.1", served.port, KEY)
        self.early = early
        self.held, self.refused, self.addresses = [], 0, []

    def set(self, key, value):
        found = addresses_in(value)
        self.addresses += found
        if any(part in key for part in self.early):
            self.attack(found)
        super().set(key, value)
        if self.early:
            self.attack(found)

    def attack(self, found):
        for address in found:
            for number in range(2):  # Gloo asks for a small number and nothing else
                self.refused += not self.comes_in(address, number)

    def comes_in(self, address, number):
        with suppress(OSError):
            self.held.append(socket.create_connection(address, timeout=0.05))
            self.held[-1].sendall(number.to_bytes(8, "little"))
            return True
        return False

    def close(self):
        super().close()
        for peer in self.held:
            peer.close()


def addresses_in(value):
    """Return where this process listens, if this is what Gloo posts of it."""
    found = []
    for listener in own_listeners():
        with closing(listener):
            address = listener.getsockname()
            if struct.pack("=H", listener.family) + struct.pack("!H", address[1]) in value:
                found.append(address)
    return found


@pytest.fixture
def served():
    with closing(serve("127.0.0.1", 0, KEY, everywhere=False)) as found:
        yield found


def made(stores, **options):
    """Return Gloo's groups of ranks with these stores, or their errors."""
    found = [None] * len(stores)

    def rank(number):
        store = stores[number]
        try:
            group = Group(store, PrefixStore("group", store), number, len(stores), LIMIT)
            found[number] = connected(ProcessGroupGloo, group, **options)
        except RuntimeError as error:
            found[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def sums(groups):
    """Return what each rank has after a sum over all."""
    values = [torch.tensor([1.0 + rank]) for rank in range(len(groups))]
    for work in [group.allreduce([value]) for group, value in zip(groups, values, strict=True)]:
        work.wait()
    return [float(value) for value in values]


def test_a_group_works_and_takes_no_more_connections(served):
    stores = [Attacked(served) for _ in range(3)]
    groups = made(stores)

    assert sums(groups) == [6.0] * 3
    for store in stores:
        store.attack(store.addresses)
        assert store.held == []
        assert store.refused == 2
        store.close()


@pytest.mark.parametrize("size", [2, 5])
def test_a_rank_makes_as_few_requests_however_many_there_are(served, monkeypatch, size):
    """Each is a round trip to rank 0, whose one thread answers all of them."""
    asked = []
    ask = NetworkStore._ask

    def counted(self, code, parts, **options):
        asked.append(code)
        return ask(self, code, parts, **options)

    monkeypatch.setattr(NetworkStore, "_ask", counted)
    stores = [NetworkStore("127.0.0.1", served.port, KEY) for _ in range(size)]

    assert sums(made(stores)) == [size * (size + 1) / 2] * size
    assert len(asked) == 6 * size + 2  # the last one to come, and to prove itself, posts a value
    for store in stores:
        store.close()


def test_a_stranger_who_takes_the_place_of_a_rank_is_found_and_kept_out(served):
    stores = [Attacked(served, early=("samestep/0/",)) for _ in range(2)]
    groups = made(stores, proofs_s=(0.3, 10.0))

    assert sums(groups) == [3.0] * 2
    for store in stores:
        assert store.held  # in the first attempt
        assert store.refused >= 2  # in the second
        store.close()


def test_a_stranger_who_is_always_quicker_gets_an_error_and_nothing_else(served):
    stores = [Attacked(served, early=EVERY_ATTEMPT) for _ in range(2)]
    groups = made(stores, proofs_s=(0.2, 0.2))

    assert [type(found) for found in groups] == [DistNetworkError] * 2
    for store in stores:
        for peer in store.held:
            peer.settimeout(0.1)
            with suppress(OSError):
                assert len(peer.recv(4096)) <= 256  # Gloo's head, and a proof that is of no other use
        store.close()


def test_what_gloo_refuses_is_its_own_error_at_once(served):
    def refuses(*_, **__):
        raise RuntimeError("no such interface")

    group = Group(served, PrefixStore("group", served), 0, 1, LIMIT)
    with pytest.raises(RuntimeError, match="no such interface"):
        connected(refuses, group)


def test_a_group_of_the_same_name_can_be_made_again(served):
    stores = [Attacked(served) for _ in range(2)]

    assert sums(made(stores)) == [3.0] * 2
    assert sums(made(stores)) == [3.0] * 2
    for store in stores:
        store.close()
