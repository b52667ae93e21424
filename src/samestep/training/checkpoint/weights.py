"""Loads weights under the names of the serial script, whatever wrappers of torch they were saved with."""

import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.base.regular_files import open_regular
from samestep.training.checkpoint.compatibility import mismatch
from samestep.training.checkpoint.newest import newest_valid
from samestep.training.checkpoint.read import ZIP, refuse_inflated

_INSIDE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that torch's wrappers add anywhere in it."""


def load_state(
    source: str | PathLike[str] | Mapping[str, Any], model: nn.Module | None = None
) -> dict[str, Any]:
    """Return a state dict under the serial script's keys, and load it into `model`.

    ::

        samestep.load_state("resnet.pth", model)                # saved by torch.save(model.state_dict(), ..)
        samestep.load_state("runs/a/checkpoints", model)        # the newest usable one of a run
        samestep.load_state(torch.load("last.ckpt")["model"])   # part of another checkpoint

    The prefixes of DistributedDataParallel and ``torch.compile`` (``module.``, ``_orig_mod.``) are removed,
    also repeated, nested, or inside a name. No code in the file is executed.

    Each rank reads the file itself. Call it before `replicate`, which broadcasts rank 0's weights.

    Args:
        source: a state dict, a file of ``torch.save`` or safetensors with one, a checkpoint of samestep, or a
            folder of them.
        model: must have exactly these weights; bare, replicated, compiled or wrapped. It is not changed
            if the weights do not fit.

    Returns:
        the state dict; with a model, under the model's own names.

    Raises:
        CheckpointError: there is no state dict, it cannot be read without executing code, or it belongs to
            another model; names the first missing, unexpected or differently shaped weights.
    """
    where = "the mapping" if isinstance(source, Mapping) else str(source)
    contents = source if isinstance(source, Mapping) else _contents(Path(source))
    for name, value in contents.items():
        if not isinstance(value, Tensor) and not str(name).endswith("_extra_state"):
            raise CheckpointError(
                f"{where} is no state dict: its {name} is a {type(value).__name__}. Pass the state dict that "
                f"it has, as in load_state(torch.load(FILE)[{name!r}])."
            )
    weights = {serial: contents[name] for name, serial in serial_names(contents, where).items()}
    return weights if model is None else _load_into(model, weights, where)


def serial_names(names: Iterable[str], where: str = "the model") -> dict[str, str]:
    """Return for each name of a state dict its name in the serial script.

    >>> serial_names(["module._orig_mod.conv.weight", "module.head._orig_mod.bias"])
    {'module._orig_mod.conv.weight': 'conv.weight', 'module.head._orig_mod.bias': 'head.bias'}

    Raises:
        CheckpointError: two names become the same.
    """
    serial = {name: ".".join(part for part in name.split(".") if part not in _INSIDE) for name in names}
    while serial and all(name.startswith("module.") for name in serial.values()):
        serial = {name: short.removeprefix("module.") for name, short in serial.items()}
    back: dict[str, str] = {}
    for name, short in serial.items():
        if back.setdefault(short, name) != name:
            raise CheckpointError(f"{where} has both {back[short]} and {name}, which are both {short}.")
    return serial


def _load_into(model: nn.Module, weights: Mapping[str, Any], where: str) -> dict[str, Any]:
    wanted = model.state_dict()
    own = serial_names(wanted)
    if difference := mismatch(weights, {serial: wanted[name] for name, serial in own.items()}):
        raise CheckpointError(f"{where} does not fit this {type(model).__name__}: {difference}.")
    loaded = {name: weights[serial] for name, serial in own.items()}
    model.load_state_dict(loaded)
    return loaded


def _contents(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        chosen = newest_valid(path)
        for refused, reason in chosen.refused:
            warnings.warn(f"{refused.name} is not used: {reason}", stacklevel=3)  # the call of `load_state`
        return chosen.snapshot.model
    try:
        with open_regular(path) as stream:
            if path.suffix == ".safetensors":
                return safetensors.torch.load(stream.read())
            if stream.peek(len(ZIP)).startswith(ZIP):
                refuse_inflated(stream, os.fstat(stream.fileno()).st_size)
                stream.seek(0)
            contents = torch.load(stream, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path}.") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is no torch.save file of tensors and plain values. If it is one, and you trust it, call "
            "load_state(torch.load(FILE, weights_only=False)), which executes its code."
        ) from error
    except Exception as error:  # a parser of untrusted bytes can raise anything
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {reason}.") from error
    if isinstance(contents, Mapping):
        return contents
    raise CheckpointError(f"{path} contains a {type(contents).__name__}, not a state dict.")
