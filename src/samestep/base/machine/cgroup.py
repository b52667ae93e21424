"""Reads the limits that Linux control groups, version 1 and 2, put on this process.

A limit binds every group below it, so the tightest one between this process's group and the root
counts. Containers see their own group as the root of the mount; `mountinfo` lists what is mounted where.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.machine.kernel_files import text_of

# Version 1 spells "no limit" as a huge number of bytes, rounded to pages.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and the file it is read from."""

    value: float
    source: Path


@dataclass(frozen=True, slots=True)
class _Mount:
    root: str
    point: Path
    controllers: frozenset[str]  # empty for version 2, which has one tree for all


def cpu_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest CPU quota of this process, in CPUs; None where there is none."""
    limits = []
    for group in _groups("cpu", proc):
        if (group / "cpu.max").is_file():
            quota, period = [*_words(group / "cpu.max"), "100000"][:2]
            source = group / "cpu.max"
        else:
            source = group / "cpu.cfs_quota_us"
            quota, period = (*_words(source), "max")[0], (*_words(group / "cpu.cfs_period_us"), "0")[0]
        if quota not in {"max", "-1"} and int(period) > 0:
            limits.append(Limit(int(quota) / int(period), source))
    return min(limits, key=lambda limit: limit.value, default=None)


def memory_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest memory limit of this process, in bytes; None where there is none."""
    return _tightest("memory", ("memory.max", "memory.limit_in_bytes"), proc)


def process_limit(proc: Path = Path("/proc")) -> Limit | None:
    """Return the tightest limit of processes and threads together; None where there is none."""
    return _tightest("pids", ("pids.max",), proc)


def _tightest(controller: str, names: Sequence[str], proc: Path) -> Limit | None:
    limits = [
        Limit(int(word), group / name)
        for group in _groups(controller, proc)
        for name in names
        for word in _words(group / name)
        if word != "max" and int(word) < _UNLIMITED_BYTES
    ]
    return min(limits, key=lambda limit: limit.value, default=None)


def _groups(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and the groups above it, both versions."""
    mounts = list(_mounts(proc))
    for line in text_of(proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) if names else frozenset[str]()
        if controllers and controller not in controllers:
            continue
        for mount in mounts:
            if mount.controllers == controllers or (controllers and controller in mount.controllers):
                yield from _upwards(mount, path)


def _upwards(mount: _Mount, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents up to the mount point, as far as they exist."""
    inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root) else "/"
    folder = mount.point / inside.lstrip("/")
    for group in (folder, *folder.parents):
        if group.is_dir():
            yield group
        if group == mount.point:
            return


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Yield the mounted cgroup trees.

    A line reads ``31 23 0:28 ROOT POINT rw - cgroup cgroup rw,cpu,cpuacct`` (proc(5), mountinfo).
    """
    for line in text_of(proc / "self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2) if right.count(" ") >= 2 else ("", "", "")
        if kind not in {"cgroup", "cgroup2"}:
            continue
        root, point = left.split(" ")[3:5]
        controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
        yield _Mount(root, Path(point), controllers)


def _words(path: Path) -> list[str]:
    return text_of(path).split()
