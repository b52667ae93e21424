"""Assigns one device to each rank of a replicated script, under every name that the script may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.autopilot.script.cuda_on_cpu import onto_cpu
from samestep.autopilot.script.options import Options
from samestep.base import env
from samestep.base.errors import UsageError
from samestep.launchers.detect import detect
from samestep.ranks.world.device import shown_alone

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@contextmanager
def own_device(options: Options) -> Iterator[str | None]:
    """Show a script only this rank's device; yield the device that the user has chosen, for `join`.

    If several GPUs are visible, all but one are hidden from this process before any is opened. Then
    ``.cuda()``, ``cuda:0`` and ``torch.accelerator`` use it, and `device_count` is 1.

    Raises:
        UsageError: this process had opened a device before.
    """
    if options.device == "cpu":
        with env.exported(dict.fromkeys(_VISIBLE, "")), onto_cpu():
            yield "cpu"
        return
    environment = env.snapshot()
    count = torch.cuda.device_count()  # queries the driver's library, and opens no device
    alone = shown_alone(count, environment.get(_VISIBLE[0]), detect(environment).place)
    if alone is None:
        yield None
        return
    with env.exported({_VISIBLE[0]: alone}):
        if torch.cuda.device_count() != 1:
            raise UsageError(
                f"this process has already opened one of {count} visible GPUs, so the others cannot be "
                f"hidden. Start each worker with one GPU (srun --gpus-per-task=1, {_VISIBLE[0]}), or use "
                "--device cpu."
            )
        yield None
