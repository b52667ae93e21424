"""Checks what samestep reads from a device, copies to it, and waits for, in this process."""

import time
from pathlib import Path
from unittest import SkipTest

import torch
from torch import nn

from gpu_checks.context import Context, Figures, require
from samestep.base.machine.accelerators import accelerator_count, workers_per_node
from samestep.base.place import Place
from samestep.bench.measurement import finisher
from samestep.doctor.gpus import copy_and_compare
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.launch.local.forking import fork_is_safe
from samestep.parallel.exact.identity import identity
from samestep.ranks.world.device import (
    available_here,
    bind,
    choose_backend,
    choose_device,
    device_id,
    device_name,
    driver_version,
    facts_here,
    peak_device_bytes,
    toolkit_versions,
)
from samestep.ranks.world.timed_region import timed
from samestep.training.checkpoint import random_state as states
from samestep.training.checkpoint.save import Stage
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.data.loader import _DiskReader
from samestep.training.loop.precision import machine_has_bf16

_MEBIBYTE = 1 << 20


def facts(context: Context) -> Figures:
    """Detect the devices, and bind this process to the last one."""
    kind = context.device.type
    here = facts_here(kind)
    place = Place(rank=0, size=1)
    choice = choose_device(here, place, asked=kind)
    backend = choose_backend(kind, asked=None, available=available_here)
    if not context.is_cpu:
        require(here.count == context.count, f"{here.count} devices, expected {context.count}")
        require(accelerator_count() == context.count, f"another process counts {accelerator_count()}")
        require(workers_per_node("gpu", cpus=1) == context.count, "--nproc-per-node gpu is another number")
        require(all(here.uuids), f"a device has no UUID: {here.uuids}")
        require(device_id(torch.device(choice.device)) == choice.uuid, "the UUIDs of one device differ")
        bind(f"{kind}:{here.count - 1}")
        bound = torch.empty(0, device=kind).device
        require(bound.index == here.count - 1, f"new tensors are on {bound} after a binding")
        bind(choice.device)
    name = device_name(context.device)
    require(name, "the device has no name")
    return {
        "name": name,
        "back end": backend,
        "bf16": machine_has_bf16(context.device),
        "driver": driver_version(kind),
        **toolkit_versions(kind),
    }


def copies(context: Context) -> Figures:
    """Copy distinct numbers from the CPU to the device and back."""
    cpu = torch.device("cpu")
    rates = {}
    for source, target in ((cpu, context.device), (context.device, cpu)):
        wrong, values, rate = copy_and_compare(source, target, _MEBIBYTE)
        require(not wrong, f"{wrong} of {values} values are wrong after a copy from {source} to {target}")
        rates[f"GB/s {source.type} to {target.type}"] = rate / 1e9
    return rates


def memory(context: Context) -> Figures:
    """Compare the peak memory with an allocation of known size."""
    before = peak_device_bytes(context.device)
    held = torch.zeros(64 * _MEBIBYTE, dtype=torch.uint8, device=context.device)
    peak = peak_device_bytes(context.device)
    grown, size = peak - before, held.nbytes
    expected = 0 if context.is_cpu else size
    require(expected <= grown <= expected + 4 * _MEBIBYTE, f"the peak grew by {grown} bytes for {size}")
    del held
    require(peak_device_bytes(context.device) == peak, "the peak sinks when memory is freed")
    return {"MiB": peak / _MEBIBYTE}


def random_state(context: Context) -> Figures:
    """Draw, restore the state, and draw again; by the state object and by that of a checkpoint."""
    device = context.device
    seed_generators(7, device)
    first = torch.rand(1000, device=device)
    seed_generators(7, device)
    require(torch.equal(first, torch.rand(1000, device=device)), "one seed gives different numbers")
    saved, stored = RngState.now(device), states.random_state(device)
    second = torch.rand(1000, device=device)
    require(not saved.same(RngState.now(device)), "a draw does not change the state")
    require(not torch.equal(first, second), "two draws are equal")
    saved.restore()
    require(saved.same(RngState.now(device)), "a restored state differs")
    require(torch.equal(second, torch.rand(1000, device=device)), "a restored state draws other numbers")
    states.set_random_state(stored, device)
    require(torch.equal(second, torch.rand(1000, device=device)), "a checkpoint's state draws other numbers")
    states.set_random_state({**stored, "device": None}, device)  # as a checkpoint of a run on the CPU has it
    return {"streams": len(saved.streams())}


def staging(context: Context) -> Figures:
    """Overwrite weights right after a snapshot, many times, and compare the copies."""
    stage, size = Stage(), 4 * _MEBIBYTE
    weights = torch.zeros(size, device=context.device)
    steps = 8
    for step in range(1, steps + 1):
        weights.fill_(step)
        copy = stage.take(Snapshot(model={"w": weights}, optimizer={"m": weights}, state={"step": step}))
        weights.fill_(-1)  # queued after the copy
        stage.settle()
        for name, tensor in (("model", copy.model["w"]), ("optimizer", copy.optimizer["m"])):
            require(tensor.device.type == "cpu", f"the copy of the {name} is on {tensor.device}")
            require(bool((tensor == step).all()), f"the copy of the {name} has values of another step")
    return {"snapshots": steps, "MiB": 2 * weights.nbytes / _MEBIBYTE}


def identity_of_bits(context: Context) -> Figures:
    """Compute the digests of operations twice."""
    first, second = identity(context.device), identity(context.device)
    changed = [name for name, value in first.items() if second[name] != value]
    require(not changed, f"these digests do not repeat: {', '.join(changed)}")
    return {"properties": len(first), "device": first["device"]}


def waiting(context: Context) -> Figures:
    """Queue kernels in a timed region, and compare its seconds with those of an explicit wait."""
    device = context.device
    matrix = torch.rand(2048, 2048, device=device) / 2048
    finish = finisher(device)
    repeats = 2 if context.is_cpu else 200

    def work() -> None:
        for _ in range(repeats):
            matrix @ matrix

    work()
    finish()
    began = time.perf_counter()
    work()
    finish()
    expected = time.perf_counter() - began
    with timed() as region:
        work()
    share = region.seconds / expected
    # A region that does not wait takes only the time to queue the kernels, of which the CPU has none.
    is_right = share > 0.5 or context.is_cpu
    require(is_right, f"a timed region took {share:.2f} of the time of its kernels")
    return {"kernels s": expected, "region s": region.seconds}


def loader(context: Context) -> Figures:
    """Read a data set through a loader with pinned memory, two epochs."""
    count, place = 64, Place(rank=0, size=1)
    images = _Numbered(count)
    reader = _DiskReader(images, place, context.device, workers=2)  # type: ignore[arg-type]
    ids = [torch.arange(start, start + 16) for start in range(0, count, 16)]
    for _ in range(2):
        for one, batch, labels in reader.read(ids):
            moved = batch.to(context.device, non_blocking=True)
            expected = one.view(-1, 1, 1, 1).expand(-1, 3, 4, 4).to(torch.uint8)
            require(torch.equal(moved.cpu(), expected), "a batch has other images")
            require(torch.equal(labels, one), "a batch has other labels")
            pinned = context.is_cpu or batch.is_pinned()
            require(pinned, "a batch of the loader is not in pinned memory")
    return {"batches": 2 * len(ids)}


class _Numbered:
    """A data set whose images have the number of the sample in every pixel."""

    shape = (3, 4, 4)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(self.shape, index, dtype=torch.uint8), index


def forking(context: Context) -> Figures:
    """Check that an open device forbids a fork, which could neither use nor close it."""
    if not Path("/proc/self").exists():
        raise SkipTest("workers are forked on Linux only")
    before = fork_is_safe()
    result = nn.Linear(8, 8).to(context.device)(torch.ones(2, 8, device=context.device))
    require(bool(result.isfinite().all()), "a layer gives NaN")
    after = fork_is_safe()
    require(before, "a fork is refused before a device is open")
    require(after == context.is_cpu, f"fork_is_safe() is {after} with {context.device} in use")
    return {"before": before, "after": after}
