"""Processes that cannot access the files receive a snapshot, with tensors of any kind."""

import torch

import samestep
from samestep.training.checkpoint.newest import broadcast_snapshot
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.snapshot import Snapshot
from support.snapshots import network, same, stepped

DTYPES = (torch.float64, torch.bfloat16, torch.float8_e5m2, torch.int32, torch.uint16, torch.bool)


def given():
    weights = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    rest = {
        "scalar": torch.tensor(3.0),
        "none": torch.zeros(0, 2),
        "last": images.contiguous(memory_format=torch.channels_last),
        "gaps": torch.arange(10)[::2],
        "list": [torch.ones(1), (1, "a", None)],
    }
    return Snapshot(weights, rest, {"step": 3}, average={"w": torch.ones(2)})


def receive(world):
    found = broadcast_snapshot(world, given() if world.place.is_main else None)
    expected = given()
    assert same(
        [found.model, found.optimizer, found.state], [expected.model, expected.optimizer, expected.state]
    )
    assert same(found.average, expected.average)
    assert found.optimizer["last"].stride() == expected.optimizer["last"].stride()
    return broadcast_snapshot(world, None)


def save_and_load(world, folder):
    torch.manual_seed(world.place.rank)
    model = network(seed=1)
    optimizer = stepped(model)
    samestep.save(folder, model=model, optimizer=optimizer, step=1, world=world)
    drawn = torch.rand(3)
    torch.rand(9)
    again = network(seed=2)
    told = samestep.load(folder, model=again, optimizer=stepped(again), world=world)
    return told, same(dict(again.state_dict()), dict(model.state_dict())), torch.equal(torch.rand(3), drawn)


def test_every_dtype_and_layout_is_received_bit_for_bit(processes):
    assert processes.run(receive, 3) == [None] * 3


def test_each_process_restores_its_own_random_state(processes, tmp_path):
    assert processes.run(save_and_load, 2, tmp_path) == [({"step": 1}, True, True)] * 2
    states = read(tmp_path / "step-1").optimizer["random"]
    assert not torch.equal(states[0]["cpu"], states[1]["cpu"])
