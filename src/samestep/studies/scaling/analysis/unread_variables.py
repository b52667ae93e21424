"""Detects variants that cannot differ, because no library in their runs reads the compared variable."""

from samestep.studies.scaling.analysis.study import Point

_READERS = {"NCCL_": "nccl", "TORCH_NCCL_": "nccl", "GLOO_": "gloo", "UCC_": "ucc", "MPI": "mpi"}
"""The library that reads the variables with each prefix."""
_KNOWN = {*_READERS.values(), "xccl"}
_IN_MEMORY = "shared memory"
"""The transport of gradients on CPUs; a process group, which is not NCCL, carries everything else."""


def why_alike(one: Point, other: Point) -> str:
    """Return why two variants at one number of workers cannot differ; empty if they can, or if unknown.

    >>> rate = {"samples_per_second": 1.0, "speedup": 1.0, "efficiency": 0.5, "backend": "gloo"}
    >>> ring, tree = (Point(workers=2, variant=f"env:NCCL_ALGO={name}", **rate) for name in ("Ring", "Tree"))
    >>> why_alike(ring, tree)
    'NCCL_ALGO is read by nccl, and these runs communicate over gloo'
    """
    first, second = _settings(one), _settings(other)
    names = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    variables = [name.removeprefix("env:") for name in names if name.startswith("env:")]
    readers = {_reader(name) for name in variables}
    carriers = {one.backend, other.backend} - {""}
    if not variables or len(variables) < len(names) or "" in readers:
        return ""
    if any(_can_read(reader, carrier) for reader in readers for carrier in carriers):
        return ""
    read = f"{', '.join(variables)} is read by {', '.join(sorted(readers))}"
    if carriers:
        return f"{read}, and these runs communicate over {', '.join(sorted(carriers))}"
    return f"{read}, and one worker does not communicate" if one.workers == 1 else ""


def _can_read(reader: str, carrier: str) -> bool:
    """Return whether runs whose gradients are sent over `carrier` can use the library `reader`."""
    if carrier == _IN_MEMORY:
        return reader != "nccl"
    return reader in carrier or not any(name in carrier for name in _KNOWN)


def _settings(point: Point) -> dict[str, str]:
    """Return the settings of a variant by name; a space in a value begins another name."""
    parts = (word.partition("=") for word in point.variant.split())
    return {name: value for name, _, value in parts}


def _reader(variable: str) -> str:
    return next((one for prefix, one in _READERS.items() if variable.startswith(prefix)), "")
