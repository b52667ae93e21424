"""The step clock records how many bytes of gradients each worker sends."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.step_clock import ScriptClock
from samestep.parallel.gradients.replicate import replicate

STEPS = 2
WEIGHTS = 4 * (3 + 1)
"""Bytes of the gradients of `nn.Linear(3, 1)`."""


def sent(world, folder, script):
    """Return the back end of the gradients of a script, and the recorded bytes of each step."""
    clocking = ClockOptions(folder=Path(folder), warm_up=0)
    file = ClockFile(clocking, world.place, "native")
    clock = ScriptClock(file, clocking, stop=lambda: None)
    with clock.attached():
        script()
    clock.end("end")
    header, *steps, _ = map(json.loads, file.path.read_text().splitlines())
    return header["backend"], [step["exchange_bytes"] for step in steps]


def train(model, *, backwards=1, averaged=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        for _ in range(backwards):
            model(torch.ones(4, 3)).square().mean().backward()
        averaged()
        optimizer.step()


def frozen():
    model = nn.Linear(3, 1)
    model.bias.requires_grad_(requires_grad=False)
    return model


def natively(world, folder, script):
    return sent(world, folder, script)


def one_backward():
    train(DistributedDataParallel(nn.Linear(3, 1)))


def two_backwards():
    train(DistributedDataParallel(nn.Linear(3, 1)), backwards=2)


def without_sync():
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        with model.no_sync():
            model(torch.ones(4, 3)).square().mean().backward()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()


def partly_frozen():
    train(DistributedDataParallel(frozen()))


def halved_by_a_hook():
    model = DistributedDataParallel(nn.Linear(3, 1))
    model.register_comm_hook(None, fp16_compress_hook)
    train(model)


def halved_by_a_hook_after_a_forward():
    model = DistributedDataParallel(nn.Linear(3, 1))
    model(torch.ones(4, 3))
    model.register_comm_hook(None, fp16_compress_hook)
    train(model)


def by_hand():
    model = nn.Linear(3, 1)
    train(model, averaged=lambda: [dist.all_reduce(one.grad) for one in model.parameters()])


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (one_backward, WEIGHTS),
        (two_backwards, 2 * WEIGHTS),
        (without_sync, WEIGHTS),
        (partly_frozen, WEIGHTS - 4),
        (halved_by_a_hook, None),
        (halved_by_a_hook_after_a_forward, None),
        (by_hand, None),
    ],
)
def test_bytes_of_distributed_models_of_a_native_script_are_recorded(processes, tmp_path, script, wanted):
    assert processes.run(natively, 2, str(tmp_path), script) == [("gloo", [wanted] * STEPS)] * 2


def replicated(world, folder, sync, compress):
    model = frozen()
    replicas = replicate(model, world, sync=sync, compress=compress)
    recorded = sent(world, folder, lambda: train(model))
    replicas.detach()
    return recorded


@pytest.mark.parametrize(
    ("sync", "compress", "wanted"),
    [
        ("reference", None, 12),
        ("bucketed", None, 12),
        ("flat", None, 12),
        ("bucketed", "fp16", 6),
        ("ddp", None, 12),
        ("ddp", "powersgd", None),
    ],
)
def test_bytes_of_a_synchronizer_are_those_of_compressed_gradients(
    processes, tmp_path, sync, compress, wanted
):
    carrier = "shared memory" if sync == "flat" else "gloo"
    recorded = processes.run(replicated, 2, str(tmp_path), sync, compress)
    assert recorded == [(carrier, [wanted] * STEPS)] * 2
