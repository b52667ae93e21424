"""Ranks that are compatible get their slots; ranks that are not get an error with the difference."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from samestep.base.errors import PeerLost, UsageError, WorldError
from samestep.base.place import Place
from samestep.ranks.rendezvous import handshake
from samestep.ranks.rendezvous.handshake import PeerInfo, assign_slots, rendezvous, shared_device, withdraw
from support.stores import Memory

VERSIONS = {"samestep": "0.1.0", "torch": "2.13.0"}


def infos(size, *, hosts=None, **fields):
    hosts = hosts or ["host"] * size
    return [
        PeerInfo(place=Place(rank=rank, size=size), host=host, versions=VERSIONS, **fields)
        for rank, host in enumerate(hosts)
    ]


def outcomes(infos_of_all):
    """Run the rendezvous of all ranks on one store; return the slot or the error of each."""
    store = Memory()

    def one(info):
        try:
            return rendezvous(store, info, timeout_s=20)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(infos_of_all)) as pool:
        return list(pool.map(one, infos_of_all))


def test_every_rank_keeps_the_place_of_its_launcher():
    given = [
        PeerInfo(
            place=Place(rank=r, size=4, local_rank=r % 2, local_size=2, node=r // 2, nodes=2),
            host="same name everywhere",
            versions=VERSIONS,
        )
        for r in range(4)
    ]
    assert [slot.place for slot in outcomes(given)] == [info.place for info in given]


def test_peer_information_survives_serialization():
    info = replace(infos(1)[0], assumed=("node",), cpus=(0, 1), uuid="GPU-1", kind="cuda", backend="nccl")
    assert PeerInfo.from_json(info.to_json()) == info


@pytest.mark.parametrize(
    ("field", "main", "other", "text"),
    [
        ("versions", VERSIONS, {**VERSIONS, "torch": "2.3.0"}, "version of torch: 2.13.0 .* 2.3.0 on rank 1"),
        ("kind", "cuda", "cpu", "kind of device: cuda .* cpu on rank 1"),
        ("backend", "nccl", "gloo", "back end: nccl .* gloo on rank 1"),
    ],
)
def test_all_ranks_get_an_error_with_the_difference_between_them(field, main, other, text):
    first, second, third = infos(3)
    result = outcomes([replace(first, **{field: main}), replace(second, **{field: other}), third])

    for error in result:
        assert isinstance(error, UsageError)
        with pytest.raises(UsageError, match=text):
            raise error


def test_ranks_with_different_numbers_of_ranks_are_refused():
    first, second = infos(2)
    second = replace(second, place=Place(rank=1, size=3))
    result = outcomes([first, second])
    assert all("number of ranks: 2" in str(error) for error in result)


def test_the_error_of_a_rank_that_cannot_join_is_raised_on_the_others():
    first, second, third = infos(3)
    store = Memory()
    withdraw(store, second, UsageError("no device"))
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(rendezvous, store, info, timeout_s=20) for info in (first, third)]
    for future in futures:
        with pytest.raises(WorldError, match="rank 1 on host cannot join: no device"):
            future.result()


def test_the_error_of_rank_0_that_cannot_join_is_raised_on_the_others():
    first, second = infos(2)
    store = Memory()
    with ThreadPoolExecutor(2) as pool:
        leaving = pool.submit(withdraw, store, first, UsageError("no device"))
        waiting = pool.submit(rendezvous, store, second, timeout_s=20)
    leaving.result()
    with pytest.raises(WorldError, match="rank 0 on host cannot join: no device"):
        waiting.result()


def test_a_rank_that_does_not_arrive_is_named(monkeypatch):
    monkeypatch.setattr(handshake, "_GRACE_S", 0.0)
    first, _ = infos(2)
    with pytest.raises(PeerLost, match="rank 1 of 2 did not come"):
        rendezvous(Memory(), first, timeout_s=0)


def test_two_ranks_on_one_gpu_are_refused():
    same = [replace(info, kind="cuda", backend="nccl", uuid="GPU-7") for info in infos(2)]
    with pytest.raises(UsageError, match="ranks 0 and 1 are on the same device"):
        assign_slots(same)


def test_assumed_places_are_replaced_by_those_of_the_host_names():
    assumed = [
        replace(
            info,
            place=Place(rank=r, size=3, node=r, nodes=3),
            assumed=("local_rank", "local_size", "node", "nodes"),
        )
        for r, info in enumerate(infos(3, hosts=["a", "b", "a"]))
    ]
    settled = [slot.place for slot in assign_slots(assumed)]

    assert [(p.local_rank, p.local_size, p.node, p.nodes) for p in settled] == [
        (0, 2, 0, 2),
        (0, 1, 1, 2),
        (1, 2, 0, 2),
    ]


def test_ranks_that_alternate_between_nodes_get_the_nodes_of_their_hosts():
    """mpirun --map-by node: ranks 0 and 2 on one node, 1 and 3 on the other, with given local ranks."""
    dealt = [
        replace(
            info,
            place=Place(rank=r, size=4, local_rank=r // 2, local_size=2, node=r // 2, nodes=2),
            assumed=("node", "nodes"),
        )
        for r, info in enumerate(infos(4, hosts=["a", "b", "a", "b"]))
    ]
    assert [slot.place.node for slot in assign_slots(dealt)] == [0, 1, 0, 1]
    assert [slot.place.local_rank for slot in assign_slots(dealt)] == [0, 0, 1, 1]


def test_ranks_that_share_cpus_are_counted_per_host():
    masks = [(0, 1), (0, 1), (2, 3), (0, 1)]
    dealt = [replace(info, cpus=mask) for info, mask in zip(infos(4, hosts=list("aaab")), masks, strict=True)]
    assert [slot.sharing for slot in assign_slots(dealt)] == [2, 2, 1, 1]


def test_two_ranks_on_one_gpu_are_refused_under_nccl_alone():
    assert "ranks 0 and 2" in (shared_device("nccl", ["A", "B", "A"]) or "")
    assert shared_device("gloo", ["A", "B", "A"]) is None
    assert shared_device("nccl", ["A", "B", "C"]) is None
    assert shared_device("nccl", ["", ""]) is None
