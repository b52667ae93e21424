"""One training to run, as a value: what was asked for, checked as a whole."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from samestep.base.errors import UsageError
from samestep.data.augment import check_augment
from samestep.data.image_set import Images
from samestep.data.registry import load
from samestep.models.registry import build
from samestep.recipes.book import find
from samestep.recipes.config import part_of
from samestep.recipes.request import Request, configuration
from samestep.recipes.unused import refuse_recipes_nesterov, refuse_unused, refuse_unused_by_data
from samestep.training.compiling import compiled
from samestep.training.conduct import Conduct
from samestep.training.loggers.observed import check_loggers
from samestep.training.metrics import check_metrics
from samestep.training.per_worker import batch_per_worker
from samestep.training.profile import steps_of
from samestep.training.settings import Settings
from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One training to run: its settings are checked and its data can be read."""

    recipe: str
    fast: bool
    data: str
    model: str
    data_dir: Path | None
    subset: int | None
    settings: Settings
    conduct: Conduct
    train_set: Images
    test_set: Images
    out: Path
    """The run folder."""
    resume: bool
    """Whether it holds the beginning of this run."""
    weights: Path | None
    """A checkpoint to score; nothing is trained then, and no run folder made."""
    label: str | None
    """What kind of training this is, where it is not the serial one."""

    def config(self) -> dict[str, Any]:
        """Return what reproduces the run."""
        return self.training() | {
            name: value for name, value in self.conduct.as_dict().items() if value is not None
        }

    def training(self) -> dict[str, Any]:
        """Return what is trained, and as what."""
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


def take_order(request: Request, *, workers: int) -> Order:
    """Return the order, checked as a whole before anything is written or started.

    Args:
        request: what was asked for.
        workers: how many will share the work.

    Raises:
        UsageError: an unknown recipe, a setting out of range, data that is missing or damaged, or a run
            that cannot go on.
    """
    config, goes_on = configuration(request)
    name = request.recipe or config.get("recipe", "digits")
    fast = config.get("fast", False) if request.fast is None else request.fast
    recipe = find(name, fast=fast)
    refuse_recipes_nesterov(config, recipe)
    settings = replace(recipe.settings, **part_of(config, Settings))
    refuse_unused(request, settings)
    changed = not goes_on and bool({"batch_size", "lr"} & set(request.changes))
    label = None if changed else config.get("label")  # what a file calls it, unless it is another by now
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
    with torch.device("meta"):  # costs nothing, and says whether the model takes such images
        build(model, shape=train_set.shape, classes=len(train_set.classes))
    conduct = replace(recipe.conduct, **part_of(config, Conduct))
    check_loggers(conduct.logger)
    if conduct.profile is not None:
        steps = -(-len(train_set) // settings.batch_size)
        steps_of(conduct.profile, total=settings.epochs * steps)
    check_metrics(conduct.metric, classes=len(train_set.classes))
    return Order(
        recipe=name,
        fast=fast,
        data=data,
        model=model,
        data_dir=data_dir,
        subset=subset,
        settings=settings,
        conduct=conduct,
        train_set=train_set,
        test_set=load(data, "test", data_dir=data_dir),
        out=request.resume or request.out or default_folder(name),
        resume=goes_on,
        weights=request.weights,
        label=label,
    )


def check_compiler(order: Order, device: torch.device | str = "cpu") -> None:
    """Refuse an order to compile where nothing can be compiled, before anything is written.

    Args:
        order: for what.
        device: where it is to be trained.

    Raises:
        UsageError: a program is missing, or this Python is too new.
    """
    if order.settings.compile and order.weights is None:
        compiled(torch.nn.Linear(1, 1, device=device), order.settings)


def settled_by_first(order: Order, world: World) -> Order:
    """Return the order with what rank 0 made of it: the time in the folder's name, and what it found there.

    Every rank took its order for itself, and its clock and its file system may be another.
    """
    names = ("settings", "conduct", "out", "resume", "label")
    return replace(order, **world.broadcast_object({name: getattr(order, name) for name in names}))


def default_folder(recipe: str) -> Path:
    """Return where a run goes if nobody says."""
    return Path("runs") / f"{recipe}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _per_worker(
    request: Request, settings: Settings, workers: int, *, label: str | None
) -> tuple[Settings, str | None]:
    """Return the settings with the global batch that a batch per worker means, and what that is called.

    Args:
        request: the flags.
        settings: without them.
        workers: how many.
        label: what the settings are called already, where they are those of another training.
    """
    if request.batch_per_worker is None:
        if request.lr_scale is not None:
            raise UsageError(
                "--lr-scale belongs to --batch-per-worker: with a global batch nothing is scaled."
            )
        return settings, label
    if "batch_size" in request.changes:
        raise UsageError(
            "--batch-size is the global batch and --batch-per-worker each worker's: give one of the two."
        )
    if request.lr_scale not in (None, "none") and label is not None:
        raise UsageError(
            f"--lr-scale {request.lr_scale} would scale the rate {settings.lr:g} of {request.config}, which "
            "is that of several workers already (see its label). Give the rate of one worker with --lr."
        )
    scaled = batch_per_worker(
        request.batch_per_worker, scale=request.lr_scale or "none", lr=settings.lr, workers=workers
    )
    return replace(settings, batch_size=scaled.batch_size, lr=scaled.lr), scaled.label
