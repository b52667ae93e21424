"""Resolves a request into one checked configuration of a training, and refuses flags that have no effect.

Only flags are checked for an effect: a recipe and the ``config.toml`` of a run contain all settings, used or
not.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from samestep.base.errors import UsageError
from samestep.base.folders import claim_folder
from samestep.base.options import OF_FLAGS_BESIDE_SETTINGS, check_options, flag
from samestep.ranks.world.protocol import World
from samestep.training.data.augmentation import check_augment
from samestep.training.data.image_set import Images, ImageSet
from samestep.training.data.sets.registry import load
from samestep.training.loop.metrics import check_metrics
from samestep.training.loop.step import compiled
from samestep.training.networks import build
from samestep.training.output.loggers import check_loggers
from samestep.training.output.profile import steps_of
from samestep.training.recipes.registry import find
from samestep.training.recipes.request import LR_SCALES, Request, configuration, part_of
from samestep.training.settings import RunOptions, Settings

_SOURCES = {"linear": "linear: Goyal et al., 2017", "sqrt": "square root: Krizhevsky, 2014"}


@dataclass(frozen=True, slots=True)
class PerWorkerBatch:
    """The global batch and learning rate of a batch per worker."""

    batch_size: int  # the global batch
    lr: float
    label: str | None  # A sentence on how it differs from the serial training; None if it is the serial one


def batch_per_worker(batch: int, *, scale: str, lr: float, workers: int) -> PerWorkerBatch:
    """Return the global batch and learning rate if each worker takes `batch` samples per step.

    `scale` is one of `LR_SCALES`, and `lr` the learning rate of one worker.

    Raises:
        UsageError: `batch` is below 1, or `scale` is unknown.
    """
    if batch < 1:
        raise UsageError(f"--batch-per-worker is {batch}; use 1 or more.")
    if scale not in LR_SCALES:
        raise UsageError(f"--lr-scale {scale!r} is not one of {', '.join(LR_SCALES)}.")
    total = batch * workers
    scaled = lr * {"none": 1, "linear": workers, "sqrt": sqrt(workers)}[scale]
    if workers == 1:
        return PerWorkerBatch(total, scaled, label=None)
    rate = f"stays {lr:g}" if scale == "none" else f"becomes {scaled:g} from {lr:g} ({_SOURCES[scale]})"
    return PerWorkerBatch(
        total,
        scaled,
        label=f"Not the serial training: {batch} samples on each of {workers} workers make a global batch of "
        f"{total}, so there are fewer steps and the result depends on the number of workers. "
        f"The learning rate {rate}.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """The configuration of one training, with checked settings and loaded data sets."""

    recipe: str
    fast: bool
    data: str
    model: str
    data_dir: Path | None
    subset: int | None
    settings: Settings
    options: RunOptions
    train_set: Images
    test_set: Images
    out: Path  # the run folder
    is_named_by_time: bool  # whether the run folder has its default name, which another run may choose too
    resume: bool  # whether the folder contains this run, which is resumed
    weights: Path | None  # A checkpoint to score; then nothing is trained and no run folder made
    label: str | None  # A sentence on how the training differs from the serial one; None if it does not

    def config(self) -> dict[str, Any]:
        """Return the keys that reproduce the run, as in ``config.toml``."""
        return self.training() | self.options.as_dict()

    def training(self) -> dict[str, Any]:
        """Return the keys that the result of the training depends on."""
        parts = {
            "recipe": self.recipe,
            "fast": self.fast,
            "data": self.data,
            "model": self.model,
            "subset": self.subset,
            "data_dir": None if self.data_dir is None else str(self.data_dir.absolute()),
            "label": self.label,
        }
        keys = parts | self.settings.as_dict()
        return {name: value for name, value in keys.items() if value is not None}


def resolve(request: Request, *, workers: int) -> ResolvedConfig:
    """Return the configuration for a request, completely checked before anything is written or started.

    Raises:
        UsageError: the recipe is unknown, a setting is out of range, data is missing or damaged, or the run
            cannot be resumed.
    """
    config, goes_on = configuration(request)
    name = request.recipe or config.get("recipe", "digits")
    fast = config.get("fast", False) if request.fast is None else request.fast
    recipe = find(name, fast=fast)
    settings = replace(recipe.settings, **part_of(config, Settings))
    data = request.data or config.get("data", recipe.data)
    refuse_unused(request, settings, data)
    changed = not goes_on and bool({"batch_size", "lr"} & set(request.changes))
    label = None if changed else config.get("label")
    settings, label = _per_worker(request, settings, workers, label=label)
    settings.check_workers(workers)
    data_dir = request.data_dir or (Path(config["data_dir"]) if "data_dir" in config else None)
    subset = config.get("subset") if request.subset is None else request.subset
    train_set = load(data, "train", data_dir=data_dir)
    if "loader_workers" in request.changes and isinstance(train_set, ImageSet):
        raise UsageError(f"--loader-workers has no effect with {data}, which is in memory: omit it.")
    if subset is not None:
        train_set = train_set.subset(subset)
    model = request.model or config.get("model", recipe.model)
    check_augment(settings.augment, shape=train_set.shape)
    with torch.device("meta"):  # checks at no cost whether the model accepts such images
        build(model, shape=train_set.shape, classes=len(train_set.classes))
    options = replace(recipe.options, **part_of(config, RunOptions))
    check_loggers(options.logger)
    if options.profile is not None:
        steps = -(-len(train_set) // settings.batch_size)
        steps_of(options.profile, total=settings.epochs * steps)
    check_metrics(options.metric, classes=len(train_set.classes))
    return ResolvedConfig(
        recipe=name,
        fast=fast,
        data=data,
        model=model,
        data_dir=data_dir,
        subset=subset,
        settings=settings,
        options=options,
        train_set=train_set,
        test_set=load(data, "test", data_dir=data_dir),
        out=request.resume or request.out or default_folder(name),
        is_named_by_time=not (request.resume or request.out),
        resume=goes_on,
        weights=request.weights,
        label=label,
    )


def check_compiler(resolved: ResolvedConfig, device: torch.device | str = "cpu") -> None:
    """Check that ``--compile`` works on `device`, if it is set.

    Raises:
        UsageError: a compiler is missing, or this Python is too new for it.
    """
    if resolved.settings.compile and resolved.weights is None:
        compiled(torch.nn.Linear(1, 1, device=device), resolved.settings)


def broadcast_resolved(resolved: ResolvedConfig, world: World) -> ResolvedConfig:
    """Replace the parts of a configuration that depend on clock and file system by those of rank 0.

    Every rank resolves the request on its own host, where both can differ.
    """
    out = world.on_main(lambda: own_folder(resolved))
    names = ("settings", "options", "resume", "label")
    parts = world.broadcast_object({name: getattr(resolved, name) for name in names})
    return replace(resolved, out=out, **parts)


def own_folder(resolved: ResolvedConfig) -> Path:
    """Return the run folder; one with the default name is made, so that no other run chooses it."""
    is_claimed = resolved.is_named_by_time and resolved.weights is None
    return claim_folder(resolved.out) if is_claimed else resolved.out


def default_folder(recipe: str) -> Path:
    """Return the run folder for a run without ``--out``."""
    return Path("runs") / f"{recipe}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _per_worker(
    request: Request, settings: Settings, workers: int, *, label: str | None
) -> tuple[Settings, str | None]:
    """Apply ``--batch-per-worker`` and ``--lr-scale``; return the settings and their label."""
    if request.batch_per_worker is None:
        return settings, label
    if request.lr_scale not in (None, "none") and label is not None:
        raise UsageError(
            f"--lr-scale {request.lr_scale} cannot scale the rate {settings.lr:g} of {request.config}, which "
            "is already for several workers (see its label). Give the rate of one worker with --lr."
        )
    scaled = batch_per_worker(
        request.batch_per_worker, scale=request.lr_scale or "none", lr=settings.lr, workers=workers
    )
    return replace(settings, batch_size=scaled.batch_size, lr=scaled.lr), scaled.label


def refuse_unused(request: Request, settings: Settings, data: str) -> None:
    """Refuse flags that have no effect beside the other settings, and on this data set."""
    flags = {flag(name): value for name, value in request.changes.items()} | {"--data-dir": request.data_dir}
    check_options(OF_FLAGS_BESIDE_SETTINGS, settings.as_options() | {"--data": data}, flags)
    drops = {"step": settings.step_epochs, "multistep": max(settings.milestones, default=0.0)}
    last = drops.get(settings.schedule, 0.0)
    if {"schedule", "step_epochs", "milestones"} & set(request.changes) and last >= settings.epochs:
        name = "--step-epochs" if settings.schedule == "step" else "--milestones"
        raise UsageError(f"{name} is {last:g}, after the end of the training: --epochs is {settings.epochs}.")
