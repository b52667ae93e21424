"""Communication is separated from the phase in which a rank waits for it."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.communication import MIN_ELEMENTS
from samestep.observe.instants import thread_cpu_clock
from samestep.observe.step_clock import ScriptClock
from samestep.observe.step_reader import StepReader
from samestep.parallel.gradients.replicate import replicate

STEPS = 3
KEPT = []


class KeepingReader(StepReader):
    """A reader that also keeps the steps in memory."""

    def read(self):
        steps = super().read()
        KEPT.extend(step for step in steps if step is not None)
        return steps


def clocked(place, folder, script, *, overlaps=False):
    """Return the phases of the last step of a script, in order, and the samples of each step."""
    from samestep.observe import step_clock as module

    KEPT.clear()
    module.StepReader, found = KeepingReader, module.StepReader
    try:
        clocking = ClockOptions(folder=Path(folder), warm_up=0)
        clock = ScriptClock(ClockFile(clocking, place, "native"), clocking, stop=lambda: None)
        with clock.attached():
            script()
        clock.end("end")
    finally:
        module.StepReader = found
    # CPU time is read only if communication overlaps with backward.
    is_read = overlaps and thread_cpu_clock() is not None
    assert overlaps is None or all(step.overlaps == overlaps for step in KEPT)
    assert overlaps is None or all((step.readings is not None) == is_read for step in KEPT[1:])
    return [phase for phase, _ in groupby(KEPT[-1].marks[2::2])], [step.samples for step in KEPT]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(model, *, averaged=lambda model: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(4, 3)).square().mean().backward()
        averaged(model)
        optimizer.step()


def with_ddp(world, folder):
    model = DistributedDataParallel(network())
    return clocked(world.place, folder, lambda: train(model), overlaps=True)


def with_large_gradients(world, folder):
    model = DistributedDataParallel(nn.Linear(MIN_ELEMENTS, 1, bias=False))

    def communicates(_, bucket):  # called by DDP's own hook once the last gradient is copied
        dist.barrier()
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, communicates)

    def script():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            model(torch.ones(4, MIN_ELEMENTS)).mean().backward()
            optimizer.step()

    return clocked(world.place, folder, script, overlaps=True)


def by_hand_after_a_copy_that_failed(world, folder):
    def fails(_, bucket):  # called between the copy's beginning and its end
        raise ValueError(bucket.index())

    def averaged(_):
        large = DistributedDataParallel(nn.Linear(MIN_ELEMENTS, 1, bias=False))
        large.register_comm_hook(None, fails)
        with pytest.raises(ValueError, match="0"):
            large(torch.ones(4, MIN_ELEMENTS)).mean().backward()
        dist.barrier()

    return clocked(world.place, folder, lambda: train(network(), averaged=averaged), overlaps=True)[0]


class Holding(nn.Module):
    """A model with a part that is wrapped by DDP."""

    def __init__(self, model):
        super().__init__()
        self.model = DistributedDataParallel(model)

    def forward(self, inputs):
        return self.model(inputs)


def held_or_compiled(world, folder):
    def compiled(model):
        return torch.compile(DistributedDataParallel(model), backend="eager")

    is_read = set()
    for number, made in enumerate((Holding, compiled)):
        model, below = made(nn.Linear(MIN_ELEMENTS, 1, bias=False)), Path(folder) / str(number)

        def script(model=model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(STEPS):
                model(torch.ones(4, MIN_ELEMENTS)).mean().backward()
                optimizer.step()

        phases, _ = clocked(world.place, below, script, overlaps=True)
        header = json.loads((below / f"rank-{world.place.rank}.jsonl").read_text().splitlines()[0])
        is_read.add((header["sync"], *phases))
    return is_read


def accumulating(world, folder):
    model = DistributedDataParallel(nn.Linear(3, 1))

    def script():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            with model.no_sync():
                model(torch.ones(2, 3)).square().mean().backward()
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()

    return clocked(world.place, folder, script, overlaps=True)


def in_every_second_step(world, folder):
    model = DistributedDataParallel(nn.Linear(3, 1))

    def script():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            with model.no_sync() if step % 2 else nullcontext():
                model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    clocked(world.place, folder, script, overlaps=None)
    return [(step.overlaps, step.readings is not None) for step in KEPT]


def with_fsdp(world, folder):
    model = nn.Linear(3, 4)
    fully_shard(model)
    return clocked(world.place, folder, lambda: train(model))


def by_hand(world, folder):
    def average(model):
        works = [dist.all_reduce(one.grad, async_op=True) for one in model.parameters()]
        for work in works:
            work.wait()

    return clocked(world.place, folder, lambda: train(network(), averaged=average))


def in_hooks(world, folder):
    model = network()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    return clocked(world.place, folder, lambda: train(model), overlaps=True)


class Averaging(torch.optim.SGD):
    """An optimizer that averages gradients in its step."""

    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                dist.all_reduce(one.grad)
        return super().step(closure)


def step_within_backward(world, folder, model, optimizer):
    optimizers = {one: optimizer([one], lr=0.1) for one in model.parameters()}
    for one, its in optimizers.items():
        one.register_post_accumulate_grad_hook(lambda _, its=its: its.step())

    def script():
        for _ in range(STEPS):
            model(torch.ones(4, 3)).square().mean().backward()

    clocked(world.place, folder, script, overlaps=None)


def in_steps_within_backward(world, folder):
    step_within_backward(world, folder, network(), Averaging)
    return {step.overlaps for step in KEPT}


def with_steps_within_backward(world, folder):
    step_within_backward(world, folder, DistributedDataParallel(nn.Linear(3, 1)), torch.optim.SGD)
    all_readings = [
        dict(zip(step.readings[::2], step.readings[1::2], strict=True)) for step in KEPT if step.readings
    ]
    return [reading.ran > 0 for readings in all_readings for reading in readings.values()]


def with_barriers(world, folder):
    return clocked(world.place, folder, lambda: train(network(), averaged=lambda _: dist.barrier()))


def with_synchronizer(world, folder, sync):
    model = network()
    place = replace(
        world.place, launcher=sync
    )  # another job: of several models of one only the first overlaps
    world.place, found = place, world.place
    try:
        replicas = replicate(model, world, sync=sync, batch_norm="local")
        result = clocked(place, folder, lambda: train(model))
        replicas.detach()
    finally:
        world.place = found
    return result


PLAIN = ["forward", "backward", "exposed_sync", "other", "optimizer"]


@pytest.mark.parametrize(
    ("script", "phases"),
    [
        # The buffers of batch norm are broadcast in each forward.
        (with_ddp, ["other", "forward", "exposed_sync", *PLAIN]),
        # DDP copies a gradient, and begins the exchange, within backward.
        (with_large_gradients, ["other", *PLAIN[:2], "exposed_sync", *PLAIN[1:]]),
        (accumulating, ["other", "forward", "backward", "exposed_sync", "other", *PLAIN]),
        # Parameters are gathered in forward, and gradients scattered before backward returns.
        (with_fsdp, ["other", "forward", "exposed_sync", *PLAIN]),
        (in_hooks, ["other", "forward", *["backward", "exposed_sync"] * 7, "other", "optimizer"]),
        (by_hand, ["other", *PLAIN[:-1], *["exposed_sync", "other"] * 12, "optimizer"]),
        (with_barriers, ["other", *PLAIN[:-1], "exposed_sync", "other", "optimizer"]),
    ],
)
def test_communication_of_a_distributed_script_is_a_separate_phase(processes, tmp_path, script, phases):
    for seen, samples in processes.run(script, 2, str(tmp_path)):
        assert seen == phases
        assert samples == [4] * STEPS


@pytest.mark.skipif(thread_cpu_clock() is None, reason="this system does not tell it")
def test_cpu_time_is_read_in_the_next_step_with_overlap(processes, tmp_path):
    for is_read in processes.run(in_every_second_step, 2, str(tmp_path)):
        assert is_read == [(True, False), (False, True), (True, True)]


def test_communication_of_an_optimizer_inside_backward_is_not_overlapped(processes, tmp_path):
    assert processes.run(in_steps_within_backward, 2, str(tmp_path)) == [{False}] * 2


@pytest.mark.skipif(thread_cpu_clock() is None, reason="this system does not tell it")
def test_a_step_that_begins_inside_backward_has_cpu_readings(processes, tmp_path):
    for is_read in processes.run(with_steps_within_backward, 2, str(tmp_path)):
        assert is_read
        assert all(is_read)


def test_communication_after_a_backward_that_failed_in_one_is_recorded(processes, tmp_path):
    for seen in processes.run(by_hand_after_a_copy_that_failed, 2, str(tmp_path)):
        assert seen[-6:] == ["backward", "exposed_sync", "other", "exposed_sync", "other", "optimizer"]


def test_ddp_is_found_in_compiled_and_nested_models(processes, tmp_path):
    copied = (*PLAIN[:2], "exposed_sync", *PLAIN[1:])
    for is_read in processes.run(held_or_compiled, 2, str(tmp_path)):
        assert is_read == {("ddp", "other", *copied)}


@pytest.mark.parametrize("sync", ["reference", "bucketed", "ddp"])
def test_a_synchronizer_communicates_after_backward(processes, tmp_path, sync):
    for seen, _ in processes.run(with_synchronizer, 2, str(tmp_path), sync):
        assert seen[-4:] == ["backward", "exposed_sync", "other", "optimizer"]
