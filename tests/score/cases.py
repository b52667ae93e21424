"""The cases of the score: public faults of trainings, each rebuilt as a script that is wrong or right."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
SOURCES = tuple(sorted(path.parent.name for path in FOLDER.glob("*/cases.toml")))
"""The folders of cases."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One public fault.

    Attributes:
        folder: the folder of its source.
        id: the name of the fault in its source.
        title: the fault, in some words.
        source: a public link, or a paper.
        kind: how the script is started alone: by python, or by torchrun.
        script: a file in the folder; empty if the fault cannot be rebuilt.
        expected: codes of `samestep verify` that name the fault; `@MODULE`: the module that a finding names.
        command: what is to find it.
        shows: of the command `run`: a regular expression of what its output names.
        options: further options of the command; `{folder}` is the folder of the script.
        alone: what python or torchrun shows.
        note: a remark, for a missed fault the class of check that is missing.
        not_possible: why it cannot be rebuilt on CPUs without another program.
    """

    folder: str
    id: str
    title: str
    source: str
    kind: Literal["serial", "ddp"] = "ddp"
    script: str = ""
    expected: list[str] = field(default_factory=list)
    command: Literal["verify", "run"] = "verify"
    shows: str = ""
    options: list[str] = field(default_factory=list)
    alone: str = ""
    note: str = ""
    not_possible: str = ""

    @property
    def key(self) -> str:
        """Its name among all cases."""
        return f"{self.folder}/{self.id}"

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / self.folder / self.script


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder of cases."""

    folder: str  # its name
    title: str  # of the section of the page
    about: str  # where the faults come from, and what could not be read
    cases: list[Case]


def read_source(folder: str) -> Source:
    """Return the cases of a folder, in the order of the source."""
    table: dict[str, Any] = tomllib.loads((FOLDER / folder / "cases.toml").read_text())
    cases = [Case(folder=folder, **{**case, "id": str(case["id"])}) for case in table["case"]]
    return Source(folder=folder, title=table.get("title", folder), about=table.get("about", ""), cases=cases)


def read_cases() -> list[Case]:
    """Return the cases of all folders."""
    return [case for folder in SOURCES for case in read_source(folder).cases]
