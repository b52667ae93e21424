"""Composes the banner: one line with the detected launcher, the workers, the device and the threads."""

from samestep.base.place import Place
from samestep.launchers.detect import Detected
from samestep.launchers.processors import Threads


def describe(
    detected: Detected, *, device: str, backend: str | None, threads: Threads, interface: str = ""
) -> str:
    """Return the banner line of a job.

    `backend` is None in a world of one. `interface` is that of rank 0's host for messages; empty if the back
    end selects it.

    >>> from samestep.base.place import Place
    >>> place = Place(rank=0, size=8, local_rank=0, local_size=4, node=0, nodes=2)
    >>> found = Detected(place=place, launcher="slurm", job="12.0")
    >>> describe(found, device="cuda", backend="nccl", threads=Threads(8, "as asked"))
    '8 workers = 2 nodes x 4, slurm step 12.0, cuda, nccl, 8 threads each'
    """
    parts = [
        _workers(detected.place),
        _launcher(detected),
        device,
        _carried(backend or "", interface),
        threads_text(threads, each=detected.place.size > 1),
    ]
    return ", ".join(part for part in parts if part)


def describe_rest(*, device: str, backend: str, threads: Threads | None, interface: str = "") -> str:
    """Return the part of the banner that `samestep run` cannot print before it starts the workers.

    See `describe`; `threads` are None if they are those that `samestep run` printed.

    >>> describe_rest(device="cpu", backend="gloo", threads=None, interface="eth0")
    'cpu, gloo over eth0'
    """
    more = "" if threads is None else f", {threads_text(threads, each=True)}"
    return f"{device}, {_carried(backend, interface)}{more}"


def threads_text(threads: Threads, *, each: bool) -> str:
    """Return a number of threads as text; `each` is for several ranks."""
    count = "1 thread" if threads.count == 1 else f"{threads.count} threads"
    why = f" ({threads.reason})" if threads.reason.startswith("OMP_NUM_THREADS") else ""
    return f"{count}{' each' if each else ''}{why}"


def _carried(backend: str, interface: str) -> str:
    return f"{backend} over {interface}" if interface else backend


def _workers(place: Place) -> str:
    if place.size == 1:
        return "1 worker"
    if place.nodes == 1:
        return f"{place.size} workers on one node"
    if place.size == place.nodes * place.local_size:
        return f"{place.size} workers = {place.nodes} nodes x {place.local_size}"
    return f"{place.size} workers on {place.nodes} nodes"


def _launcher(detected: Detected) -> str:
    if detected.launcher == "single":
        return ""
    name = f"slurm step {detected.job}" if detected.launcher == "slurm" else detected.launcher
    return " in ".join([name, *detected.outer])
