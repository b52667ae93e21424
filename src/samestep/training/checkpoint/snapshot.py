"""Defines the contents of a checkpoint, compares them with a model, and reads and writes the manifest.

`samestep.training.checkpoint.save` describes the files; the manifest lists size and sha256 of each.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn

from samestep.base.documents import FormatError, parse_json, read_as
from samestep.base.errors import CheckpointError
from samestep.base.regular_files import read_bytes

_SHOWN = 3  # maximum names listed per difference


def mismatch(weights: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return one line on how two state dicts differ in names and shapes; None if they do not.

    >>> import torch
    >>> mismatch({"a": torch.zeros(2), "c": torch.zeros(1)}, {"a": torch.zeros(3), "b": torch.zeros(1)})
    'missing: b; unexpected: c; of another shape: a (2,), in the model (3,)'
    """
    shapes = [
        f"{name} {_shape(weights[name])}, in the model {_shape(tensor)}"
        for name, tensor in wanted.items()
        if name in weights and _shape(weights[name]) != _shape(tensor)
    ]
    kinds = {
        "missing": [name for name in wanted if name not in weights],
        "unexpected": [name for name in weights if name not in wanted],
        "of another shape": shapes,
    }
    return "; ".join(f"{kind}: {_first(names)}" for kind, names in kinds.items() if names) or None


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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


FORMAT = 1
"""Version of the layout that `samestep.training.checkpoint.save` describes; readers refuse later versions."""
_LARGEST = 1 << 16  # maximum bytes of a manifest, which has about 800
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _size_problem(count: int) -> str:
    return "" if 0 <= count < 1 << 63 else "is not a size"


def _sha256_problem(text: str) -> str:
    return "" if _SHA256.fullmatch(text) else "is not a sha256"


@dataclass(frozen=True, slots=True)
class Seal:
    """Size and checksum of a file."""

    bytes: Annotated[int, _size_problem]
    sha256: Annotated[str, _sha256_problem]


def manifest_text(files: Mapping[str, Seal]) -> str:
    """Return the manifest of `files`, with a checksum of itself; equal files give equal text."""
    listed = {name: asdict(files[name]) for name in sorted(files)}
    seal = hashlib.sha256(json.dumps([FORMAT, listed]).encode()).hexdigest()
    return json.dumps({"format": FORMAT, "files": listed, "sha256": seal}, indent=2) + "\n"


def read_manifest(folder: Path) -> Mapping[str, Seal]:
    """Return the size and checksum of each file of a checkpoint.

    Raises:
        CheckpointError: there is no manifest, it is damaged, or a later samestep wrote it.
    """
    path = folder / MANIFEST
    try:
        text = read_bytes(path, most=_LARGEST).decode()
        manifest = parse_json(text)
    except FileNotFoundError:
        raise CheckpointError(_no_manifest(folder)) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is not JSON ({error}).") from error
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise CheckpointError(f"{path} is not the manifest of a checkpoint: it has no format number.")
    if manifest["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest['format']} of a later samestep; this one reads format {FORMAT}. "
            "Update samestep."
        )
    files = _seals(manifest)
    # A flipped bit in white space does not change the parsed value, so the text itself is compared.
    if files is None or manifest_text(files) != text or not REQUIRED <= files.keys() <= FILES - {MANIFEST}:
        raise CheckpointError(f"{path} is damaged: its contents have changed since it was written.")
    return files


def _seals(manifest: Mapping[str, Any]) -> Mapping[str, Seal] | None:
    """Return the files that a manifest lists, or None if it has another form."""
    try:
        files: Mapping[str, Seal] = read_as(Mapping[str, Seal], manifest.get("files"), "files")
    except FormatError:
        return None
    return files


def _no_manifest(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no checkpoint {folder}."
    try:
        names = sorted(path.name for path in folder.iterdir())[:4]
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}."
    return (
        f"{folder} is not a complete checkpoint: it has no {MANIFEST}, which is written last "
        f"(found: {', '.join(names) or 'nothing'})."
    )
