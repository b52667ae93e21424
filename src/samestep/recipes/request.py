"""What a user asks for, and the file or the run that it builds on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.recipes.config import WHAT, part_of, read_config
from samestep.training.conduct import Conduct
from samestep.training.option import flag
from samestep.training.run_folder import RunFolder
from samestep.training.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks for, before anything is looked at.

    The recipe says everything; a configuration file changes some of it, and flags change some of that.
    """

    recipe: str | None = None
    fast: bool | None = None
    data: str | None = None
    model: str | None = None
    data_dir: Path | None = None
    subset: int | None = None
    changes: Mapping[str, Any]
    """Settings and conduct other than the recipe's."""
    config: Path | None = None
    batch_per_worker: int | None = None
    lr_scale: str | None = None
    resume: Path | None = None
    """The run folder of a training to go on with, or to begin where a recipe or a file says which."""
    weights: Path | None = None
    """A checkpoint to score; nothing is trained then."""
    out: Path | None = None
    """The run folder of a new training."""


def after_failure(request: Request) -> Request:
    """Return what workers ask for that were started afresh: to go on with the run, if it had begun."""
    if request.out is None or not (request.out / "config.toml").is_file():
        return request
    return Request(changes={}, resume=request.out)


def configuration(request: Request) -> tuple[dict[str, Any], bool]:
    """Return the keys of the file or the run that the request builds on, under those that were changed.

    Also whether it is a run, which goes on.

    Raises:
        UsageError: the file cannot be read, or the run cannot go on, or only with other settings.
    """
    file = {} if request.config is None else _read(request.config, request.changes)
    asked = {**file, **request.changes}
    folder = request.resume
    if folder is None or request.weights is not None:
        return asked, False
    _refuse_beside_resume(request)
    says_what = request.recipe is not None or request.config is not None
    if says_what and not (folder / "config.toml").exists():
        return asked, False
    RunFolder.check(folder)
    found = _read(folder / "config.toml", request.changes)
    flags = {name: value for name in WHAT if (value := getattr(request, name, None)) is not None}
    _refuse_other_settings({**asked, **flags}, found, folder)
    return {**found, **part_of(asked, Conduct)}, True


def _read(path: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file, without one that earlier versions wrote and `exact` never looked at."""
    found = read_config(path)
    if "exact" in found or "exact" in changes:
        found.pop("batch_norm", None)
    return found


def _refuse_beside_resume(request: Request) -> None:
    why = {
        "out": "--resume names the run folder already",
        "batch_per_worker": "a run goes on with one global batch on any number of workers; say --batch-size",
        "lr_scale": "a run goes on with one learning rate on any number of workers; say --lr",
    }
    for one in fields(request):
        if one.name in why and getattr(request, one.name) is not None:
            raise UsageError(f"{flag(one.name)} does not go with --resume: {why[one.name]}.")


def _refuse_other_settings(asked: Mapping[str, Any], found: Mapping[str, Any], folder: Path) -> None:
    """Refuse what would make another training of a run; neither where data lie nor how it is kept does."""
    decides = {"recipe", "fast", "data", "model", "subset", *part_of(asked, Settings)}
    for name in (name for name in asked if name in decides):
        there = found.get(name)
        settled = (
            name == "precision" and asked[name] == "auto"
        )  # the run's is what the first start made of it
        if asked[name] != there and not settled:
            what = "the recipe" if name == "recipe" else flag(name)
            raise UsageError(
                f"--resume {folder} goes on with the settings that the run began with: there {what} is "
                f"{'not set' if there is None else there}, not {asked[name]}. Leave it out, or begin another "
                f"run: --config {folder / 'config.toml'} --out DIR."
            )
