"""Reads recordings of the environments that launchers give to ranks, with the expected places."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.place import Place

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).with_name("recordings")


@dataclass(frozen=True)
class Recording:
    name: str
    about: str
    source: str
    environment: dict[str, str]
    place: Place
    launcher: str
    outer: tuple[str, ...]
    assumed: tuple[str, ...]
    job: str
    master: tuple[Any, ...] | None

    def __str__(self) -> str:
        return self.name


def recording(name: str) -> Recording:
    fields = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    return Recording(
        name=name,
        about=fields["about"],
        source=fields["source"],
        environment=fields["environment"],
        place=Place(**fields["place"], launcher=fields["launcher"]),
        launcher=fields["launcher"],
        outer=tuple(fields["outer"]),
        assumed=tuple(fields["assumed"]),
        job=fields["job"],
        master=tuple(fields["master"]) or None,
    )


RECORDINGS = [recording(path.stem) for path in sorted(FOLDER.glob("*.toml"))]
