"""Lets a native script that names NCCL and GPUs run on CPUs, over Gloo (``--device cpu``).

`devices.onto_cpu` gives each name of a GPU the meaning of the CPU. This adds what only scripts with several
ranks use: the back end of process groups, the `device_ids` of `DistributedDataParallel` and `barrier`, and
`SyncBatchNorm`, which torch computes on GPUs only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.autopilot.script.devices import NAMED, VISIBLE, onto_cpu
from samestep.base import env
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, attached_all, instead, wrapping
from samestep.launchers.detect import detect
from samestep.parallel.gradients.batch_norm import global_forward
from samestep.ranks.world.process_group import adopt


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
    named = {name: _gloo(one) for name, one in kwargs.items()}
    with NAMED.kept():  # torch names the devices of each back end
        return original(*map(_gloo, args), **named)


def _wrapped_model(original: Callable[..., None], ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    """Create a `DistributedDataParallel`, whose first arguments after the module are devices."""
    named = {name: one for name, one in kwargs.items() if name not in ("device_ids", "output_device")}
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
    """The ranks of a process group; see `batch_norm.Ranks`."""

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
