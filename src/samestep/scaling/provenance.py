"""On what runs were made, as their workers told: never a machine, or a version, that nobody was on."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.scaling.rank_files import Run

MACHINE = {
    "hosts": "host",
    "devices": "device_name",
    "processor": "processor",
    "node_processors": "node_processors",
    "memory_bytes": "memory_bytes",
    "exchange": "backend",
    "system": "system",
    "torch": "torch",
    "cuda": "cuda",
    "hip": "hip",
    "nccl": "nccl",
    "driver": "driver",
    "python": "python",
    "samestep": "samestep",
}
"""The names of a study's `machine`, and which field of a worker's header each is from."""

_ADVISING = ("data", "sync", "compress", "algorithm", "exact")


def machine(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return each name of `MACHINE` with all values that the workers of `runs` told, without repetition.

    What nobody told is not there.
    """
    headers = [rank.header for run in runs for rank in run.ranks]
    told = {name: values(headers, field) for name, field in MACHINE.items()}
    return {name: found for name, found in told.items() if found}


def launchers(runs: Sequence[Run]) -> list[str]:
    """Return who started the workers of `runs`, as they told."""
    return values([rank.header for run in runs for rank in run.ranks], "launcher")


def recipe(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what a recipe was trained as in all of `runs`; nothing where nobody told."""
    told = [run.ranks[0].header.get("config") for run in runs]
    first, *others = [one if isinstance(one, Mapping) else {} for one in told] or [{}]
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def advised_by(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that tell what may be advised; nothing where nobody told."""
    told = header.get("config")
    return {name: told[name] for name in _ADVISING if name in told} if isinstance(told, Mapping) else {}


def values(headers: Sequence[Any], field: str) -> list[Any]:
    """Return the values of a field of headers without repetition, smallest first, but for empty ones."""
    return sorted({header[field] for header in headers if header.get(field) not in (None, "")})
