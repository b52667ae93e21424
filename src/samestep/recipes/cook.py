"""Running a recipe on the ranks of a world."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from samestep.base.errors import UsageError
from samestep.data.image_set import ImageSet
from samestep.data.registry import load
from samestep.recipes.book import find
from samestep.recipes.recipe import Recipe
from samestep.training.loop import Training
from samestep.training.progress import Display, Silent, Spoken
from samestep.training.result import Result
from samestep.training.run_folder import Nowhere, RunFolder, Sink
from samestep.training.settings import Settings
from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One training to run: its settings are checked and its data is in memory."""

    recipe: Recipe
    settings: Settings
    train_set: ImageSet
    test_set: ImageSet
    out: Path
    """The run folder."""

    def config(self) -> dict[str, Any]:
        """Return what reproduces the run."""
        return {
            "recipe": self.recipe.name,
            "train_samples": len(self.train_set),
            **self.settings.as_dict(),
        }


def take_order(
    recipe: str,
    changes: Mapping[str, Any],
    *,
    workers: int,
    out: Path,
    data_dir: Path | None = None,
    subset: int | None = None,
) -> Order:
    """Return the order, checked as a whole before anything is written or started.

    Args:
        recipe: a name in the book.
        changes: settings other than the recipe's own.
        workers: how many will share the work.
        out: the run folder.
        data_dir: where the data set lies; None is the embedded or downloaded one.
        subset: train on the first so many samples; the test set stays whole.

    Raises:
        UsageError: an unknown recipe, a setting out of range, or data that is missing or damaged.
    """
    found = find(recipe)
    settings = replace(found.settings, **changes)
    if settings.optimizer == "adamw" and "momentum" in changes:
        raise UsageError("--momentum is SGD's; adamw has none. Leave it out, or use --optimizer sgd.")
    settings.check_workers(workers)
    train_set = load(found.name, "train", data_dir=data_dir)
    return Order(
        recipe=found,
        settings=settings,
        train_set=train_set if subset is None else train_set.subset(subset),
        test_set=load(found.name, "test", data_dir=data_dir),
        out=out,
    )


def prepare(order: Order) -> None:
    """Make the run folder; called by one process, before others start.

    Raises:
        UsageError: it cannot be written, or holds another run.
    """
    RunFolder.prepare(order.out)


def cook(world: World, order: Order) -> Result:
    """Train on the ranks of `world`; every rank calls this and gets the result."""
    world.on_main(lambda: prepare(order))
    training = Training(
        lambda: order.recipe.model(order.train_set),
        train_set=order.train_set,
        test_set=order.test_set,
        settings=order.settings,
        world=world,
    )
    sink, display = _outputs(world, order, steps=training.steps)
    return training.run(sink, display)


def _outputs(world: World, order: Order, *, steps: int) -> tuple[Sink, Display]:
    """Return where results and progress go: somewhere on rank 0, nowhere on the others."""
    if not world.place.is_main:
        return Nowhere(), Silent()
    folder = RunFolder(order.out)
    folder.write_config(order.config())
    return folder, Spoken(steps=steps, epochs=order.settings.epochs, console=Console(stderr=True))
