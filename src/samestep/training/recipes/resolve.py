"""Resolves a request into one checked configuration of a training, and refuses flags that have no effect.

Only flags are checked for an effect: a recipe and the ``config.toml`` of a run contain all settings, used or
not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from samestep.base.errors import UsageError
from samestep.base.folders import claim_folder
from samestep.base.setting_fields import flag
from samestep.ranks.world.protocol import World
from samestep.training.data.augmentation import check_augment
from samestep.training.data.image_set import Images, ImageSet
from samestep.training.data.sets.registry import load
from samestep.training.loop.compiling import compiled
from samestep.training.loop.metrics import check_metrics
from samestep.training.networks import build
from samestep.training.output.loggers.logger import check_loggers
from samestep.training.output.profile import steps_of
from samestep.training.recipes.registry import Recipe, find
from samestep.training.recipes.request import Request, configuration, part_of
from samestep.training.settings import RunOptions, Settings

LR_SCALES = ("none", "linear", "sqrt")
"""The rules by which the learning rate depends on the number of workers.

linear: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677); sqrt: Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014 (arXiv:1404.5997).
"""

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
        what = {
            "recipe": self.recipe,
            "fast": self.fast,
            "data": self.data,
            "model": self.model,
            "subset": self.subset,
            "data_dir": None if self.data_dir is None else str(self.data_dir.absolute()),
            "label": self.label,
        }
        everything = what | self.settings.as_dict()
        return {name: value for name, value in everything.items() if value is not None}


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
    refuse_recipes_nesterov(config, recipe)
    settings = replace(recipe.settings, **part_of(config, Settings))
    refuse_unused(request, settings)
    changed = not goes_on and bool({"batch_size", "lr"} & set(request.changes))
    label = None if changed else config.get("label")
    settings, label = _per_worker(request, settings, workers, label=label)
    settings.check_workers(workers)
    data_dir = request.data_dir or (Path(config["data_dir"]) if "data_dir" in config else None)
    subset = config.get("subset") if request.subset is None else request.subset
    data = request.data or config.get("data", recipe.data)
    train_set = load(data, "train", data_dir=data_dir)
    refuse_unused_by_data(request, data, train_set)
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
        if request.lr_scale is not None:
            raise UsageError("--lr-scale needs --batch-per-worker: with a global batch nothing is scaled.")
        return settings, label
    if "batch_size" in request.changes:
        raise UsageError(
            "--batch-size is the global batch and --batch-per-worker that of each worker: give one of the "
            "two."
        )
    if request.lr_scale not in (None, "none") and label is not None:
        raise UsageError(
            f"--lr-scale {request.lr_scale} cannot scale the rate {settings.lr:g} of {request.config}, which "
            "is already for several workers (see its label). Give the rate of one worker with --lr."
        )
    scaled = batch_per_worker(
        request.batch_per_worker, scale=request.lr_scale or "none", lr=settings.lr, workers=workers
    )
    return replace(settings, batch_size=scaled.batch_size, lr=scaled.lr), scaled.label


_SCORING = ("batch_size", "precision", "channels_last", "loader_workers", "metric")
"""Settings that ``--eval-only`` uses."""
_TRAINING = ("subset", "batch_per_worker", "lr_scale", "resume", "out")
"""Flags of a `Request` that ``--eval-only`` does not use."""
_NO_FILES = ("digits", "synthetic")  # data sets without files


def refuse_unused(request: Request, settings: Settings) -> None:
    """Refuse flags that have no effect beside the others."""
    if request.weights is not None:
        _refuse_where_nothing_is_trained(request)
    chosen = {
        "momentum": (settings.optimizer == "sgd", f"--optimizer {settings.optimizer}"),
        "step_epochs": (settings.schedule == "step", f"--schedule {settings.schedule}"),
        "milestones": (settings.schedule == "multistep", f"--schedule {settings.schedule}"),
        "gamma": (settings.schedule in ("step", "multistep"), f"--schedule {settings.schedule}"),
    }
    for name, (used, why) in chosen.items():
        if name in request.changes and not used:
            raise UsageError(f"{flag(name)} has no effect with {why}: omit it.")
    if {"schedule", "step_epochs", "milestones", "gamma"} & set(request.changes):
        _refuse_drops_after_the_end(settings)


def refuse_recipes_nesterov(asked: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse another optimizer for a recipe with Nesterov momentum, unless ``--no-nesterov`` is given."""
    settings = {"nesterov": recipe.settings.nesterov, "momentum": recipe.settings.momentum, **asked}
    if "nesterov" in asked or not settings["nesterov"]:
        return  # `Settings` checks the user's own choice
    optimizer = settings.get("optimizer", "sgd")
    if optimizer != "sgd" or not settings["momentum"]:
        chosen = f"--optimizer {optimizer}" if optimizer != "sgd" else "--momentum 0"
        raise UsageError(
            f"{recipe.name} uses Nesterov momentum, which does not work with {chosen}: add --no-nesterov."
        )


def refuse_unused_by_data(request: Request, data: str, images: Images) -> None:
    """Refuse flags about files for a data set without files, and loading processes for one in memory."""
    if request.data_dir is not None and data.partition(":")[0] in _NO_FILES:
        raise UsageError(f"--data-dir has no effect with {data}, which has no files: omit it.")
    if "loader_workers" in request.changes and isinstance(images, ImageSet):
        raise UsageError(f"--loader-workers has no effect with {data}, which is in memory: omit it.")


def _refuse_where_nothing_is_trained(request: Request) -> None:
    named = [name for name in _TRAINING if getattr(request, name) is not None]
    for name in [*named, *request.changes]:
        if name not in _SCORING:
            raise UsageError(
                f"{flag(name)} has no effect with --eval-only, which trains and writes nothing: omit it."
            )


def _refuse_drops_after_the_end(settings: Settings) -> None:
    epochs = settings.epochs
    if settings.schedule == "step" and settings.step_epochs >= epochs:
        raise UsageError(
            f"--schedule step never drops the rate: --step-epochs is {settings.step_epochs:g}, and the "
            f"training has {epochs} epochs. Use a smaller --step-epochs, or --schedule constant."
        )
    if settings.schedule == "multistep" and settings.milestones[-1] >= epochs:
        raise UsageError(
            f"--milestones {settings.milestones[-1]:g} is not before the end of the training, which has "
            f"{epochs} epochs. Omit that milestone, or use more --epochs."
        )
