"""Defines the recipes: data sets, networks and settings that are tested together.

The fast forms (``--fast``) use a one-cycle schedule whose peak is ten times the usual rate. Source of the
schedule: Smith, Topin, "Super-convergence", 2018 (arXiv:1708.07120). The small residual network and its
settings go back to the fastest entries of DAWNBench (Coleman et al., 2017).
"""

from dataclasses import dataclass

from samestep.base.errors import UsageError
from samestep.training.settings import RunOptions, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One built-in training; flags and configuration files override its settings."""

    name: str  # its name for ``samestep train``
    data: str  # the data set; see `samestep.training.data.sets.registry`
    model: str  # the network; see `samestep.training.networks`
    settings: Settings
    options: RunOptions = RunOptions()  # noqa: RUF009 - it is immutable


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits",
            data="digits",
            model="convnet",
            settings=Settings(epochs=10, batch_size=64, lr=0.1, schedule="one-cycle", weight_decay=5e-4),
        ),
        Recipe(
            name="mnist",
            data="mnist",
            model="convnet",
            settings=Settings(epochs=5, batch_size=100, lr=0.01, momentum=0.0),
        ),
        Recipe(
            name="fashion-mnist",
            data="fashion-mnist",
            model="convnet",
            settings=Settings(epochs=10, batch_size=100, lr=0.01, momentum=0.9),
        ),
        Recipe(
            name="cifar10",
            data="cifar10",
            model="resnet34",
            settings=Settings(
                epochs=60,
                batch_size=128,
                lr=0.01,
                weight_decay=1e-4,
                schedule="step",  # 0.01, 0.001, 0.0001
                step_epochs=20,
                augment="crop:4,flip",
            ),
        ),
        Recipe(
            name="synthetic",
            data="synthetic",
            model="resnet152",
            settings=Settings(epochs=1, batch_size=32, lr=0.01),
        ),
    )
}
"""The recipes by name, with the settings of well-known tutorials; synthetic measures training throughput."""

FAST: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="mnist",
            data="mnist",
            model="convnet",
            settings=Settings(
                epochs=1, batch_size=128, lr=0.1, schedule="one-cycle", weight_decay=5e-4, channels_last=True
            ),
        ),
        Recipe(
            name="fashion-mnist",
            data="fashion-mnist",
            model="convnet",
            settings=Settings(
                epochs=5,
                batch_size=128,
                lr=0.1,
                schedule="one-cycle",
                weight_decay=5e-4,
                augment="crop:2,flip",
                channels_last=True,
            ),
        ),
        Recipe(
            name="cifar10",
            data="cifar10",
            model="resnet9",
            settings=Settings(
                epochs=16,
                batch_size=512,
                lr=0.4,
                nesterov=True,
                weight_decay=5e-4,
                schedule="one-cycle",
                label_smoothing=0.1,
                augment="crop:4,flip,cutout:8",
                precision="auto",
                channels_last=True,
            ),
            options=RunOptions(evaluate_every=2),
        ),
    )
}
"""The fast forms: the same tasks in a fraction of the time."""


def find(name: str, *, fast: bool = False) -> Recipe:
    """Return the recipe called `name`, or its fast form.

    Raises:
        UsageError: there is none; lists the existing ones.
    """
    if name not in RECIPES:
        script = f" To run a script, give: samestep run {name}." if name.endswith(".py") else ""
        raise UsageError(f"there is no recipe {name!r}. Use one of: {', '.join(RECIPES)}.{script}")
    if fast and name not in FAST:
        raise UsageError(f"{name} has no --fast form; these have: {', '.join(FAST)}.")
    return FAST[name] if fast else RECIPES[name]
