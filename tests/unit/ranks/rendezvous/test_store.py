"""The store of all ranks is opened, or the failure is reported with a remedy."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, PrefixStore

from samestep.base.errors import PeerLost, WorldError
from samestep.base.place import Place
from samestep.launchers.detect import from_arguments
from samestep.ranks.rendezvous import store
from samestep.ranks.rendezvous.job_secret import shared_secret
from samestep.ranks.rendezvous.store import generation_name

MAIN = Place(rank=0, size=2, local_size=2)
OTHER = Place(rank=1, size=2, local_rank=1, local_size=2)


def test_a_torch_without_libuv_connects_to_the_store_of_the_agent(monkeypatch):
    from torch.distributed import HashStore

    attempts = []

    def tcp_store(*_address, use_libuv=True, **_options):
        attempts.append(use_libuv)
        if use_libuv:
            raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")
        return HashStore()

    environment = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    monkeypatch.setattr(store, "TCPStore", tcp_store)
    monkeypatch.setattr(store, "_await_listener", lambda *_, **__: None)
    store.open_store(environment, from_arguments(OTHER, environment), master=None, timeout_s=5)

    assert attempts == [True, False]


def test_a_port_in_use_is_reported_with_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as other, shared_secret() as secret:
        port = other.getsockname()[1]
        with pytest.raises(WorldError, match=rf"port {port} is taken on .* Set MASTER_PORT to a free one"):
            store.open_store(
                secret.variables, from_arguments(MAIN, {}), master=("127.0.0.1", port), timeout_s=5
            )


def test_ranks_with_one_secret_share_a_store_and_one_without_it_is_refused(monkeypatch):
    monkeypatch.setattr("samestep.ranks.rendezvous.network_store._FOREIGN_S", 0.05)
    with shared_secret() as ours, shared_secret() as theirs:
        main = store.open_store(
            ours.variables, from_arguments(MAIN, {}), master=("127.0.0.1", 0), timeout_s=5
        )
        base = store.base_of(main)
        main.set("key", "value")
        at = ("127.0.0.1", base.port)

        with pytest.raises(PeerLost, match="--secret-file"):
            store.open_store(theirs.variables, from_arguments(OTHER, {}), master=at, timeout_s=5)
        # Each join of a process has keys of its own: this one is the third.
        reader = store.base_of(
            store.open_store(ours.variables, from_arguments(OTHER, {}), master=at, timeout_s=5)
        )
        assert reader.num_keys() == 1


def test_a_listener_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        store._await_listener("127.0.0.1", server.getsockname()[1], timeout_s=30)


def test_a_missing_listener_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PeerLost, match=f"127.0.0.1:{port}"):
        store._await_listener("127.0.0.1", port, timeout_s=0)


SIZE = 3


def place(rank):
    return Place(rank=rank, size=SIZE, local_rank=0, local_size=1, node=rank, nodes=SIZE)


def names(store, *ranks, timeout_s=10.0):
    """Return the generation names of `ranks`, found at the same time."""
    # Each has a client of its own, as processes have.
    with ThreadPoolExecutor(len(ranks)) as pool:
        asked = [
            pool.submit(generation_name, PrefixStore("p", store), place(rank), timeout_s=timeout_s)
            for rank in ranks
        ]
        return [one.result() for one in asked]


def test_ranks_agree_on_a_name_that_no_earlier_generation_had():
    store = HashStore()
    generations = [names(store, *ranks) for ranks in ((0, 1, 2), (2, 1, 0), (1, 0, 2))]

    assert all(len(set(generation)) == 1 for generation in generations)
    assert len({generation[0] for generation in generations}) == 3


def test_a_message_of_an_ended_rank_does_not_count_as_its_arrival():
    store = HashStore()
    with pytest.raises(PeerLost, match="rank 0 of 3 did not come"):
        names(store, 1, timeout_s=0.05)

    with pytest.raises(PeerLost, match="rank 1 of 3 did not come"):
        names(store, 0, 2, timeout_s=0.3)
    assert len(set(names(store, 0, 1, 2))) == 1
