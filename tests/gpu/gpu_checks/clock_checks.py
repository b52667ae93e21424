"""Compares the step clock on a device with torch's profiler, with captured graphs, and with itself."""

import time

import torch
from torch import nn

from gpu_checks.context import (
    Context,
    Figures,
    close,
    command,
    require,
    rows,
    succeeded,
    user_script,
)
from gpu_checks.scripts_table import SERIAL
from samestep.base.step_phases import ALL, BACKWARD, FORWARD
from samestep.bench.measurement import finisher
from samestep.observe.instants import DeviceInstants, is_captured
from samestep.observe.step_reader import loop_clock


def events(context: Context) -> Figures:
    """Time kernels by the clock's events and by the profiler; both are times of the device."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    matrix = torch.rand(4096, 4096, device=context.device) / 4096
    instants = DeviceInstants(context.device)

    def work() -> None:
        for _ in range(20):
            matrix @ matrix

    work()
    torch.cuda.synchronize(context.device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        began_s = time.time_ns() / 1e9
        before = instants.now()
        work()
        after = instants.now()
        instants.wait(after)
    # An operation's row repeats the time of its kernels, which have rows of their own.
    own = [one for one in traced.key_averages() if one.device_type == DeviceType.CUDA]
    kernels = sum(one.self_device_time_total for one in own) / 1e6
    clocked = instants.between(before, after)
    close([clocked], [kernels], 0.25, "seconds of the events, against the profiler's")
    offset = abs(instants.epoch_s(before) - began_s)
    require(offset < 1.0, f"the events' Unix time is {offset:.2f} s off")
    require(instants.has_passed(after), "an event that was waited for has not passed")
    return {"events s": clocked, "profiler s": kernels}


def graphs(context: Context) -> Figures:
    """Capture a graph while instants are taken; replay it; the capture stays valid."""
    figures = _clocked(context, "graphs")  # its command is forked before this process opens the device
    device = context.device
    instants = DeviceInstants(device)
    layer = nn.Linear(256, 256, device=device)
    given = torch.ones(64, 256, device=device)
    layer(given)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    before = instants.now()
    with torch.cuda.graph(graph):
        require(is_captured(device), "a capture is not detected")
        during = instants.now()
        result = layer(given)
    require(during is before, "an event was recorded during a capture")
    require(not is_captured(device), "a capture that has ended is still detected")
    graph.replay()
    torch.cuda.synchronize(device)
    require(torch.allclose(result, layer(given), rtol=1e-3, atol=1e-4), "a replay has another result")
    return figures


def run(context: Context) -> Figures:
    """Clock a serial script, and a loop that this process times itself."""
    return {**_clocked(context, "cuda-method"), **_loop(context)}


def _clocked(context: Context, feature: str) -> Figures:
    flags = ("--device", "cpu") if context.is_cpu else ()
    clock = ("--clock", "clock", "--clock-warm-up", 2)
    script = user_script(context, SERIAL)
    succeeded(command(context, "run", "-n", 1, *flags, *clock, script, feature))
    head, *steps, last = rows(context.folder / "clock" / "rank-0.jsonl")
    require(head["device"] == context.device.type, f"the clock's device is {head['device']}")
    require(len(steps) >= 5, f"{len(steps)} steps are clocked")
    for step in steps:
        total = sum(step[phase] for phase in ALL)
        require(
            abs(total - step["seconds"]) < 1e-4 + 0.01 * step["seconds"], f"phases of {step} are {total} s"
        )
    copied = [step["to_device"] for step in steps]
    if not context.is_cpu:
        require(max(copied) > 0, "no copy to the device is clocked")
        require(last["peak_device_bytes"] > 0, "the peak memory of the device is 0")
    return {"steps": len(steps), "median ms": 1e3 * sorted(one["seconds"] for one in steps)[len(steps) // 2]}


def _loop(context: Context) -> Figures:
    """Time two phases by the recipes' clock, and compare their sum with the time of the whole on the host."""
    device, count = context.device, 5
    matrix = torch.rand(1024, 1024, device=device) / 1024
    finish = finisher(device)
    clock = loop_clock(device)

    def work() -> None:
        for _ in range(20):
            matrix @ matrix

    work()
    finish()
    clock.start()
    began = time.perf_counter()
    for _ in range(count):
        work()
        clock.mark(FORWARD)
        work()
        clock.mark(BACKWARD)
        clock.step_done()
    finish()
    expected = time.perf_counter() - began
    steps = clock.drain()
    require(len(steps) == count, f"{len(steps)} steps, expected {count}")
    total = sum(step[FORWARD] + step[BACKWARD] for step in steps)
    close([total], [expected], 0.25, "seconds of the loop's phases, against the host's")
    return {"loop s": total, "host s": expected}
