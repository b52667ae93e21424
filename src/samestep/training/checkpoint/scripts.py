"""Saves and loads checkpoints of a user-defined training script: `samestep.save`, `load` and `load_weights`.

Weights have the names of the serial script, whatever wrappers of torch they were saved with.
"""

import os
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from samestep.base.errors import CheckpointError, Error
from samestep.base.regular_files import open_regular
from samestep.parallel.sharding import Position
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_folders import make, tidy
from samestep.training.checkpoint.checkpoint_schedule import Retention, prune
from samestep.training.checkpoint.newest import (
    choose_on_all,
    folder_of,
    free_folder,
    newest_valid,
    set_aside_later,
    step_of,
)
from samestep.training.checkpoint.random_state import (
    check_random_states,
    gather_random_state,
    restore_random_state,
)
from samestep.training.checkpoint.read import ZIP, refuse_inflated
from samestep.training.checkpoint.save import Stage, write_staged
from samestep.training.checkpoint.snapshot import Snapshot, mismatch

_begun: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The checkpoint of a model, by the model's first parameter, which wrapping and compiling do not change."""


class Stateful(Protocol):
    """An object with a state dict, such as torch's optimizers, schedules and scalers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Load a state."""


def save(  # noqa: PLR0913 - a training has that many parts
    folder: str | PathLike[str],
    *,
    model: nn.Module,
    step: int,
    optimizer: Stateful | None = None,
    schedule: Stateful | None = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    keep: int | None = None,
    world: World | None = None,
    **extra: Any,
) -> Path:
    """Save a training as checkpoint ``step-N`` in `folder`; called by all ranks in the same step.

    ::

        samestep.save("checkpoints", model=model, optimizer=optimizer, loader=loader, step=step, best=best)

    Rank 0 writes, and an error such as a full disk is raised on every rank. The checkpoint is atomic: a
    killed job leaves it complete or absent. Its keys are the serial script's, and it loads on any number of
    ranks.

    If the training was resumed from an earlier checkpoint, those of later steps belong to an abandoned
    lineage. They are renamed to ``left-step-N``, with a warning. An old one that cannot be deleted gives a
    warning too.

    Args:
        folder: of the checkpoints of this training; made if missing.
        model: bare, replicated, compiled or wrapped.
        step: number of completed steps; must not decrease within a training.
        optimizer: its state is saved, if given; the same for `schedule` and `scaler`.
        schedule: of the learning rate.
        scaler: of the loss.
        loader: the return value of `shard`; its position in the data is saved. A training that is resumed
            within a pass continues with the next batch.
        keep: number of checkpoints that stay; older ones are deleted once this one is on disk. None keeps
            all.
        world: the ranks; None is the job that this process has joined.
        extra: JSON values that `load` returns. A tuple is returned as a list.

    Returns:
        the path of the checkpoint, on every rank.

    Raises:
        OutOfStep: ranks differ in step or position in the data.
        CheckpointError: it cannot be written, or contains something that cannot be read back.
    """
    world = current() if world is None else world
    step = _whole(step)
    position = {} if loader is None else asdict(Position(**loader.state_dict()))
    random = gather_random_state(world, step=step, **position)

    parts = _present_parts(optimizer=optimizer, schedule=schedule, scaler=scaler)

    def write_here() -> tuple[Path, list[str]]:
        states = {name: part.state_dict() for name, part in parts.items()}
        state = {"step": step, **position, "extra": extra}
        snapshot = Snapshot(_serial_weights(model), {**states, "random": random}, state)
        last = _last_step_of_lineage(model, Path(folder), step=step)
        return _write_among(folder_of(Path(folder), step), snapshot, last=last, keep=keep)

    path, notes = world.on_main(write_here)
    _end_lineage(model)
    if notes:
        world.on_main(lambda: _warn(notes))
    return path


def load(  # noqa: PLR0913 - a training has that many parts
    folder: str | PathLike[str],
    *,
    model: nn.Module,
    optimizer: Stateful | None = None,
    schedule: Stateful | None = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    missing_ok: bool = False,
    world: World | None = None,
) -> dict[str, Any]:
    """Load the newest usable checkpoint in `folder`, or the one that `folder` is; called by all ranks.

    ::

        done = samestep.load("checkpoints", model=model, optimizer=optimizer, loader=loader, missing_ok=True)
        step = done.get("step", 0)

    Rank 0 reads and verifies every byte, and broadcasts it; other ranks need no access to the files. A newer
    damaged checkpoint gives a warning. With the same number of ranks as at `save`, each rank's random state
    is restored; with another number it is not, and a warning is given.

    Args:
        folder: that of `save`, or one checkpoint in it.
        model: must have the saved names and shapes.
        optimizer: must have been saved, if given; the same for `schedule`, `scaler` and `loader`.
        schedule: of the learning rate.
        scaler: of the loss.
        loader: the return value of `shard`; its next pass starts at the saved position.
        missing_ok: return an empty dict if there is no checkpoint yet, usable or not.
        world: the ranks; None is the job that this process has joined.

    Returns:
        ``{"step": ...}`` and the `extra` of `save`, on every rank.

    Raises:
        CheckpointError: there is none, none is usable, or it belongs to another model; names the differences.
            Nothing is changed then.
    """
    world = current() if world is None else world
    chosen = choose_on_all(world, Path(folder), missing_ok=missing_ok)
    if chosen is None:
        return {}
    snapshot = chosen.snapshot
    parts = _present_parts(optimizer=optimizer, schedule=schedule, scaler=scaler)
    _check(chosen.path, snapshot, model, parts, needs_position=loader is not None)
    with _all_or_none(parts, chosen.path):
        for name, part in parts.items():
            part.load_state_dict(snapshot.optimizer[name])
        if loader is not None:  # refuses a position beyond the end of its data, and is unchanged then
            loader.load_state_dict({name: snapshot.state[name] for name in ("seed", "epoch", "samples")})
        names = serial_names(model.state_dict())
        model.load_state_dict({name: snapshot.model[serial] for name, serial in names.items()})
    _begin_lineage(model, chosen.path)
    saved = snapshot.optimizer.get("random", [])
    notes = [f"{path.name} is not used: {reason}" for path, reason in chosen.refused]
    if not restore_random_state(world, saved):
        notes.append(
            f"{chosen.path} has the random state of {len(saved)} rank(s), not of {world.place.size}; random "
            "numbers continue from the seeds of this run."
        )
    world.on_main(lambda: _warn(notes))
    return {"step": snapshot.state["step"], **snapshot.state.get("extra", {})}


def _whole(step: object) -> int:
    """Return a step as an integer: `load` finds no folder of another name."""
    with suppress(TypeError):
        if (number := index(step)) >= 0:  # type: ignore[arg-type]
            return number
    raise CheckpointError(f"step={step!r:.40} is not an integer of 0 or more.")


def _present_parts(**parts: Stateful | None) -> dict[str, Stateful]:
    return {name: part for name, part in parts.items() if part is not None}


def _write_among(path: Path, snapshot: Snapshot, *, last: int, keep: int | None) -> tuple[Path, list[str]]:
    """Write a checkpoint of a script beside its others; return its path and the warnings.

    Checkpoints after step `last` are set aside, so that the next load finds this lineage.
    """
    retention = None if keep is None else Retention(last=keep, best=False)
    stage = Stage()
    staged = stage.take(snapshot)  # first, because it refuses values before anything is moved
    stage.settle()
    try:
        make(path.parent)
        hidden = tidy(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoints to {path.parent}: {error.strerror or error}."
        ) from error
    moved, skipped = set_aside_later(path.parent, than=last)
    path = write_staged(staged, free_folder(path.parent, snapshot.state["step"]))
    stuck = None if retention is None else prune(path.parent, retention, newest=snapshot.state["step"])
    notes = [
        f"{path.parent} had a checkpoint after step {last}: it is now {renamed.name}." for renamed in moved
    ]
    return path, [*notes, *(note for note in (hidden, skipped, stuck) if note is not None)]


@contextmanager
def _all_or_none(parts: Mapping[str, Stateful], path: Path) -> Iterator[None]:
    """Restore the states of `parts` if the block fails, because each part can refuse its state."""
    before = {name: part.state_dict() for name, part in parts.items()}
    try:
        yield
    except Exception as error:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        if isinstance(error, Error):
            raise
        raise CheckpointError(f"{path} cannot be loaded: {type(error).__name__}: {error}.") from error


def _serial_weights(model: nn.Module) -> dict[str, Tensor]:
    weights = model.state_dict()
    return {serial: weights[name] for name, serial in serial_names(weights).items()}


def _check(
    path: Path, snapshot: Snapshot, model: nn.Module, parts: Mapping[str, Stateful], *, needs_position: bool
) -> None:
    """Refuse a checkpoint of another model or of other parts."""
    if difference := mismatch(snapshot.model, _serial_weights(model)):
        raise CheckpointError(f"{path} belongs to another model: {difference}.")
    _check_values(path, snapshot)
    missing = [name for name in parts if name not in snapshot.optimizer]
    if needs_position and not {"seed", "epoch", "samples"} <= snapshot.state.keys():
        missing.append("loader")
    if missing:
        raise CheckpointError(
            f"{path} was saved without {', '.join(missing)}. Omit it here as well, or save it too."
        )


def _check_values(path: Path, snapshot: Snapshot) -> None:
    """Refuse values of other types than `save` writes."""
    check_random_states(snapshot.optimizer.get("random", []))
    for name in ("step", "seed", "epoch", "samples"):
        value = snapshot.state.get(name, 0)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{path} has {name} {value!r:.40}, not an integer of 0 or more.")
    if "step" not in snapshot.state or not isinstance(snapshot.state.get("extra", {}), dict):
        raise CheckpointError(f"{path} was not written by samestep.save: it has no step, or no extra values.")


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, stacklevel=5)  # the script's call, by way of `on_main`


def _begin_lineage(model: nn.Module, checkpoint: Path) -> None:
    """Record that the weights of `model` are those of `checkpoint`."""
    for key in _first_parameter(model):
        _begun[key] = checkpoint.resolve()


def _end_lineage(model: nn.Module) -> None:
    """Delete the record: the checkpoint just written is the last one of the lineage."""
    for key in _first_parameter(model):
        if key in _begun:
            del _begun[key]


def _last_step_of_lineage(model: nn.Module, folder: Path, *, step: int) -> int:
    """Return the last step in `folder` whose checkpoint belongs to the lineage of the coming `step`.

    This is the step that the model was loaded from, if it was loaded from `folder`, else `step` itself.
    Checkpoints after it belong to an abandoned lineage, or are damaged.
    """
    for key in _first_parameter(model):
        if key in _begun and _begun[key].parent == folder.resolve():
            begun = step_of(_begun[key].name)
            return step if begun is None else min(step, begun)
    return step


def _first_parameter(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())[:1]


_INSIDE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that torch's wrappers add anywhere in it."""


def load_weights(
    source: str | PathLike[str] | Mapping[str, Any], model: nn.Module | None = None
) -> dict[str, Any]:
    """Return a state dict under the serial script's keys, and load it into `model`.

    ::

        samestep.load_weights("resnet.pth", model)               # saved by torch.save(model.state_dict(), ..)
        samestep.load_weights("runs/a/checkpoints", model)       # the newest usable one of a run
        samestep.load_weights(torch.load("last.ckpt")["model"])  # part of another checkpoint

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
        if not isinstance(name, str):
            raise CheckpointError(f"{where} is no state dict: its key {name!r:.40} is not a name.")
        if not isinstance(value, Tensor) and not name.endswith("_extra_state"):
            raise CheckpointError(
                f"{where} is no state dict: its {name} is a {type(value).__name__}. Pass the state dict that "
                f"it has, as in load_weights(torch.load(FILE)[{name!r}])."
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
    names = serial_names(wanted)
    if difference := mismatch(weights, {serial: wanted[name] for name, serial in names.items()}):
        raise CheckpointError(f"{where} does not fit this {type(model).__name__}: {difference}.")
    loaded = {name: weights[serial] for name, serial in names.items()}
    model.load_state_dict(loaded)
    return loaded


def _contents(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        chosen = newest_valid(path)
        for refused, reason in chosen.refused:
            warnings.warn(f"{refused.name} is not used: {reason}", stacklevel=3)  # the call of `load_weights`
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
            "load_weights(torch.load(FILE, weights_only=False)), which executes its code."
        ) from error
    except Exception as error:  # a parser of untrusted bytes can raise anything
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {reason}.") from error
    if isinstance(contents, Mapping):
        return contents
    raise CheckpointError(f"{path} contains a {type(contents).__name__}, not a state dict.")
