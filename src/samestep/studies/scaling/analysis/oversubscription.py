"""Detects oversubscribed runs from the files of their workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.base.machine.topology import numbers

Header = Mapping[str, Any]
"""The first line of a worker's file."""


def is_oversubscribed(headers: Sequence[Header]) -> bool:
    """Return whether workers compute with more threads than they have cores, or share an accelerator.

    Workers of one node share the cores in both of their affinity masks; a worker with an unknown mask shares
    with all. A worker that shares no core has the same cores at any number of workers, so it is not counted.

    Args:
        headers: of all workers of one run.
    """
    nodes: dict[tuple[Any, Any], list[Header]] = {}
    for header in headers:
        nodes.setdefault((header.get("host"), header.get("node")), []).append(header)
    return any(_has_shared_accelerator(node) or _has_shared_cores(node) for node in nodes.values())


def _has_shared_accelerator(headers: Sequence[Header]) -> bool:
    used = [header["device_id"] for header in headers if header.get("device_id")]
    return len(set(used)) < len(used)


def _has_shared_cores(headers: Sequence[Header]) -> bool:
    """Return whether workers that compute on CPUs have too few cores; those on accelerators need few."""
    on_cpu = [header for header in headers if header.get("device", "cpu") == "cpu"]
    own = [frozenset(numbers(str(header.get("cpus", "")))) for header in on_cpu]
    for header, cpus in zip(on_cpu, own, strict=True):
        sharing = [
            other
            for other, others in zip(on_cpu, own, strict=True)
            if not cpus or not others or cpus & others
        ]
        threads = sum(int(other.get("threads") or 1) for other in sharing)
        if len(sharing) > 1 and threads > int(header.get("processors") or threads):
            return True
    return False
