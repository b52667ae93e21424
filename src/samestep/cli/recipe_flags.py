"""Checks the flags of a recipe that ``scale`` measures, before anything runs: each run would fail on them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import typer

from samestep.base.errors import UsageError
from samestep.cli.main import application
from samestep.cli.setting_flags import given
from samestep.studies.scaling.sweep.trial import Trial


def refuse_wrong_flags(trials: Sequence[Trial]) -> None:
    """Refuse flags that ``train`` does not have, and values that it refuses.

    Checks that need the data set or the model are left to the runs, because they take long.

    Args:
        trials: runs of a recipe.

    Raises:
        UsageError: a flag or a value is wrong; the message names it.
    """
    for trial in trials:
        if not trial.repeat:  # the repeats have the same command
            _check_settings(_parsed(trial.command), trial.workers)


def _parsed(command: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of the command's flags, by name."""
    verb, *words = command
    group: Any = typer.main.get_command(application(verb))
    try:
        context = group.get_command(None, verb).make_context(verb, words)
    except typer.TyperException as error:
        raise UsageError(f"samestep {verb}: {error.format_message()}") from None
    found: Mapping[str, Any] = context.params
    return found


def _check_settings(flags: Mapping[str, Any], workers: int) -> None:
    from samestep.training.recipes.config import part_of
    from samestep.training.recipes.registry import find
    from samestep.training.recipes.request import Request, configuration
    from samestep.training.settings.run_options import RunOptions
    from samestep.training.settings.training_settings import Settings

    own = {one.name: flags[one.name] for kind in (Settings, RunOptions) for one in fields(kind)}
    changes = given(own, Settings, RunOptions)
    config, _ = configuration(Request(recipe=flags["recipe"], config=flags["config"], changes=changes))
    recipe = find(flags["recipe"], fast=bool(flags["fast"] or config.get("fast")))
    replace(recipe.settings, **part_of(config, Settings)).check_workers(workers)
    replace(recipe.options, **part_of(config, RunOptions))
