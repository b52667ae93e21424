"""Writes a checkpoint atomically, with size and sha256 of every file.

A checkpoint is a folder::

    step-120/
      model.safetensors     the state dict, with the serial script's keys
      optimizer.pt          state of optimizer, schedule and scaler, random state of each rank;
                            torch.save's form, read with weights_only
      average.safetensors   averaged weights, if the run has them
      state.json            progress of the training: step, seed, epoch, samples, ...
      manifest.json         size and sha256 of the files above; written last
      .samestep             the mark of the run that made the folder; see `owned_checkpoints`
"""

import json
from pathlib import Path

import torch

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.atomic_folders import whole_or_absent
from samestep.training.checkpoint.hashed_files import Seal, SealedFile
from samestep.training.checkpoint.layout import AVERAGE, MANIFEST, MODEL, MOST_STATE, OPTIMIZER, STATE
from samestep.training.checkpoint.manifest import FORMAT, manifest_text
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.checkpoint.staging import Stage
from samestep.training.checkpoint.tensors import write_tensors


def write(snapshot: Snapshot, folder: Path) -> Path:
    """Write `snapshot` as checkpoint `folder`; called on one rank.

    Args:
        snapshot: tied weights are written once per name.
        folder: replaced when the new checkpoint is complete and on disk, if it exists and is this run's.

    Raises:
        CheckpointError: the folder cannot be written, exists and is not this run's, or the snapshot contains
            something that cannot be read back.
    """
    stage = Stage()
    staged = stage.take(snapshot)
    stage.settle()
    return write_staged(staged, folder)


def write_staged(snapshot: Snapshot, folder: Path) -> Path:
    """Write a snapshot that a `Stage` has taken; see `write`."""
    try:
        with whole_or_absent(folder) as draft:
            seals = _write_files(snapshot, draft)
            with SealedFile(draft / MANIFEST) as file:
                file.write(manifest_text(seals).encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(f"cannot write the checkpoint {folder}: {why}.") from error
    return folder


def _write_files(snapshot: Snapshot, draft: Path) -> dict[str, Seal]:
    seals = {}
    for name, weights in ((MODEL, snapshot.model), (AVERAGE, snapshot.average)):
        if weights is not None:
            with SealedFile(draft / name) as file:
                write_tensors(file, weights)
            seals[name] = file.seal
    with SealedFile(draft / OPTIMIZER) as file:
        torch.save(snapshot.optimizer, file)  # type: ignore[arg-type]  # it writes and flushes, no more
    seals[OPTIMIZER] = file.seal
    text = (json.dumps({**snapshot.state, "format": FORMAT}, indent=2) + "\n").encode()
    if len(text) > MOST_STATE:
        raise CheckpointError(
            f"the state of the training has {len(text):,} bytes as JSON, more than the maximum "
            f"{MOST_STATE:,}. Save tensors as part of a state dict."
        )
    with SealedFile(draft / STATE) as file:
        file.write(text)
    seals[STATE] = file.seal
    return seals
