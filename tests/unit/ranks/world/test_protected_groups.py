"""Connections and objects of a group come from ranks of this job only."""

import pickle
import socket
import struct
import threading
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistNetworkError, PrefixStore, ProcessGroupGloo

from samestep.base.errors import WorldError
from samestep.ranks.rendezvous.network_store import NetworkStore, serve
from samestep.ranks.world import protected_groups
from samestep.ranks.world.protected_groups import Group, connected, opened, own_listeners, sealed

KEY = b"k" * 32
LIMIT = timedelta(seconds=20)
EVERY_ATTEMPT = ("samestep/0/", "samestep/1/")


class Attacked(NetworkStore):
    """The store of a rank to whose Gloo sockets another process connects.

    Args:
        served: the store of the job.
        early: parts of keys of the attempts in which the process connects before the socket is guarded.
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
            for number in range(2):  # Gloo expects a small number only
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
    """Return the addresses at which this process listens and which are in a value that Gloo posts."""
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
    """Return the result of an all-reduce on each rank."""
    values = [torch.tensor([1.0 + rank]) for rank in range(len(groups))]
    for work in [group.allreduce([value]) for group, value in zip(groups, values, strict=True)]:
        work.wait()
    return [float(value) for value in values]


def test_a_group_computes_a_sum_and_accepts_no_further_connections(served):
    stores = [Attacked(served) for _ in range(3)]
    groups = made(stores)

    assert sums(groups) == [6.0] * 3
    for store in stores:
        store.attack(store.addresses)
        assert store.held == []
        assert store.refused == 2
        store.close()


@pytest.mark.parametrize("size", [2, 5])
def test_the_number_of_requests_per_rank_does_not_depend_on_the_number_of_ranks(served, monkeypatch, size):
    """Each request is a round trip to rank 0, where one thread answers all."""
    asked = []
    ask = NetworkStore._ask

    def counted(self, code, parts, **options):
        asked.append(code)
        return ask(self, code, parts, **options)

    monkeypatch.setattr(NetworkStore, "_ask", counted)
    stores = [NetworkStore("127.0.0.1", served.port, KEY) for _ in range(size)]

    assert sums(made(stores)) == [size * (size + 1) / 2] * size
    assert len(asked) == 6 * size + 2  # the last to arrive and the last to send its proof post a value
    for store in stores:
        store.close()


def test_a_process_that_connects_in_the_place_of_a_rank_is_detected_and_refused_in_the_next_attempt(served):
    stores = [Attacked(served, early=("samestep/0/",)) for _ in range(2)]
    groups = made(stores, proofs_s=(0.3, 10.0))

    assert sums(groups) == [3.0] * 2
    for store in stores:
        assert store.held  # in the first attempt
        assert store.refused >= 2  # in the second
        store.close()


def test_a_process_that_connects_first_in_every_attempt_makes_the_group_fail_and_reads_no_data(served):
    stores = [Attacked(served, early=EVERY_ATTEMPT) for _ in range(2)]
    groups = made(stores, proofs_s=(0.2, 0.2))

    assert [type(found) for found in groups] == [DistNetworkError] * 2
    for store in stores:
        for peer in store.held:
            peer.settimeout(0.1)
            with suppress(OSError):
                assert len(peer.recv(4096)) <= 256  # Gloo's header, and a proof for this connection only
        store.close()


def test_an_error_of_gloo_is_raised_unchanged(served):
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


DATA = pickle.dumps({"a": [1, 2]})


def test_a_sealed_object_is_opened_with_the_same_key():
    assert opened(sealed(DATA, b"key"), b"key") == DATA


@pytest.mark.parametrize("change", [b"", DATA, sealed(DATA, b"other"), sealed(DATA, b"key")[:-1]])
def test_data_without_a_valid_seal_is_refused(change):
    with pytest.raises(WorldError):
        opened(change, b"key")


def test_a_change_of_any_byte_is_refused():
    whole = sealed(DATA, b"key")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(WorldError):
            opened(bytes(changed), b"key")


def test_a_later_torch_can_pass_further_arguments(monkeypatch):
    """As torch 2.14 does with `weights_only`."""

    def packs(value, device, group, weights_only=False):
        data = torch.frombuffer(bytearray(pickle.dumps((value, weights_only))), dtype=torch.uint8)
        return data, torch.tensor([data.numel()])

    def unpacks(tensor, size, group, weights_only=False):
        return (*pickle.loads(tensor.numpy().tobytes()[:size]), weights_only)

    monkeypatch.setattr(protected_groups, "_keys", [b"key"])
    pack, unpack = protected_groups._sealing(packs), protected_groups._opening(unpacks)

    for further, named in [((), {}), ((True,), {}), ((), {"weights_only": True})]:
        given = bool(further or named)
        data, size = pack([1], "cpu", None, *further, **named)
        assert unpack(data, size, None, *further, **named) == ([1], given, given)
