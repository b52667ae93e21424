"""Running a recipe on the ranks of a world."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from samestep.data.image_set import ImageSet
from samestep.data.registry import load
from samestep.recipes.recipe import Recipe
from samestep.training.loop import Training
from samestep.training.progress import Display, Silent, Spoken
from samestep.training.result import Result
from samestep.training.run_folder import Nowhere, RunFolder, Sink
from samestep.training.settings import Settings
from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One training to run: everything is checked and the data is in memory."""

    recipe: Recipe
    settings: Settings
    train_set: ImageSet
    test_set: ImageSet
    out: Path
    """The run folder."""
    quiet: bool = False
    """Show no progress."""

    @classmethod
    def take(
        cls,
        recipe: Recipe,
        settings: Settings,
        *,
        out: Path,
        data_dir: Path | None = None,
        subset: int | None = None,
        quiet: bool = False,
    ) -> "Order":
        """Return the order, its data read and its run folder made.

        Args:
            recipe: what to train.
            settings: how.
            out: where to write; must not hold another run.
            data_dir: where the data set lies; None is the embedded or downloaded one.
            subset: train on the first so many samples; the test set stays whole.
            quiet: show no progress.

        Raises:
            UsageError: the data is not there or not whole, or the folder cannot be written.
        """
        train_set = load(recipe.name, "train", data_dir=data_dir)
        test_set = load(recipe.name, "test", data_dir=data_dir)
        if subset is not None:
            train_set = train_set.subset(subset)
        RunFolder.prepare(out)
        return cls(
            recipe=recipe, settings=settings, train_set=train_set, test_set=test_set, out=out, quiet=quiet
        )


def cook(world: World, order: Order) -> Result:
    """Train on the ranks of `world`; every rank calls this and gets the result."""
    training = Training(
        lambda: order.recipe.model(order.train_set),
        train_set=order.train_set,
        test_set=order.test_set,
        settings=order.settings,
        world=world,
    )
    sink: Sink = Nowhere()
    display: Display = Silent()
    if world.place.is_main:
        folder = RunFolder(order.out)
        folder.write_config(
            {"recipe": order.recipe.name, "train_samples": len(order.train_set), **order.settings.as_dict()}
        )
        sink = folder
        if not order.quiet:
            display = Spoken(steps=training.steps, epochs=order.settings.epochs, console=Console(stderr=True))
    return training.run(sink, display)
