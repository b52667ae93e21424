"""Saving and loading the weights of a model: safetensors, serial keys, every byte accounted for.

A checkpoint is a folder::

    step-120/
      model.safetensors   the state dict, with the serial script's keys
      state.json          step, epoch, samples: where the training stood
      manifest.json       the sha256 of the other files; written last
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.checkpoint.files import sha256_of, whole_or_absent

FORMAT = 1
"""The version of the layout above; a reader refuses a later one."""


def save(model: nn.Module, folder: Path, *, state: Mapping[str, Any]) -> Path:
    """Save the weights of `model` as checkpoint `folder`; called on one rank.

    Args:
        model: its state dict is written on the CPU, tied tensors once per name.
        folder: becomes the checkpoint, whole, or stays absent; must not exist.
        state: where the training stood; anything JSON can hold.

    Raises:
        CheckpointError: the folder cannot be written, or the model has state that is no tensor.
    """
    contents = model.state_dict()
    if odd := [name for name, value in contents.items() if not isinstance(value, Tensor)]:
        kind = type(contents[odd[0]]).__name__
        raise CheckpointError(f"{odd[0]} in the state dict is a {kind}, not a tensor: it cannot be saved.")
    weights = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in contents.items()}
    try:
        with whole_or_absent(folder) as draft:
            safetensors.torch.save_file(weights, draft / "model.safetensors")
            (draft / "state.json").write_text(json.dumps({"format": FORMAT, **state}, indent=2) + "\n")
            hashes = {path.name: sha256_of(path) for path in sorted(draft.iterdir())}
            (draft / "manifest.json").write_text(
                json.dumps({"format": FORMAT, "sha256": hashes}, indent=2) + "\n"
            )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}.") from error
    return folder


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the state of checkpoint `folder`, every byte verified.

    Raises:
        CheckpointError: the folder is no whole, unchanged checkpoint of a known format.
    """
    manifest = _manifest(folder)
    for name, expected in manifest["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} is not whole: {name} is missing. Use an earlier checkpoint.")
        if (found := sha256_of(path)) != expected:
            raise CheckpointError(
                f"{path} was damaged after it was saved: sha256 {found[:12]}..., saved as {expected[:12]}... "
                "Use an earlier checkpoint."
            )
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return safetensors.torch.load_file(folder / "model.safetensors"), state


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, its form checked."""
    path = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is no checkpoint: its manifest cannot be read ({error})") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise CheckpointError(
            f"{path} has format {found!r}; this samestep reads format {FORMAT}. Update samestep."
        )
    if set(manifest.get("sha256", {})) != {"model.safetensors", "state.json"}:
        raise CheckpointError(
            f"{path} does not list model.safetensors and state.json: this is no whole checkpoint"
        )
    return manifest
