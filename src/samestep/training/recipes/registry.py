"""Lists the recipes by name; a new one is defined in `tutorial_recipes` or `fast_recipes` and added."""

from samestep.base.errors import UsageError
from samestep.training.recipes import fast_recipes as fast
from samestep.training.recipes import tutorial_recipes
from samestep.training.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        tutorial_recipes.DIGITS,
        tutorial_recipes.MNIST,
        tutorial_recipes.FASHION_MNIST,
        tutorial_recipes.CIFAR10,
        tutorial_recipes.SYNTHETIC,
    )
}
FAST: dict[str, Recipe] = {recipe.name: recipe for recipe in (fast.MNIST, fast.FASHION_MNIST, fast.CIFAR10)}


def find(name: str, *, fast: bool = False) -> Recipe:
    """Return the recipe called `name`, or its fast form.

    Raises:
        UsageError: there is none; lists the existing ones.
    """
    if name not in RECIPES:
        raise UsageError(f"there is no recipe {name!r}. Use one of: {', '.join(RECIPES)}.")
    if fast and name not in FAST:
        raise UsageError(f"{name} has no --fast form; these have: {', '.join(FAST)}.")
    return FAST[name] if fast else RECIPES[name]
