"""What a checkpoint holds, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.checkpoint.fit import misfit


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run at one moment, in memory.

    One that was read has its tensors on the CPU.
    """

    model: Mapping[str, Tensor]
    """The state dict, with the serial script's keys."""
    optimizer: Mapping[str, Any]
    """Tensors and plain values: state dicts of optimizer, schedule, scaler; random state of each rank."""
    state: Mapping[str, Any]
    """Where the training stood: step, seed, epoch, samples and what else JSON can hold."""
    average: Mapping[str, Tensor] | None = None
    """Averaged weights, where the run keeps some."""

    def check_fits(self, model: nn.Module) -> None:
        """Compare names and shapes with those of `model`.

        Raises:
            CheckpointError: they are those of another model; tells the first differences.
        """
        wanted = model.state_dict()
        for weights in (self.model, self.average):
            if weights is not None and (difference := misfit(weights, wanted)):
                raise CheckpointError(f"the checkpoint belongs to another model: {difference}.")
