"""Reads the configuration file of a training, and combines it with the user's flags or a run to resume."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from samestep.base.config import read_toml, suggestion
from samestep.base.documents import FormatError, read_as
from samestep.base.errors import UsageError
from samestep.base.options import flag
from samestep.training.output.run_folder import RunFolder
from samestep.training.settings import RunOptions, Settings

LR_SCALES = ("none", "linear", "sqrt")
"""The rules by which the learning rate depends on the number of workers.

linear: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677); sqrt: Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014 (arXiv:1404.5997).
"""

RECIPE_KEYS: Mapping[str, Any] = {
    "recipe": str,
    "fast": bool,
    "data": str,
    "model": str,
    "data_dir": str,
    "subset": int,
    "label": str,
}
"""Keys of the recipe, its data and its model; the other keys are those of `Settings` and `RunOptions`."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of a configuration file, each converted to its type.

    Raises:
        UsageError: it cannot be read, or has an unknown key or a value of the wrong type.
    """
    values = read_toml(path)
    types = {**RECIPE_KEYS, **get_type_hints(Settings), **get_type_hints(RunOptions)}
    config = {}
    for name, value in values.items():
        if name not in types:
            raise UsageError(f"{path}: the key {name!r} is unknown. {suggestion(name, types)}")
        try:
            config[name] = read_as(types[name], value, name)
        except FormatError:
            raise UsageError(f"{path}: {name} = {value!r} has the wrong type.") from None
    return config


def part_of(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the keys that are fields of the dataclass `kind`."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in config.items() if name in names}


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
    file = {} if request.config is None else read_config(request.config)
    asked = {**file, **request.changes}
    folder = request.resume
    if folder is None or request.weights is not None:
        return asked, False
    defined = request.recipe is not None or request.config is not None
    if defined and not (folder / "config.toml").exists():
        return asked, False
    RunFolder.check(folder)
    begun = read_config(folder / "config.toml")
    flags = {name: value for name in RECIPE_KEYS if (value := getattr(request, name, None)) is not None}
    _refuse_other_settings({**asked, **flags}, begun, folder)
    return {**begun, **part_of(asked, RunOptions)}, True


def _refuse_other_settings(asked: Mapping[str, Any], begun: Mapping[str, Any], folder: Path) -> None:
    """Refuse settings that change the result of a resumed run; the data folder and run options do not."""
    decides = {"recipe", "fast", "data", "model", "subset", *part_of(asked, Settings)}
    for name in (name for name in asked if name in decides):
        there = begun.get(name)
        is_auto = name == "precision" and asked[name] == "auto"  # the run has the choice of its first start
        if asked[name] != there and not is_auto:
            setting = "the recipe" if name == "recipe" else flag(name)
            raise UsageError(
                f"--resume {folder} keeps the run's settings: {setting} is "
                f"{'not set' if there is None else there} there, not {asked[name]}. Omit it, or start "
                f"another run with --config {folder / 'config.toml'} --out DIR."
            )
