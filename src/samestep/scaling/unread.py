"""Variants that cannot differ: by variables that nobody reads in these runs."""

from samestep.scaling.study import Point

_READERS = {"NCCL_": "nccl", "TORCH_NCCL_": "nccl", "GLOO_": "gloo", "UCC_": "ucc", "MPI": "mpi"}
"""What carries gradients and reads variables that begin so."""
_KNOWN = {*_READERS.values(), "xccl"}
_IN_MEMORY = "shared memory"
"""Of gradients on processors: a process group beside it, which is not NCCL, carries the rest."""


def why_alike(one: Point, other: Point) -> str:
    """Return why two variants at one number of workers cannot differ; empty where they can, or nobody knows.

    >>> rate = {"samples_per_second": 1.0, "speedup": 1.0, "efficiency": 0.5, "backend": "gloo"}
    >>> ring, tree = (Point(workers=2, variant=f"env:NCCL_ALGO={name}", **rate) for name in ("Ring", "Tree"))
    >>> why_alike(ring, tree)
    'NCCL_ALGO is read by nccl, and these runs exchange by gloo'
    """
    first, second = _settings(one), _settings(other)
    names = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    variables = [name.removeprefix("env:") for name in names if name.startswith("env:")]
    readers = {_reader(name) for name in variables}
    carriers = {one.backend, other.backend} - {""}
    if not variables or len(variables) < len(names) or "" in readers:
        return ""
    if any(_may_read(reader, carrier) for reader in readers for carrier in carriers):
        return ""
    read = f"{', '.join(variables)} is read by {', '.join(sorted(readers))}"
    if carriers:
        return f"{read}, and these runs exchange by {', '.join(sorted(carriers))}"
    return f"{read}, and one worker exchanges nothing" if one.workers == 1 else ""


def _may_read(reader: str, carrier: str) -> bool:
    """Return whether runs whose gradients go by `carrier` may use `reader`, as far as is known."""
    if carrier == _IN_MEMORY:
        return reader != "nccl"
    return reader in carrier or not any(name in carrier for name in _KNOWN)


def _settings(point: Point) -> dict[str, str]:
    """Return what a variant sets, by name; what stands behind a space in a value is taken for a name."""
    parts = (word.partition("=") for word in point.variant.split())
    return {name: value for name, _, value in parts}


def _reader(variable: str) -> str:
    return next((one for prefix, one in _READERS.items() if variable.startswith(prefix)), "")
