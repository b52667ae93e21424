"""Collects machine, versions and settings of runs from the files of their workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.studies.scaling.analysis.rank_files import Run

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
"""The names of a study's `machine`, each with its field in a worker's header."""

_ADVISING = ("data", "sync", "compress", "algorithm", "exact")


def machine(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return each name of `MACHINE` with all values that the workers of `runs` recorded, if there are any."""
    headers = [rank.header for run in runs for rank in run.ranks]
    found = {name: values(headers, field) for name, field in MACHINE.items()}
    return {name: recorded for name, recorded in found.items() if recorded}


def launchers(runs: Sequence[Run]) -> list[str]:
    """Return the launchers that the workers of `runs` recorded."""
    return values([rank.header for run in runs for rank in run.ranks], "launcher")


def recipe(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings of a recipe that are the same in all of `runs`; empty if they are unknown."""
    configs = [run.ranks[0].header.get("config") for run in runs]
    first, *others = [one if isinstance(one, Mapping) else {} for one in configs] or [{}]
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def advised_by(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that advice depends on; empty if they are unknown."""
    config = header.get("config")
    return {name: config[name] for name in _ADVISING if name in config} if isinstance(config, Mapping) else {}


def values(headers: Sequence[Any], field: str) -> list[Any]:
    """Return the distinct non-empty values of a field of headers, the smallest first."""
    return sorted({header[field] for header in headers if header.get(field) not in (None, "")})
