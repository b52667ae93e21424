"""Loads weights from third-party checkpoints, whatever wrappers they were saved with."""

import os
import pickle
import re
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

WRAPPINGS = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module")
"""Keys under which scripts save a state dict besides other values; the first existing one is used."""
_INSIDE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that torch's wrappers add anywhere in it."""
_OLD = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""Magic bytes near the start of a ``torch.save`` file from before torch 1.6."""
_COUNTER = "num_batches_tracked"
"""Missing from batch norms of very old versions of torch; torch then keeps the model's own."""


def load_state(
    source: str | PathLike[str] | Mapping[str, Any], model: nn.Module | None = None
) -> dict[str, Any]:
    """Return the weights of any checkpoint under the serial script's keys, and load them into `model`.

    ::

        samestep.load_state("resnet.pth", model)                # saved by any script
        samestep.load_state("runs/a/checkpoints", model)        # the newest usable one of a run
        weights = samestep.load_state("last.ckpt")              # {"conv1.weight": ..., ...}, on the CPU

    The prefixes of DistributedDataParallel and ``torch.compile`` (``module.``, ``_orig_mod.``) are removed,
    also repeated, nested, or inside a name. With a model, a prefix shared by all names, such as Lightning's
    ``model.``, is removed if the names then match. No code in the file is executed.

    Each rank reads the file itself. Call it before `replicate`, which broadcasts rank 0's weights.

    Args:
        source: a file of ``torch.save`` or safetensors, a checkpoint of samestep or a folder of them, or
            the contents of such a file: a state dict, alone or in a dict under a usual key.
        model: must have exactly these weights; bare, replicated, compiled or wrapped. It is not changed
            if the weights do not fit.

    Returns:
        the state dict; with a model, under the model's own names.

    Raises:
        CheckpointError: there are no weights, they cannot be read without executing code, or they belong to
            another model; names the first missing, unexpected or differently shaped ones.
    """
    where = "the mapping" if isinstance(source, Mapping) else str(source)
    contents = source if isinstance(source, Mapping) else _contents(Path(source))
    found = _state_dict(contents, where)
    weights = {serial: found[name] for name, serial in serial_names(found, where).items()}
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
    weights = _without_shared_prefix(weights, set(own.values()))
    may_lack = {
        name for name, serial in own.items() if serial not in weights and name.endswith(f".{_COUNTER}")
    }
    needed = {serial: wanted[name] for name, serial in own.items() if name not in may_lack}
    if difference := mismatch(weights, needed):
        raise CheckpointError(f"{where} does not fit this {type(model).__name__}: {difference}.")
    loaded = {name: weights[serial] for name, serial in own.items() if name not in may_lack}
    model.load_state_dict(loaded)
    return loaded


def _without_shared_prefix(weights: Mapping[str, Any], wanted: set[str]) -> Mapping[str, Any]:
    """Remove the first part of all names if all share it and the rest are the wanted names."""
    first = next(iter(weights)).partition(".")[0] + "."
    if any(not name.startswith(first) for name in weights):
        return weights
    rest = {name.removeprefix(first): tensor for name, tensor in weights.items()}
    missing = {name for name in wanted - rest.keys() if not name.endswith(f".{_COUNTER}")}
    return rest if not missing and rest.keys() <= wanted else weights


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
        raise CheckpointError(_not_plain(path, str(error))) from error
    except Exception as error:  # a parser of untrusted bytes can raise anything
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint: {type(error).__name__}: {reason}."
        ) from error
    if isinstance(contents, Mapping):
        return contents
    raise CheckpointError(f"{path} contains a {type(contents).__name__}, not a state dict.")


def _not_plain(path: Path, reported: str) -> str:
    """Return the message for a file that torch refuses with weights_only.

    It advises ``weights_only=False`` for torch's own format only, not for a web page or a Git LFS pointer.
    """
    with open_regular(path) as file:
        start = file.read(32)
    if not start.startswith(ZIP) and _OLD not in start:
        return (
            f"{path} is not a torch.save file: it begins with {start[:20]!r}. Download or convert it again."
        )
    if culprit := re.search(r"GLOBAL ([\w.]+)", reported):
        return (
            f"{path} contains a {culprit[1]}, which can only be unpickled by executing code. If you trust "
            "it, call load_state(torch.load(..., weights_only=False))."
        )
    reason = re.search(r"Unpickler error:\s*([^\n]+)", reported)
    why = f": {reason[1].rstrip('.')}" if reason else ""
    return f"{path} cannot be read as tensors and plain values{why}. Save it again with torch.save."


def _state_dict(contents: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the state dict that `contents` is or contains."""
    for name in WRAPPINGS:
        if isinstance(inner := contents.get(name), Mapping):
            return _state_dict(inner, f"{where} under {name!r}")
    # Besides tensors there can be a module's extra state, and a script's epoch or loss.
    found = {
        name: value
        for name, value in contents.items()
        if isinstance(name, str) and (isinstance(value, Tensor) or name.endswith("_extra_state"))
    }
    if not found:
        names = ", ".join(map(repr, list(contents)[:6])) or "nothing"
        raise CheckpointError(
            f"{where} has no state dict, itself or under {', '.join(WRAPPINGS)}; its keys are {names}. "
            "Pass the state dict itself."
        )
    return found
