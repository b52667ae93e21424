"""Worlds of threads and the world of one rank keep the contract of `World`."""

import threading
from pathlib import Path

import pytest
import torch

from samestep.base.errors import DetectionError, OutOfStep, PeerLost, UsageError, WorldError
from samestep.ranks.world.operation import OPS
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks, thread_places
from samestep_lab.testing.checks import CountingWorld

SIZES = (1, 2, 3, 5)


def everywhere(fn, size, *args):
    return [fn(SoloWorld(), *args)] if size == 1 else run_ranks(fn, size, *args, timeout_s=10)


def reduce(world, op):
    tensor = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) * (world.place.rank + 1)
    world.all_reduce(tensor, op=op)
    return tensor.tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_gives_every_rank_the_reduction(size, op):
    inputs = torch.stack([torch.tensor([1.0, -2.0, 3.0]) * (r + 1) for r in range(size)]).double()
    exact = {
        "sum": inputs.sum,
        "mean": inputs.mean,
        "product": inputs.prod,
        "min": inputs.amin,
        "max": inputs.amax,
    }
    expected = exact[op](0).tolist()

    assert everywhere(reduce, size, op) == [expected] * size


def test_all_reduce_leaves_equal_bits_on_all_ranks():
    def fn(world):
        tensor = torch.rand(1000, generator=torch.Generator().manual_seed(world.place.rank))
        world.all_reduce_later(tensor).wait()
        return tensor

    first, *others = run_ranks(fn, 4)

    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("size", SIZES)
def test_mean_weights_by_samples_and_ignores_a_rank_without_any(size):
    def fn(world):
        empty = world.place.rank == world.place.size - 1 and world.place.size > 1
        value = float("nan") if empty else float(world.place.rank)
        return world.mean(value, weight=0 if empty else world.place.rank + 1)

    ranks = range(size - 1) if size > 1 else range(1)
    expected = sum(r * (r + 1) for r in ranks) / sum(r + 1 for r in ranks)

    assert everywhere(fn, size) == pytest.approx([expected] * size)


def test_mean_over_no_samples_at_all_is_nan():
    assert str(SoloWorld().mean(1.0, weight=0)) == "nan"


@pytest.mark.parametrize("size", SIZES)
def test_objects_and_tensors_are_gathered_in_rank_order(size):
    def fn(world):
        rank = world.place.rank
        tensor = torch.full((2,), float(rank))
        world.broadcast(tensor, src=world.place.size - 1)
        return (
            world.sum(rank + 0.5),
            world.all_gather_objects(f"r{rank}"),
            world.broadcast_object(rank, src=world.place.size - 1),
            tensor.tolist(),
            [t.item() for t in world.all_gather(torch.tensor(rank))],
        )

    last = size - 1
    expected = (
        sum(r + 0.5 for r in range(size)),
        [f"r{r}" for r in range(size)],
        last,
        [float(last)] * 2,
        list(range(size)),
    )
    assert everywhere(fn, size) == [expected] * size


def test_send_and_receive_keep_their_order():
    def fn(world):
        if world.place.rank == 0:
            for value in (1.0, 2.0):
                world.send(torch.tensor([value]), dst=1)
            return []
        got = torch.empty(1)
        received = []
        for _ in range(2):
            world.recv(got, src=0)
            received.append(got.item())
        return received

    assert run_ranks(fn, 2) == [[], [1.0, 2.0]]


@pytest.mark.parametrize("wrap", [lambda world: world, CountingWorld])
def test_former_names_of_methods_and_arguments_work_with_a_warning(wrap):
    def former(world):
        world, rank, got = wrap(world), world.place.rank, torch.full((1,), -1.0)
        own = torch.full((1,), 5.0 + rank)
        world.send(own, to=1) if rank == 0 else world.receive(got, source=0)
        pending = world.exchange(own, got, to=0) if rank else world.exchange(None, got, source=1)
        pending.wait()
        world.broadcast(own, source=1)
        return own.item(), got.item(), world.broadcast_object(rank, source=1)

    def present(world):
        world, rank, got = wrap(world), world.place.rank, torch.full((1,), -1.0)
        own = torch.full((1,), 5.0 + rank)
        world.send(own, 1) if rank == 0 else world.recv(got, 0)
        pending = world.exchange(own, got, dst=0) if rank else world.exchange(None, got, src=1)
        pending.wait()
        world.broadcast(own, 1)
        return own.item(), got.item(), world.broadcast_object(rank, 1)

    with pytest.warns(DeprecationWarning, match="is now") as caught:
        assert run_ranks(former, 2) == run_ranks(present, 2) == [(6.0, 6.0, 1), (6.0, 5.0, 1)]
    texts = [str(one.message) for one in caught]
    assert len(texts) == 8  # a wrapper calls by the present names
    for old, new in (
        ("send(to=)", "send(dst=)"),
        ("World.receive(source=)", "World.recv(src=)"),
        ("exchange(source=)", "exchange(src=)"),
        ("broadcast(source=)", "broadcast(src=)"),
        ("broadcast_object(source=)", "broadcast_object(src=)"),
    ):
        assert any(f"{old} is now " in text and new in text for text in texts)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_deadlock_of_sends_is_reported_with_its_ranks(size):
    def fn(world):
        me, got = world.place.rank, torch.empty(1)
        world.send(torch.ones(1), dst=(me + 1) % size)
        world.recv(got, src=(me - 1) % size)

    with pytest.raises(OutOfStep, match="wait for each other") as told:
        run_ranks(fn, size)
    for rank in range(size):
        assert f"rank {rank} sends to rank {(rank + 1) % size} (tensor)" in str(told.value)


def test_a_deadlock_of_receives_is_reported_without_a_third_rank_that_waits():
    def fn(world):
        world.recv(torch.empty(1), src=(1, 0, 0)[world.place.rank])

    with pytest.raises(OutOfStep, match="rank 0 receives from rank 1") as told:
        run_ranks(fn, 3)
    assert "rank 2" not in str(told.value)


def test_simultaneous_sends_and_receives_do_not_deadlock():
    def fn(world):
        me, size = world.place.rank, world.place.size
        got = torch.empty(2)
        mine = torch.tensor([me, -me], dtype=torch.float32)
        pending = world.exchange(mine, got, dst=(me + 1) % size, src=(me - 1) % size)
        pending.wait()
        only_sent = world.exchange(mine, None, dst=0) if me else world.exchange(None, mine, src=size - 1)
        only_sent.wait()
        return got.tolist()

    assert run_ranks(fn, 2) == [[1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize("size", SIZES)
def test_on_main_runs_once_and_gives_its_result_to_all(size):
    calls = []

    def fn(world):
        return world.on_main(lambda: calls.append(world.place.rank) or "made")

    assert everywhere(fn, size) == ["made"] * size
    assert calls == [0]


class Locked(OSError):
    """An error that pickles, and cannot be made again from its message."""

    def __init__(self, name, owner):
        super().__init__(f"{name} is locked by {owner}")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("error", [UsageError("no such folder"), ValueError("odd"), Locked("a", "b")])
def test_an_error_on_main_is_raised_on_every_rank(size, error):
    def fail():
        raise error

    def fn(world):
        try:
            world.on_main(fail)
        except Exception as caught:
            return type(caught), str(error) in str(caught)
        return None

    first, *others = everywhere(fn, size)
    assert first == (type(error), True)
    assert others == [(UsageError if isinstance(error, UsageError) else WorldError, True)] * (size - 1)


def test_a_result_on_main_that_cannot_be_sent_is_an_error_on_every_rank():
    def fn(world):
        with pytest.raises(WorldError, match="cannot pickle"):
            world.on_main(threading.Lock)
        return world.sum(1.0)

    assert run_ranks(fn, 2) == [2.0, 2.0]


def test_main_first_runs_rank_0_before_the_others():
    order = []

    def fn(world):
        with world.main_first():
            order.append(world.place.rank)

    run_ranks(fn, 4)
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2, 3]


def test_an_error_of_rank_0_in_main_first_is_raised_on_all_ranks():
    def fn(world):
        try:
            with world.main_first():
                raise UsageError("disk full")
        except UsageError as error:
            return str(error)

    assert run_ranks(fn, 3) == ["disk full"] * 3


def test_an_error_of_one_rank_ends_the_waits_of_the_others_and_is_raised():
    def fn(world):
        if world.place.rank == 2:
            raise ZeroDivisionError("rank two")
        world.barrier()

    with pytest.raises(ZeroDivisionError, match="rank two"):
        run_ranks(fn, 3)


def test_a_rank_that_sends_nothing_is_named_after_the_timeout():
    silent = threading.Event()

    def fn(world):
        if world.place.rank == 1:
            return silent.wait()
        try:
            world.recv(torch.empty(1), src=1)
        finally:
            silent.set()

    with pytest.raises(PeerLost, match=r"0 receives from rank 1 \(tensor\), which sends nothing for 0\.05 s"):
        run_ranks(fn, 2, timeout_s=0.05)


@pytest.mark.parametrize("call", ["send", "receive"])
def test_waiting_for_a_rank_that_has_ended_raises_peer_lost(call):
    def fn(world):
        if world.place.rank == 0:
            world.send(torch.ones(1), dst=1) if call == "send" else world.recv(torch.ones(1), src=1)

    with pytest.raises(PeerLost, match=r"rank 1 .*it has ended"):
        run_ranks(fn, 2)


def test_tensors_of_different_shapes_are_refused_with_both_shapes():
    def fn(world):
        world.all_reduce(torch.zeros(2 + world.place.rank))

    with pytest.raises(OutOfStep, match=r"\(2,\).*\(3,\)"):
        run_ranks(fn, 2)


def test_the_current_world_is_that_of_the_rank_and_solo_outside():
    assert run_ranks(lambda world: current() is world, 3) == [True] * 3
    assert current().place.size == 1


def test_a_launched_process_that_has_not_joined_is_refused(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(DetectionError, match="has not joined"):
        current()


def test_solo_world_refuses_messages_and_other_sizes():
    with pytest.raises(WorldError, match="world of one"):
        SoloWorld().send(torch.zeros(1), dst=1)
    with pytest.raises(WorldError, match="world of one"):
        SoloWorld().exchange(None, torch.zeros(1), src=1)
    SoloWorld().exchange(None, None).wait()
    with pytest.raises(WorldError, match="rank 1 of 3"):
        SoloWorld(place=thread_places(3)[1])


def test_places_are_assigned_in_blocks_with_more_ranks_on_earlier_nodes():
    places = thread_places(5, nodes=2)

    assert [(p.node, p.local_rank, p.local_size) for p in places] == [
        (0, 0, 3),
        (0, 1, 3),
        (0, 2, 3),
        (1, 0, 2),
        (1, 1, 2),
    ]


def test_print_prints_on_rank_0_only(capsys):
    run_ranks(lambda world: world.print("hello", world.place.rank), 3)

    assert capsys.readouterr().out == "hello 0\n"


def test_the_threads_of_the_ranks_have_left_the_system_when_the_results_are_returned():
    for _ in range(20):
        ranks = run_ranks(lambda _: threading.get_native_id(), 4)
        assert not any(Path(f"/proc/self/task/{rank}").exists() for rank in ranks)
