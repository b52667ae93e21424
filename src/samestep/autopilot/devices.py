"""The device of each copy of a script: its own, by every name a script may call it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep.autopilot.onto_cpu import onto_cpu
from samestep.autopilot.options import Options
from samestep.base import env
from samestep.base.errors import UsageError
from samestep.world.detect import detect
from samestep.world.device import shown_alone

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@contextmanager
def own_device(options: Options) -> Iterator[str | None]:
    """Within, a script sees one device; yields the one that was asked for, for `join`.

    Where several GPUs are visible, this process is shown its own alone before anything opens one. So
    ``.cuda()``, ``cuda:0`` and ``torch.accelerator`` mean it, and `device_count` is 1.

    Raises:
        UsageError: a device had been opened before.
    """
    if options.device == "cpu":
        with env.exported(dict.fromkeys(_VISIBLE, "")), onto_cpu():
            yield "cpu"
        return
    environment = env.snapshot()
    count = torch.cuda.device_count()  # asks the driver's library; opens nothing
    alone = shown_alone(count, environment.get(_VISIBLE[0]), detect(environment).place)
    if alone is None:
        yield None
        return
    with env.exported({_VISIBLE[0]: alone}):
        if torch.cuda.device_count() != 1:
            raise UsageError(
                f"this process sees {count} GPUs and cannot be shown its own alone any more. Start each "
                f"worker with its own (srun --gpus-per-task=1, {_VISIBLE[0]}), or say --device cpu."
            )
        yield None
