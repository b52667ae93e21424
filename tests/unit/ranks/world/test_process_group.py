"""A script's group has the device of its back ends; a closed world keeps no reference to its group."""

import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from samestep.base.place import Place
from samestep.ranks.world.process_group import ProcessGroupWorld, _device_of_group


@pytest.mark.parametrize(
    ("backends", "available", "device"),
    [
        ("cuda:nccl", "cuda", "cuda:1"),
        ("cpu:gloo,cuda:nccl", "cuda", "cuda:1"),
        ("cpu:gloo,cuda:nccl,xpu:xccl", "xpu", "xpu:1"),
        ("cpu:gloo,cuda:nccl", "", "cpu"),
        ("cpu:gloo,cuda:gloo", "cuda", "cpu"),
        ("cpu:mpi,cuda:mpi", "cuda", "cpu"),
        ("cpu:gloo", "cuda", "cpu"),
    ],
)
def test_a_group_computes_on_the_device_with_its_own_back_end(monkeypatch, backends, available, device):
    def module(kind):
        return SimpleNamespace(is_available=lambda: kind == available, current_device=lambda: 1)

    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(torch, "get_device_module", module)
    assert _device_of_group() == torch.device(device)


def test_a_closed_world_keeps_no_reference_to_its_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = ProcessGroupWorld(Place(), torch.device("cpu"))
    group = weakref.ref(dist.group.WORLD)
    world.sum(1.0)  # a wait starts the world's monitor, which once kept the group
    world.close()

    assert group() is None
