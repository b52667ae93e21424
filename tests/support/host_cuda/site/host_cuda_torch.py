"""Replaces functions of torch.cuda and torch.accelerator by those of the device, after torch is loaded."""

import os
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch


class Stream(torch.Stream):
    """The stream of the device, in which nothing waits."""

    def __new__(cls, device=None, priority=0, **_):
        """Return the one stream."""
        return super().__new__(cls, device="cuda:0")

    def record_event(self, event=None):
        """Record an event now."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        """Do nothing: what was recorded has ended."""


class Event:
    """A time."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.recorded_s = None

    def record(self, stream=None):
        """Keep the time."""
        self.recorded_s = time.perf_counter()

    def wait(self, stream=None):
        """Do nothing."""

    def synchronize(self):
        """Do nothing."""

    def query(self):
        """Return that it has happened."""
        return True

    def elapsed_time(self, end):
        """Return the milliseconds until another event."""
        return 1e3 * (end.recorded_s - self.recorded_s)


def change():
    """Let torch's Python code find the device."""
    with _quiet_stderr():  # torch warns of replaced kernels
        torch.ops.host_cuda.replace_collectives()
    _describe_device(torch.cuda)
    _add_random_state(torch.cuda, torch.ops.host_cuda.default_generator())
    _add_memory(torch.cuda, torch.ops.host_cuda)
    _let_storages_be_copied()
    accelerator = torch.accelerator
    accelerator.is_available = torch.cuda.is_available
    accelerator.device_count = torch.cuda.device_count
    accelerator.current_accelerator = lambda **_: torch.device("cuda") if torch.cuda.is_available() else None
    accelerator.current_device_index = torch.cuda.current_device
    accelerator.set_device_index = torch.cuda.set_device
    accelerator.synchronize = torch.cuda.synchronize


def _describe_device(cuda):
    opened = []
    properties = SimpleNamespace(
        name="host",
        major=9,
        minor=0,
        total_memory=8 << 30,
        multi_processor_count=1,
        uuid="GPU-host",
        pci_bus_id=0,
    )
    cuda.is_available = lambda: os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    cuda.device_count = lambda: int(cuda.is_available())
    cuda.is_initialized = lambda: bool(opened)
    cuda.init = cuda._lazy_init = lambda: opened or opened.append(True)
    cuda.current_device = lambda: 0
    cuda.set_device = lambda device: None
    cuda.synchronize = lambda device=None: None
    cuda.get_device_name = lambda device=None: properties.name
    cuda.get_device_capability = lambda device=None: (properties.major, properties.minor)
    cuda.get_device_properties = lambda device=None: properties
    cuda.is_bf16_supported = lambda **_: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_stream = cuda.default_stream = lambda device=None: Stream()
    cuda.stream = cuda.device = cuda.device_of = nullcontext


def _add_random_state(cuda, generator):
    def seed_all(seed):
        generator.manual_seed(int(seed))

    functions = {
        "default_generators": (generator,),
        "manual_seed": seed_all,
        "manual_seed_all": seed_all,
        "seed": lambda: generator.seed() and None,
        "seed_all": lambda: generator.seed() and None,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda device=None: generator.get_state(),
        "set_rng_state": lambda state, device=None: generator.set_state(state) and None,
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": lambda states: generator.set_state(states[0]) and None,
    }
    for name, function in functions.items():
        setattr(cuda, name, function)
        setattr(cuda.random, name, function)


def _add_memory(cuda, library):
    cuda.memory_allocated = cuda.memory_reserved = lambda device=None: library.allocated()
    cuda.max_memory_allocated = cuda.max_memory_reserved = lambda device=None: library.peak()
    cuda.reset_peak_memory_stats = lambda device=None: library.reset_peak()
    cuda.mem_get_info = lambda device=None: (8 << 30, 8 << 30)
    cuda.memory_stats = lambda device=None: {}
    cuda.empty_cache = lambda: None


def _let_storages_be_copied():
    clone, moved = torch.UntypedStorage.clone, torch.storage._to

    def copied(storage, device):
        values = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return values.to(device, copy=True).untyped_storage()

    torch.UntypedStorage.clone = lambda storage: (
        copied(storage, storage.device) if storage.device.type == "cuda" else clone(storage)
    )
    torch.storage._to = lambda storage, device, non_blocking=False: (
        copied(storage, device) if device.type == "cuda" else moved(storage, device, non_blocking)
    )


@contextmanager
def _quiet_stderr():
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
