"""Implements ``samestep data``, which lists data sets, fetches them for offline hosts, and checks them."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.signals import ended_by_interrupt
from samestep.base.units import counted
from samestep.cli.options import results

OTHERS = (
    ("synthetic:CxHxW,CLASSES,SAMPLES", "random images of any shape"),
    ("folder@SIDE", "a folder of images, with --data-dir"),
    ("torchvision:NAME@SIDE", "the data sets of torchvision, if it is installed"),
)


def data(
    action: Annotated[Literal["list", "fetch", "check"], typer.Argument(help="The action.")],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The data set; not needed for list.", autocompletion=results.data_sets
        ),
    ] = None,
    *,
    data_dir: results.DataDir = None,
    as_json: results.AsJson = False,
) -> None:
    """List, fetch or check data sets.

    list prints the data sets and where copies of them are. fetch downloads one into --data-dir, or into the
    user's cache. check reads every file of one, and compares it with the published checksum.
    """
    if action == "list" and name is not None:
        raise UsageError(f"samestep data list lists all data sets; leave {name} out, or give: check {name}.")
    with ended_by_interrupt():
        from samestep.training.data.sets import registry  # noqa: F401 - imports torch
    if action == "list":
        rows = _listed(data_dir)
        print(json_line({"data": rows}) if as_json else _table(rows))
        return
    if name is None:
        raise UsageError(f"samestep data {action} needs a NAME; samestep data list prints the names.")
    row = _fetch(name, data_dir) if action == "fetch" else _check(name, data_dir)
    state = row.pop("state")
    print(json_line(row) if as_json else f"{row['name']}: {row['about']}; {state}")


def _listed(data_dir: Path | None) -> list[dict[str, Any]]:
    from samestep.training.data.sets.registry import DATA_SETS

    places = [(data_set, data_set.find(data_dir=data_dir)) for data_set in DATA_SETS.values()]
    return [
        {"name": data_set.name, "about": data_set.about, "where": None if where is None else str(where)}
        for data_set, where in places
    ]


def _table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["name"]) for row in rows) + 2
    places = [row["where"] or f"not here: samestep data fetch {row['name']}" for row in rows]
    lines = [
        f"{row['name']:{width}}{row['about']:44}{place}" for row, place in zip(rows, places, strict=True)
    ]
    return "\n".join([*lines, "", *(f"{name:34}{about}" for name, about in OTHERS)])


def _fetch(name: str, data_dir: Path | None) -> dict[str, Any]:
    from samestep.base.folders import user_cache
    from samestep.training.data.sets.registry import DATA_SETS

    if name not in DATA_SETS:
        raise UsageError(f"{name!r} cannot be fetched; the data sets are {', '.join(DATA_SETS)}.")
    data_set = DATA_SETS[name]
    files = data_set.fetch((data_dir or user_cache()) / name)
    size = sum(path.stat().st_size for path in files)
    where = files[0].parent if files else data_set.find()
    return {
        "name": name,
        "about": data_set.about,
        "state": f"{counted(len(files), 'file')}, {size / 1e6:.1f} MB, in {where}"
        if files
        else "bundled with samestep",
        "where": str(where),
        "bytes": size,
    }


def _check(name: str, data_dir: Path | None) -> dict[str, Any]:
    from samestep.training.data.sets.registry import DATA_SETS, load

    train, test = (load(name, split, data_dir=data_dir) for split in ("train", "test"))
    about = f"{len(train):,} + {len(test):,} images of {' x '.join(map(str, train.shape))}"
    published = DATA_SETS.get(name)
    where = data_dir if published is None else published.find(data_dir=data_dir)
    state = "readable" if published is None else f"complete, as published, in {where}"
    return {
        "name": name,
        "about": about,
        "state": state,
        "where": None if where is None else str(where),
        "classes": len(train.classes),
    }
