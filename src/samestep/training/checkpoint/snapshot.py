"""Defines the contents of a checkpoint and the names of its files; `save` describes the files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.compatibility import mismatch

MODEL, OPTIMIZER, AVERAGE = "model.safetensors", "optimizer.pt", "average.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
REQUIRED = frozenset({MODEL, OPTIMIZER, STATE})
FILES = REQUIRED | {AVERAGE, MANIFEST}
"""The manifest and all files that it can list."""
MARK = ".samestep"
"""Names the run that made the folder; written first, and ignored by readers."""
MOST_STATE = 1 << 25
"""Maximum bytes of ``state.json``; parsed, it takes up to 20 times as much memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run between two steps; its tensors are on the CPU if it was read from disk."""

    model: Mapping[str, Tensor]
    """The state dict, with the serial script's keys."""
    optimizer: Mapping[str, Any]
    """Tensors and plain values: state dicts of optimizer, schedule, scaler; random state of each rank."""
    state: Mapping[str, Any]
    """Progress of the training: step, seed, epoch, samples and other JSON values."""
    average: Mapping[str, Tensor] | None = None
    """Averaged weights, if the run has them."""

    def check_fits(self, model: nn.Module) -> None:
        """Compare names and shapes with those of `model`.

        Raises:
            CheckpointError: they differ; names the first differences.
        """
        wanted = model.state_dict()
        for weights in (self.model, self.average):
            if weights is not None and (difference := mismatch(weights, wanted)):
                raise CheckpointError(f"the checkpoint belongs to another model: {difference}.")
