"""Refusals of flags that would change nothing: who gives one expects that it does.

Only flags are looked at. A recipe and the ``config.toml`` of a run say everything, needed or not.
"""

from collections.abc import Mapping
from typing import Any

from samestep.base.errors import UsageError
from samestep.data.image_set import Images, ImageSet
from samestep.recipes.recipe import Recipe
from samestep.recipes.request import Request
from samestep.training.option import flag
from samestep.training.settings import Settings

_SCORING = ("batch_size", "precision", "channels_last", "loader_workers", "metric")
"""What matters where nothing is trained; a batch is what fits into memory."""
_TRAINING = ("subset", "batch_per_worker", "lr_scale", "resume", "out")
"""What does not, of a request."""
_NO_FILES = ("digits", "synthetic")
"""The data sets that are read from no folder."""


def refuse_unused(request: Request, settings: Settings) -> None:
    """Refuse flags that mean nothing beside the others.

    Args:
        request: the flags.
        settings: what they and everything else came to.
    """
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
            raise UsageError(f"{flag(name)} means nothing with {why}: leave it out.")
    if {"schedule", "step_epochs", "milestones", "gamma"} & set(request.changes):
        _refuse_drops_after_the_end(settings)


def refuse_recipes_nesterov(asked: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse another optimizer for a recipe that uses Nesterov's momentum, with the flag that goes with it.

    Args:
        asked: the settings other than the recipe's.
        recipe: which.
    """
    settings = {"nesterov": recipe.settings.nesterov, "momentum": recipe.settings.momentum, **asked}
    if "nesterov" in asked or not settings["nesterov"]:
        return  # what a user has said is checked with the other settings
    optimizer = settings.get("optimizer", "sgd")
    if optimizer != "sgd" or not settings["momentum"]:
        chosen = f"--optimizer {optimizer}" if optimizer != "sgd" else "--momentum 0"
        raise UsageError(
            f"{recipe.name} uses Nesterov's momentum, which does not go with {chosen}: add --no-nesterov."
        )


def refuse_unused_by_data(request: Request, data: str, images: Images) -> None:
    """Refuse flags about files where none are read, and loading processes where nothing is loaded.

    Args:
        request: the flags.
        data: the name of the data set.
        images: the data set.
    """
    if request.data_dir is not None and data.partition(":")[0] in _NO_FILES:
        raise UsageError(f"--data-dir means nothing with {data}, which needs no files: leave it out.")
    if "loader_workers" in request.changes and isinstance(images, ImageSet):
        raise UsageError(
            f"--loader-workers means nothing with {data}, which lies in memory as a whole: leave it out."
        )


def _refuse_where_nothing_is_trained(request: Request) -> None:
    named = [name for name in _TRAINING if getattr(request, name) is not None]
    for name in [*named, *request.changes]:
        if name not in _SCORING:
            raise UsageError(
                f"{flag(name)} means nothing with --eval-only, which trains nothing and writes nothing: "
                "leave it out."
            )


def _refuse_drops_after_the_end(settings: Settings) -> None:
    epochs = settings.epochs
    if settings.schedule == "step" and settings.step_epochs >= epochs:
        raise UsageError(
            f"--schedule step drops the rate every {settings.step_epochs:g} epochs (--step-epochs), and the "
            f"training ends after {epochs}: it would never drop. Use less, or --schedule constant."
        )
    if settings.schedule == "multistep" and settings.milestones[-1] >= epochs:
        raise UsageError(
            f"--milestones {settings.milestones[-1]:g}: the training ends after {epochs} epochs, before the "
            "rate would drop. Leave it out, or train for more --epochs."
        )
