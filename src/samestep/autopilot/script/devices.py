"""Assigns one device to each rank of a replicated script, under every name that the script may use.

With ``--device cpu``, a script that names CUDA devices runs on the CPU. Nearly everything that takes a device
is an operation of torch, and goes through one mode here. The rest (`torch.load`, `torch.Generator`, the
functions of `torch.cuda`) is replaced while the script runs. To the script these report one GPU, because many
scripts exit without one; to torch and to installed libraries they report the actual devices.

A native script runs over Gloo then (`gloo_on_cpu`): this replaces what only scripts with several ranks use,
the back end of process groups, the `device_ids` of `DistributedDataParallel` and `barrier`, and
`SyncBatchNorm`, which torch computes on GPUs only.
"""

import functools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.overrides import TorchFunctionMode

from samestep.autopilot.script.call_account import is_internal_code
from samestep.autopilot.script.options import Options
from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count, driver_is_open
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, attached_all, instead, wrapping
from samestep.launchers.detect import detect
from samestep.parallel.gradients.batch_norm import global_forward
from samestep.ranks.world.device import shown_alone
from samestep.ranks.world.process_group import adopt

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@contextmanager
def own_device(options: Options) -> Iterator[str | None]:
    """Show a script only this rank's device; yield the device that the user has chosen, for `join`.

    If several GPUs are visible, all but one are hidden from this process before any is opened. Then
    ``.cuda()``, ``cuda:0`` and ``torch.accelerator`` use it, and `device_count` is 1.

    Raises:
        UsageError: this process had opened a device before.
    """
    if options.device == "cpu":
        with env.exported(dict.fromkeys(VISIBLE, "")), onto_cpu():
            yield "cpu"
        return
    environment = env.snapshot()
    was_open = driver_is_open()
    # CUDA's library lists GPUs without opening one; that of ROCm is often missing.
    count = accelerator_count() if torch.version.hip else torch.cuda.device_count()
    alone = shown_alone(count, environment, detect(environment).place)
    if alone is None:
        yield None
        return
    with env.exported(alone):
        if was_open or torch.cuda.device_count() != 1:
            raise UsageError(
                f"this process has already opened one of {count} visible GPUs, so the others cannot be "
                f"hidden. Start each worker with one GPU (srun --gpus-per-task=1, {VISIBLE[0]}), or use "
                "--device cpu."
            )
        yield None


_NAME = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")


@dataclass(slots=True)
class NamedDevices:
    """The CUDA devices that a script names while it runs on the CPU.

    Args:
        current: number of the current device.
        used: numbers of the devices that the script has put something on.
    """

    current: int = 0
    used: set[int] = field(default_factory=set)

    def use(self, device: Any) -> None:
        """Record a CUDA device, which may have no number."""
        number = _number(device)
        self.used.add(self.current if number is None else number)

    def select(self, device: Any) -> None:
        """Change the current device."""
        number = _number(device)
        self.current = self.current if number is None else number

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Forget the devices that are named in a block."""
        used = set(self.used)
        yield
        self.used = used


NAMED = NamedDevices()
"""The devices that the script of this process names."""


def _number(device: Any) -> int | None:
    """Return the number of a device given as number, name or `torch.device`; None without a number."""
    if isinstance(device, torch.device):
        return device.index
    _, _, number = str(device).rpartition(":")
    return int(number) if number.isdecimal() else None


class OntoCpu(TorchFunctionMode):
    """A context in which operations that name a CUDA device mean the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None:
            return replacement(func, args, kwargs or {})
        if kwargs:
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
            if isinstance(device := kwargs.get("device"), int):
                NAMED.use(device)
                kwargs["device"] = _CPU
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        return func(*map(_on_cpu, args), **(kwargs or {}))


@contextmanager
def onto_cpu(*, gpus: int = 1) -> Iterator[None]:
    """Let the calling thread compute on the CPU, whatever device it names; the script sees `gpus` GPUs."""
    import_module("torch._dynamo")  # collects torch's functions, before they are replaced
    NAMED.current = 0
    NAMED.used.clear()
    hooks: dict[Hook, Make] = {
        declarations.TORCH_LOAD: wrapping(_load_onto_cpu),
        declarations.TORCH_GENERATOR: instead(_Generator),
        declarations.DEVICE_MODULE: wrapping(_device_module),
        declarations.RECORD_STREAM: instead(_nothing),
        declarations.DEFAULT_TENSOR_TYPE: wrapping(lambda set_type, kind: set_type(_on_cpu(kind))),
        **{hook: instead(getattr(torch, hook.attribute)) for hook in declarations.CUDA_TYPES},
        **{declarations.cuda_function(name): instead(value) for name, value in STAND_INS.items()},
        **{declarations.accelerator_function(name): instead(value) for name, value in OF_ACCELERATOR.items()},
        **{declarations.nvtx_function(name): instead(_nothing) for name in _NVTX},
        **{
            hook: partial(_answering, value=value)
            for hook, value in zip(declarations.DEVICE_ANSWERS, _answers(gpus), strict=True)
        },
    }
    with attached_all(hooks), OntoCpu():
        yield


def _on_cpu(value: Any) -> Any:
    """Return the CPU for the name of a CUDA device, and a CPU type for a CUDA tensor type."""
    if isinstance(value, torch.device):
        if value.type != "cuda":
            return value
        NAMED.use(value)
        return _CPU
    if isinstance(value, str):
        if _NAME.fullmatch(value):
            NAMED.use(value)
            return "cpu"
        return value.replace("torch.cuda.", "torch.")
    return value


def _itself(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> Any:
    """Replace ``x.pin_memory()``: return the tensor."""
    return args[0]


def _moved(_: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Replace ``x.cuda()``: return the tensor."""
    NAMED.use(kwargs.get("device", args[1] if len(args) > 1 else None))
    return args[0]


def _device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Replace ``torch.device("cuda", 1)`` and ``torch.device(0)``: return the CPU."""
    named = [*args, *kwargs.values()]
    numbers = [device for device in named if isinstance(device, int)]
    if numbers:
        if "cpu" not in named:
            NAMED.use(numbers[0])
        return _CPU
    if any(_on_cpu(device) is not device for device in named):
        return _CPU
    result: torch.device = func(*args, **kwargs)
    return result


def _to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Replace ``x.to(0)`` and ``module.to("cuda:0")``; a number is a device."""
    for argument in (*args, kwargs.get("device")):
        if type(argument) is int:
            NAMED.use(argument)
    args = ["cpu" if type(argument) is int else _on_cpu(argument) for argument in args]
    kwargs = {
        name: _on_cpu(_CPU if type(value) is int else value) if name == "device" else value
        for name, value in kwargs.items()
    }
    return func(*args, **kwargs)


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    Tensor.cuda: _moved,
    Tensor.pin_memory: _itself,
    Tensor.to: _to,
    torch._C._nn._parse_to: _to,  # noqa: SLF001 - called by `Module.to`
    torch.device: _device,
}


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RealGenerator)


_RealGenerator = torch.Generator


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """A CPU generator, for any requested device."""

    def __new__(cls, device: Any = None) -> "_Generator":  # noqa: ARG004 - the signature of torch
        generator: _Generator = _RealGenerator.__new__(cls, _CPU)  # type: ignore[call-arg]
        return generator


def _load_onto_cpu(load: Callable[..., Any], f: Any, *where: Any, **kwargs: Any) -> Any:
    """Load everything onto the CPU, whatever `map_location` is."""
    kwargs.pop("map_location", None)
    return load(f, _CPU, *where[1:], **kwargs)


def _device_module(original: Callable[..., Any], device: Any = None) -> Any:
    """Return `torch.cuda` for a CUDA device, which `torch.device` does not name here."""
    name = device.type if isinstance(device, torch.device) else device
    return torch.cuda if isinstance(name, str) and _NAME.fullmatch(name) else original(device)


def _answering(original: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """Return a function that returns `value` to the script, and calls `original` for torch and libraries."""

    @functools.wraps(original)
    def answer(*args: Any, **kwargs: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the public way copies the whole stack
        if not is_internal_code(file) and "-packages" not in file:
            return value
        return original(*args, **kwargs)

    return answer


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class Event:
    """A CUDA event: a point in time, at which all earlier work is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        """Store the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, later: "Event") -> float:
        """Return the milliseconds to another event."""
        return (later._at - self._at) * 1000  # noqa: SLF001 - of the same class

    def query(self) -> bool:
        """Return True: its work is done."""
        return True

    synchronize = wait = _nothing


class Stream(nullcontext[None]):
    """A CUDA stream, in which all work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event with the current time."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    synchronize = wait_event = wait_stream = _nothing


def _properties(*_: Any, **__: Any) -> SimpleNamespace:
    total = psutil.virtual_memory().total
    return SimpleNamespace(name="cpu", major=0, minor=0, total_memory=total, multi_processor_count=1)


def _free_and_total(*_: Any, **__: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _set_rng_states(states: Iterable[torch.Tensor]) -> None:
    for state in states:
        torch.set_rng_state(state)


_IDLE = (
    *("init", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "set_stream"),
    *("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
    *("set_per_process_memory_fraction", "set_sync_debug_mode"),
)
"""Functions of `torch.cuda` that do nothing."""
STAND_INS: Mapping[str, Any] = {
    **dict.fromkeys(_IDLE, _nothing),
    "Event": Event,
    "Stream": Stream,
    "stream": lambda stream: stream if isinstance(stream, Stream) else nullcontext(),
    "current_stream": Stream,
    "default_stream": Stream,
    "device": nullcontext,
    "set_device": NAMED.select,
    "current_device": lambda: NAMED.current,
    "mem_get_info": _free_and_total,
    "memory_summary": lambda *_, **__: "",
    "memory_stats": lambda *_, **__: Counter(),
    "get_device_name": lambda *_, **__: "cpu",
    "get_device_capability": lambda *_, **__: (0, 0),
    "get_device_properties": _properties,
    "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    "set_rng_state_all": _set_rng_states,
    "initial_seed": torch.initial_seed,
}
"""Replacements by their names in `torch.cuda`."""
_MEMORY = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
OF_ACCELERATOR: Mapping[str, Any] = {
    **dict.fromkeys(("synchronize", "empty_cache", "set_stream"), _nothing),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_accumulated_memory_stats"), _nothing),
    **dict.fromkeys(_MEMORY, lambda *_, **__: 0),
    "memory_stats": STAND_INS["memory_stats"],
    **dict.fromkeys(("set_device_index", "set_device_idx"), NAMED.select),
    **dict.fromkeys(("current_device_index", "current_device_idx"), STAND_INS["current_device"]),
    "device_index": nullcontext,
    "current_stream": Stream,
    "get_memory_info": _free_and_total,
    "get_device_capability": lambda *_, **__: {},
}
"""Replacements by their names in `torch.accelerator`."""
_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")
"""Functions of `torch.cuda.nvtx`, which mark a part of a profile."""


def _answers(gpus: int) -> tuple[Any, ...]:
    """Return the values of the functions in `DEVICE_ANSWERS`, which report GPUs to a script."""
    return (True, gpus, True, gpus, torch.device("cuda"))  # its name decides what many scripts do


@contextmanager
def gloo_on_cpu(*, gpus: int | None = None) -> Iterator[None]:
    """Let the program of the block run on the CPU; it sees `gpus` GPUs, or one for each rank of its node."""
    hooks: dict[Hook, Make] = {
        **dict.fromkeys(declarations.GLOO_GROUPS, wrapping(_over_gloo)),
        declarations.DEVICES_OF_BARRIER: wrapping(_barrier_without_devices),
        declarations.DEVICES_OF_DDP: wrapping(_wrapped_model),
        declarations.NORMS_OF_DDP: instead(lambda *_: None),
        declarations.SYNCHRONIZED_NORM: wrapping(_normalized),
    }
    seen = gpus or detect(env.snapshot()).place.local_size
    with env.exported(dict.fromkeys(VISIBLE, "")), onto_cpu(gpus=seen), attached_all(hooks):
        yield


def _over_gloo(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Create a process group over Gloo; names of back ends are the only text that contains theirs."""
    kwargs.pop("device_id", None)
    named = {name: _gloo(value) for name, value in kwargs.items()}
    with NAMED.kept():  # torch names the devices of each back end
        return original(*map(_gloo, args), **named)


def _wrapped_model(original: Callable[..., None], ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    """Create a `DistributedDataParallel`, whose first arguments after the module are devices."""
    named = {name: value for name, value in kwargs.items() if name not in ("device_ids", "output_device")}
    original(ddp, module, *([None] * len(args[:2])), *args[2:], **named)


def _barrier_without_devices(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wait at a barrier, whose third argument is a list of devices."""
    kwargs.pop("device_ids", None)
    return original(*args[:2], **kwargs)


def _normalized(original: Callable[..., Tensor], norm: nn.SyncBatchNorm, batch: Tensor) -> Tensor:
    """Normalize a batch with the statistics of all ranks of the norm's group."""
    if not dist.is_initialized():
        return original(norm, batch)
    group: Any = norm.process_group or dist.group.WORLD
    if group.size() == 1:
        return BatchNorm.forward(norm, batch)
    return global_forward(norm, batch, world=adopt() if group is dist.group.WORLD else _Ranks(group))


class _Ranks:
    """The ranks of a process group; see `global_batch_norm.Ranks`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks."""
        gathered = [torch.empty_like(tensor) for _ in range(self._group.size())]
        dist.all_gather(gathered, tensor.contiguous(), group=self._group)
        return gathered

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all ranks."""
        dist.all_reduce(tensor, group=self._group)


def _gloo(backend: Any) -> Any:
    """Return Gloo for NCCL, and for a back end for each kind of device."""
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend
