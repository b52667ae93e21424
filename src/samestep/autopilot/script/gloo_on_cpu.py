"""Lets a native script that names NCCL and GPUs run on CPUs, over Gloo (``--device cpu``).

`devices.onto_cpu` gives each name of a GPU the meaning of the CPU. This adds what only scripts with several
ranks use: the back end of process groups, and the `device_ids` of `DistributedDataParallel` and `barrier`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from samestep.autopilot.script.devices import NAMED, VISIBLE, onto_cpu
from samestep.base import env
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, attached_all, wrapping
from samestep.launchers.detect import detect


@contextmanager
def gloo_on_cpu(*, gpus: int | None = None) -> Iterator[None]:
    """Let the program of the block run on the CPU; it sees `gpus` GPUs, or one for each rank of its node."""
    hooks: dict[Hook, Make] = {
        **dict.fromkeys(declarations.GLOO_GROUPS, wrapping(_over_gloo)),
        declarations.DEVICES_OF_BARRIER: wrapping(_met),
        declarations.DEVICES_OF_DDP: wrapping(_wrapped_model),
    }
    seen = gpus or detect(env.snapshot()).place.local_size
    with env.exported(dict.fromkeys(VISIBLE, "")), onto_cpu(gpus=seen), attached_all(hooks):
        yield


def _over_gloo(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Create a process group over Gloo; names of back ends are the only text that contains theirs."""
    kwargs.pop("device_id", None)
    named = {name: _gloo(one) for name, one in kwargs.items()}
    with NAMED.kept():  # torch names the devices of each back end
        return original(*map(_gloo, args), **named)


def _wrapped_model(original: Callable[..., None], ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    """Create a `DistributedDataParallel`, whose first arguments after the module are devices."""
    named = {name: one for name, one in kwargs.items() if name not in ("device_ids", "output_device")}
    original(ddp, module, *([None] * len(args[:2])), *args[2:], **named)


def _met(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wait at a barrier, whose third argument is a list of devices."""
    kwargs.pop("device_ids", None)
    return original(*args[:2], **kwargs)


def _gloo(backend: Any) -> Any:
    """Return Gloo for NCCL, and for a back end for each kind of device."""
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend
