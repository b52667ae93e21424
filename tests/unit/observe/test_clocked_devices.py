"""The step clock takes its instants from the training device, and records none during graph captures."""

import _thread
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from samestep.base.place import Place
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.observe import instants as measured
from samestep.observe import step_clock
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.observe.instants import DeviceInstants, HostInstants
from samestep.observe.step_clock import ScriptClock
from support.clocked_scripts import loader

DEVICE = "meta"
"""A device in the place of an accelerator: models can be trained on it."""


def run(folder, script):
    """Return the first line and the steps of a script's clock file."""
    clocking = ClockOptions(folder=Path(folder), warm_up=0)
    file = ClockFile(clocking, Place(), "serial")
    clock = ScriptClock(file, clocking, stop=lambda: None)
    with clock.attached():
        script()
    clock.end("end")
    header, *lines, _ = (json.loads(line) for line in file.path.read_text().splitlines())
    return header, lines


def train(model, *, device="cpu", before=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        before(step)
        model(torch.ones(4, 3, device=device)).square().mean().backward()
        optimizer.step()


class Queue(HostInstants):
    """Instants of a simulated accelerator."""

    of_device = True

    def __init__(self, device):
        super().__init__()
        self.device = device


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(step_clock, "_WITHOUT_QUEUE", ("cpu",))
    monkeypatch.setattr(step_clock, "DeviceInstants", Queue)


def of_python(wait):
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()


def of_autograd(wait):
    """Call `wait` in a thread that Python did not start, like autograd's for an accelerator."""
    over = _thread.allocate_lock()
    over.acquire()

    def do():
        wait()
        over.release()

    _thread.start_new_thread(do, ())
    over.acquire()


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(("in_a_thread", "counts"), [(of_python, False), (of_autograd, True)])
def test_waits_in_backward_count_only_on_threads_of_autograd(tmp_path, in_a_thread, counts):
    done = torch.futures.Future()
    done.set_result(None)
    model = nn.Linear(3, 1, device=DEVICE)
    model.weight.register_hook(lambda _: in_a_thread(done.wait))

    _, lines = run(tmp_path, lambda: train(model, device=DEVICE))
    assert [line["exposed_sync"] > 0 for line in lines] == [counts] * 3


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("mode", [nn.Module.train, nn.Module.eval])
def test_the_device_is_that_of_the_trained_model_if_a_cpu_model_is_called_first(tmp_path, mode):
    def script():
        encoder = nn.Linear(3, 3)
        with torch.no_grad():
            encoder(torch.ones(2, 3))
        train(mode(nn.Linear(3, 1, device=DEVICE)), device=DEVICE)

    header, lines = run(tmp_path, script)
    assert header["device"] == DEVICE
    assert [line["samples"] for line in lines] == [4] * 3


def test_the_device_is_that_of_the_trained_model_if_a_meta_model_is_called_first(tmp_path):
    def script():
        nn.Linear(3, 3, device="meta")(torch.ones(2, 3, device="meta"))
        train(nn.Linear(3, 1))

    header, lines = run(tmp_path, script)
    assert header["device"] == "cpu"
    assert len(lines) == 3


@pytest.mark.usefixtures("accelerator")
def test_calls_during_a_graph_capture_do_not_count_as_a_step(tmp_path, monkeypatch):
    captured = False
    monkeypatch.setattr(step_clock, "is_captured", lambda device: device.type == DEVICE and captured)

    def before(step):
        nonlocal captured
        captured = step == 1

    _, lines = run(tmp_path, lambda: train(nn.Linear(3, 1, device=DEVICE), device=DEVICE, before=before))
    assert [(line["step"], line["samples"]) for line in lines] == [(0, 4), (1, 4)]


@pytest.mark.usefixtures("accelerator")
def test_device_instants_are_read_by_the_thread_of_the_script(tmp_path, monkeypatch):
    asked = set()

    class Asked(Queue):
        def has_passed(self, instant):
            asked.add(threading.get_ident())
            return super().has_passed(instant)

    monkeypatch.setattr(step_clock, "INTERVAL_S", 0.001)
    monkeypatch.setattr(step_clock, "DeviceInstants", Asked)

    def script():
        train(nn.Linear(3, 1, device=DEVICE), device=DEVICE, before=lambda _: time.sleep(0.02))

    _, lines = run(tmp_path, script)
    assert len(lines) == 3
    assert asked == {threading.get_ident()}


@pytest.mark.usefixtures("accelerator")
def test_a_step_that_never_ends_has_bounded_memory(tmp_path, monkeypatch):
    """If each step is the replay of a graph, no step ends for the clock."""
    monkeypatch.setattr(step_clock, "INTERVAL_S", 0.001)
    file = ClockFile(ClockOptions(folder=tmp_path), Place(), "serial")
    clock = ScriptClock(file, ClockOptions(folder=tmp_path), stop=lambda: None)
    model = nn.Linear(3, 1, device=DEVICE)
    with clock.attached():
        train(model, device=DEVICE)
        for _ in range(50):
            list(loader())
            model(torch.ones(4, 3, device=DEVICE)).square().mean().backward()
        deadline = time.monotonic() + 10
        while clock._log and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not clock._log
    clock.end("end")


class Stuck(Queue):
    """A device that stops after the first step, so that a wait for it never returns."""

    def __init__(self, device):
        super().__init__(device)
        self.moves = True

    def has_passed(self, instant):
        del instant
        moves, self.moves = self.moves, False
        return moves

    def wait(self, instant):
        raise AssertionError(f"waited for {instant}")


class Refusing(Stuck):
    """A device that refuses every call after an error, like CUDA."""

    is_broken = False

    def has_passed(self, instant):
        if self.is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().has_passed(instant)


@pytest.mark.parametrize("kind", [Stuck, Refusing])
def test_after_an_error_only_steps_with_known_instants_are_written(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(step_clock, "_WITHOUT_QUEUE", ("cpu",))
    monkeypatch.setattr(step_clock, "DeviceInstants", kind)
    clocking = ClockOptions(folder=Path(tmp_path), warm_up=0)
    file = ClockFile(clocking, Place(), "serial")
    clock = ScriptClock(file, clocking, stop=lambda: None)
    with clock.attached():
        train(nn.Linear(3, 1, device=DEVICE), device=DEVICE)
    monkeypatch.setattr(Refusing, "is_broken", True)
    clock.end("error: AcceleratorError", "device-side assert triggered")
    _, *lines, last = map(json.loads, file.path.read_text().splitlines())
    assert [line["step"] for line in lines] == [0]
    assert (last["ended"], last["made"]) == ("error: AcceleratorError", 3)


class Event:
    """An event of a simulated accelerator."""

    def __init__(self, device, *, enable_timing):
        assert enable_timing
        self.device = device

    def record(self, stream=None):
        self.stream = stream

    def synchronize(self):
        pass


def test_an_instant_is_recorded_on_the_device_of_the_model_if_another_is_current(monkeypatch):
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    instants = DeviceInstants(torch.device("xpu:1"))
    assert instants.now().stream == "stream of xpu:1"


def test_the_clock_does_not_wait_for_the_device_during_steps(tmp_path, monkeypatch):
    waited = []

    class Late(Event):
        """An event that passes when it is waited for."""

        has_passed = False

        def synchronize(self):
            waited.append(self)
            Late.has_passed = len(waited) > 1  # the first is where the clock begins

        def query(self):
            return Late.has_passed

        def elapsed_time(self, after):
            return 1.0

    monkeypatch.setattr(torch, "Event", Late)
    monkeypatch.setattr(torch.accelerator, "current_stream", str)
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(step_clock, "_WITHOUT_QUEUE", ("cpu",))
    seen = []

    def script():
        train(nn.Linear(3, 1, device=DEVICE), device=DEVICE, before=lambda _: seen.append(len(waited)))
        seen.append(len(waited))

    _, lines = run(tmp_path, script)
    assert (seen, len(waited)) == ([0, 1, 1, 1], 2)
    assert len(lines) == 3


def test_no_instant_is_recorded_during_a_graph_capture(monkeypatch):
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", str)
    monkeypatch.setattr(measured, "is_captured", lambda device: captured)
    captured = False
    instants: DeviceInstants = DeviceInstants(torch.device("cuda:1"))
    before = instants.now()
    captured = True
    assert instants.now() is before
    captured = False
    assert instants.now() is not before


def test_an_accelerator_has_a_unique_id(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=device.index)
    )
    for number, device in enumerate(("cuda:3", "cpu", "meta")):
        file = ClockFile(ClockOptions(folder=tmp_path / str(number)), Place(), "serial")
        file.header(device=torch.device(device), backend="", sync="")
    headers = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/rank-0.jsonl"))]
    assert [header["device_id"] for header in headers] == ["3", "", ""]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_is_captured_under_the_clock_and_later_steps_are_clocked(tmp_path):
    seen: dict[str, Any] = {}

    def script():
        model = nn.Linear(3, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.ones(4, 3, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(batch).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        before = model.weight.clone()
        graph.replay()
        seen["moved"] = bool((model.weight != before).any())
        step()

    header, lines = run(tmp_path, script)
    assert (header["device"], seen["moved"]) == ("cuda", True)
    assert [line["samples"] for line in lines] == [4] * 4
    for line in lines:
        assert line["forward"] > 0
        assert sum(line[phase] for phase in STEP_PHASES) == pytest.approx(line["seconds"])
