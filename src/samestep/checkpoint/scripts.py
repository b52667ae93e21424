"""Checkpoints of a training script of one's own: two calls that every rank makes."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from samestep.base.errors import CheckpointError, Error
from samestep.checkpoint import course
from samestep.checkpoint.choose import folder_of, free_folder
from samestep.checkpoint.files import make, tidy
from samestep.checkpoint.fit import misfit, optimizer_misfit
from samestep.checkpoint.foreign import serial_names
from samestep.checkpoint.random_state import check_random_states, gather_random_state, restore_random_state
from samestep.checkpoint.retain import Keep, prune, set_aside_later
from samestep.checkpoint.save import write_staged
from samestep.checkpoint.shared import choose_on_all
from samestep.checkpoint.snapshot import Snapshot
from samestep.checkpoint.stage import Stage
from samestep.sharding.position import Position
from samestep.world.current import current
from samestep.world.world import World


class Stateful(Protocol):
    """What torch's optimizers, schedules and scalers have in common."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over a state."""


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
    """Save a training as checkpoint ``step-N`` in `folder`; called by all ranks, in the same step.

    ::

        samestep.save("checkpoints", model=model, optimizer=optimizer, loader=loader, step=step, best=best)

    Rank 0 writes, and every rank learns whether it could: a disk that is full is an error on all of them.
    The checkpoint is there whole or not at all, whenever the job is killed. Its keys are the serial
    script's, and it loads at any number of ranks.

    Checkpoints of later steps are of a course that was left, by going on from an earlier one: they are
    renamed to ``left-step-N``, and a warning says so. So it does of an old one that cannot be deleted.

    Args:
        folder: where the checkpoints of this training lie; made where it is missing.
        model: bare, replicated, compiled or wrapped.
        step: steps done; never falls within a training.
        optimizer: its state, if given; so of `schedule` and `scaler`.
        schedule: of the learning rate.
        scaler: of the loss.
        loader: what `shard` returned: its place in the data. Within a pass, a resumed run goes on with the
            next batch.
        keep: how many checkpoints stay; older ones are deleted once this one is on disk. None keeps all.
        world: the ranks; None is the job this process has joined.
        extra: what else `load` is to return; anything JSON can hold. A tuple comes back as a list.

    Returns:
        the checkpoint, on every rank.

    Raises:
        OutOfStep: ranks are not in the same step or place in the data.
        CheckpointError: it cannot be written, or there is something that could not be read back.
    """
    world = current() if world is None else world
    position = {} if loader is None else asdict(Position(**loader.state_dict()))
    random = gather_random_state(world, step=step, **position)

    def write_here() -> tuple[Path, list[str]]:
        parts = {"optimizer": optimizer, "schedule": schedule, "scaler": scaler}
        snapshot = Snapshot(
            model=_serial_weights(model),
            optimizer={
                **{name: part.state_dict() for name, part in parts.items() if part is not None},
                "random": random,
            },
            state={"step": step, **position, "extra": extra},
        )
        last = course.last_of_course(model, Path(folder), step=step)
        return _write_among(folder_of(Path(folder), step), snapshot, last=last, keep=keep)

    path, notes = world.on_main(write_here)
    course.end(model)
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

    Rank 0 reads and verifies every byte, the others are sent what it has: they need not see its files.
    A newer checkpoint that is damaged is told in a warning. With as many ranks as when it was saved, each
    gets its random state back; that another number of ranks cannot is told in a warning as well.

    Args:
        folder: what `save` was given, or one checkpoint in it.
        model: must have the names and shapes that were saved.
        optimizer: must have been saved, if given; so for `schedule`, `scaler` and `loader`.
        schedule: of the learning rate.
        scaler: of the loss.
        loader: what `shard` returned; its next pass begins where the training stood.
        missing_ok: return an empty dict where there is no checkpoint yet, damaged or not.
        world: the ranks; None is the job this process has joined.

    Returns:
        ``{"step": ...}`` and what `save` was given as `extra`, on every rank.

    Raises:
        CheckpointError: there is none, none is usable, or it belongs to another model: tells how they
            differ. Nothing was changed then.
    """
    world = current() if world is None else world
    chosen = choose_on_all(world, Path(folder), missing_ok=missing_ok)
    if chosen is None:
        return {}
    snapshot = chosen.snapshot
    given = {"optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    parts = {name: part for name, part in given.items() if part is not None}
    _check(chosen.path, snapshot, model, parts, needs_position=loader is not None)
    with _all_or_none(parts, chosen.path):
        for name, part in parts.items():
            part.load_state_dict(snapshot.optimizer[name])
        if loader is not None:  # refuses a place beyond the end of its data, and is as it was then
            loader.load_state_dict({name: snapshot.state[name] for name in ("seed", "epoch", "samples")})
        own_names = serial_names(model.state_dict())
        model.load_state_dict({name: snapshot.model[serial] for name, serial in own_names.items()})
    course.begin(model, chosen.path)
    saved = snapshot.optimizer.get("random", [])
    notes = [f"{path.name} is not used: {reason}" for path, reason in chosen.refused]
    if not restore_random_state(world, saved):
        notes.append(
            f"{chosen.path} has the random state of {len(saved)} rank(s), not of {world.place.size}: random "
            "draws go on from the seeds of this run."
        )
    world.on_main(lambda: _warn(notes))
    return {"step": snapshot.state["step"], **snapshot.state.get("extra", {})}


def _write_among(path: Path, snapshot: Snapshot, *, last: int, keep: int | None) -> tuple[Path, list[str]]:
    """Write a checkpoint of a script beside its others; return it and what there is to tell.

    Args:
        path: of the checkpoint.
        snapshot: what it is to hold.
        last: those there after this step are set aside: whoever loads next is to find this course.
        keep: how many stay.
    """
    retention = None if keep is None else Keep(last=keep, best=False)
    stage = Stage()
    staged = stage.take(snapshot)  # what cannot be saved is refused before anything is moved
    stage.settle()
    try:
        make(path.parent)
        left = tidy(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot put {path.parent} in order: {error.strerror or error}.") from error
    moved, alone = set_aside_later(path.parent, than=last)
    path = write_staged(staged, free_folder(path.parent, snapshot.state["step"]))
    stuck = None if retention is None else prune(path.parent, retention, newest=snapshot.state["step"])
    notes = [f"{path.parent} had a checkpoint after step {last}: it is {other.name} now." for other in moved]
    return path, [*notes, *(note for note in (left, alone, stuck) if note is not None)]


@contextmanager
def _all_or_none(parts: Mapping[str, Stateful], path: Path) -> Iterator[None]:
    """Put `parts` back to what they are now where the block fails: each may still refuse its state."""
    before = {name: part.state_dict() for name, part in parts.items()}
    try:
        yield
    except Exception as error:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        if isinstance(error, Error):
            raise
        raise CheckpointError(
            f"{path} does not fit what it is loaded into: {type(error).__name__}: {error}."
        ) from error


def _serial_weights(model: nn.Module) -> dict[str, Tensor]:
    weights = model.state_dict()
    return {serial: weights[name] for name, serial in serial_names(weights).items()}


def _check(
    path: Path, snapshot: Snapshot, model: nn.Module, parts: Mapping[str, Stateful], *, needs_position: bool
) -> None:
    """Refuse a checkpoint that is not of these parts."""
    if difference := misfit(snapshot.model, _serial_weights(model)):
        raise CheckpointError(f"{path} belongs to another model: {difference}.")
    _check_values(path, snapshot)
    missing = [name for name in parts if name not in snapshot.optimizer]
    if needs_position and not {"seed", "epoch", "samples"} <= snapshot.state.keys():
        missing.append("loader")
    if missing:
        raise CheckpointError(
            f"{path} was saved without {', '.join(missing)}. Leave it out here as well, or save it too."
        )
    for name, part in parts.items():
        saved, own = snapshot.optimizer[name], part.state_dict()
        if not isinstance(saved, dict):
            raise CheckpointError(f"{path} has a {type(saved).__name__} as the state of the {name}, no dict.")
        difference = optimizer_misfit(saved, part) if name == "optimizer" else None
        if own and not saved:  # a scaler that was switched off has no state
            difference = "it was saved without a state"
        if difference:
            raise CheckpointError(f"{path} belongs to another {name}: {difference}.")


def _check_values(path: Path, snapshot: Snapshot) -> None:
    """Refuse values of other types than `save` writes."""
    check_random_states(snapshot.optimizer.get("random", []))
    for name in ("step", "seed", "epoch", "samples"):
        value = snapshot.state.get(name, 0)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{path} has {name} {value!r:.40}: no whole number of 0 or more.")
    if "step" not in snapshot.state or not isinstance(snapshot.state.get("extra", {}), dict):
        raise CheckpointError(f"{path} was not written by samestep.save: it has no step, or no extra values.")


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, stacklevel=5)  # the script's call, by way of `on_main`
