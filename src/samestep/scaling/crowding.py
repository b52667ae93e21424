"""Whether the workers of a run had to share what each needs for itself, by what their clocks told."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.base.topology import numbers

Header = Mapping[str, Any]
"""The first line of a worker's file."""


def is_crowded(headers: Sequence[Header]) -> bool:
    """Return whether workers compute with more threads than they have processors, or share an accelerator.

    Workers of one node share the processors that several of them may use; where nobody said which a worker
    may use, it shares with all. One that shares with none has as much at any number of workers.

    Args:
        headers: of all workers of one run.
    """
    nodes: dict[tuple[Any, Any], list[Header]] = {}
    for header in headers:
        nodes.setdefault((header.get("host"), header.get("node")), []).append(header)
    return any(_has_shared_accelerator(node) or _has_shared_processors(node) for node in nodes.values())


def _has_shared_accelerator(headers: Sequence[Header]) -> bool:
    used = [header["device_id"] for header in headers if header.get("device_id")]
    return len(set(used)) < len(used)


def _has_shared_processors(headers: Sequence[Header]) -> bool:
    """Return whether workers that compute on processors have too few; those on accelerators need few."""
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
