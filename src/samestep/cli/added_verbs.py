"""Finds verbs that other packages add, as entry points of the group `samestep.commands`.

An entry point has the name of a verb and names its application, such as ``lab = "samestep_lab.command:lab"``.
The summary of the verb is that of its package, so that ``samestep --help`` lists it without importing it.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

GROUP = "samestep.commands"
PACKAGES: Mapping[str, str] = {"lab": "samestep-lab"}
"""Verbs with the packages that add them, which can be missing."""


def added_verbs() -> Mapping[str, EntryPoint]:
    """Return the verbs that installed packages add, with their entry points."""
    return {one.name: one for one in entry_points(group=GROUP)}


def summary(verb: EntryPoint) -> str:
    """Return the summary of the package that adds a verb."""
    return verb.dist.metadata["Summary"] or "" if verb.dist else ""


def missing_package(verb: str | None) -> str | None:
    """Return how to install the package that adds `verb`, if it is known; None for any other word."""
    package = PACKAGES.get(verb or "")
    return package and f"samestep {verb} is in a package of its own; install it: pip install {package}"
