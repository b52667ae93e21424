"""Notes ranks that put their model on the device of another rank."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from samestep.autopilot.script.devices import NAMED
from samestep.base import env
from samestep.launchers.detect import detect
from samestep.studies.verify.observers.observer import Observer
from samestep.studies.verify.trace import Note


class DeviceOfRank(Observer):
    """Compares the number of the device with that of the rank on its node.

    With ``--device cpu``, the devices are those that the script names.
    """

    def __init__(self) -> None:
        self._local_rank = detect(env.snapshot()).place.local_rank
        self._used: set[int] = set()

    def call(
        self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """See `Listener.call`."""
        del inputs
        if is_training:
            devices = {one.device for one in module.parameters()}
            self._used |= {one.index for one in devices if one.type == "cuda" and one.index is not None}
        return None

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        if self._local_rank and (self._used or NAMED.used) == {0}:
            yield Note(
                "device-of-rank-0",
                "further ranks of the node use the GPU of rank 0 too. Call torch.cuda.set_device with the "
                "local rank, or move the model and the samples to that device.",
            )
