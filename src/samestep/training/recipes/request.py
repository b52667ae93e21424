"""Combines a user's flags with the configuration file or the run folder that they build on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.setting_fields import flag
from samestep.training.output.run_folder import RunFolder
from samestep.training.recipes.config import RECIPE_KEYS, part_of, read_config
from samestep.training.settings.run_options import RunOptions
from samestep.training.settings.training_settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The flags of a user, before any file is read.

    A recipe defines all settings. A configuration file overrides the recipe, and flags override both.
    """

    recipe: str | None = None
    fast: bool | None = None
    data: str | None = None
    model: str | None = None
    data_dir: Path | None = None
    subset: int | None = None
    changes: Mapping[str, Any]
    """Fields of `Settings` and `RunOptions` that flags set."""
    config: Path | None = None
    batch_per_worker: int | None = None
    lr_scale: str | None = None
    resume: Path | None = None
    """The folder of a run to resume, or to start if it has none and a recipe or file is given."""
    weights: Path | None = None
    """A checkpoint to score; then nothing is trained."""
    out: Path | None = None
    """The run folder of a new training."""


def after_failure(request: Request) -> Request:
    """Return the request of restarted workers: it resumes the run if that has started."""
    if request.out is None or not (request.out / "config.toml").is_file():
        return request
    return Request(changes={}, resume=request.out)


def configuration(request: Request) -> tuple[dict[str, Any], bool]:
    """Return the keys of the configuration file or run, overridden by flags, and whether a run is resumed.

    Raises:
        UsageError: the file cannot be read, or the run cannot be resumed with these settings.
    """
    file = {} if request.config is None else _read(request.config, request.changes)
    asked = {**file, **request.changes}
    folder = request.resume
    if folder is None or request.weights is not None:
        return asked, False
    _refuse_beside_resume(request)
    defined = request.recipe is not None or request.config is not None
    if defined and not (folder / "config.toml").exists():
        return asked, False
    RunFolder.check(folder)
    found = _read(folder / "config.toml", request.changes)
    flags = {name: value for name in RECIPE_KEYS if (value := getattr(request, name, None)) is not None}
    _refuse_other_settings({**asked, **flags}, found, folder)
    return {**found, **part_of(asked, RunOptions)}, True


def _read(path: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file; `exact` ignores `batch_norm`, which earlier versions wrote."""
    found = read_config(path)
    if "exact" in found or "exact" in changes:
        found.pop("batch_norm", None)
    return found


def _refuse_beside_resume(request: Request) -> None:
    why = {
        "out": "--resume is the run folder",
        "batch_per_worker": "a run keeps its global batch (--batch-size) on any number of workers",
        "lr_scale": "a run keeps its learning rate (--lr) on any number of workers",
    }
    for one in fields(request):
        if one.name in why and getattr(request, one.name) is not None:
            raise UsageError(f"{flag(one.name)} cannot be used with --resume: {why[one.name]}.")


def _refuse_other_settings(asked: Mapping[str, Any], found: Mapping[str, Any], folder: Path) -> None:
    """Refuse settings that change the result of a resumed run; the data folder and run options do not."""
    decides = {"recipe", "fast", "data", "model", "subset", *part_of(asked, Settings)}
    for name in (name for name in asked if name in decides):
        there = found.get(name)
        is_auto = name == "precision" and asked[name] == "auto"  # the run has the choice of its first start
        if asked[name] != there and not is_auto:
            what = "the recipe" if name == "recipe" else flag(name)
            raise UsageError(
                f"--resume {folder} keeps the run's settings: {what} is "
                f"{'not set' if there is None else there} there, not {asked[name]}. Omit it, or start "
                f"another run with --config {folder / 'config.toml'} --out DIR."
            )
