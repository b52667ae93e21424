"""The recipes by name. Adding one: an entry here, and its file if it is of a new kind."""

from samestep.base.errors import UsageError
from samestep.recipes.recipe import Recipe
from samestep.recipes.tutorial import DIGITS, MNIST

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (DIGITS, MNIST)}


def find(name: str) -> Recipe:
    """Return the recipe called `name`.

    Raises:
        UsageError: there is none; lists those there are.
    """
    if name not in RECIPES:
        raise UsageError(f"no recipe is called {name!r}. Use one of: {', '.join(RECIPES)}.")
    return RECIPES[name]
