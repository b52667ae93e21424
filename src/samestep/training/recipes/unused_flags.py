"""Refuses flags that have no effect beside the others.

Only flags are checked: a recipe and the ``config.toml`` of a run contain all settings, used or not.
"""

from collections.abc import Mapping
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.setting_fields import flag
from samestep.training.data.image_set import Images, ImageSet
from samestep.training.recipes.registry import Recipe
from samestep.training.recipes.request import Request
from samestep.training.settings import Settings

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
