"""Defines a job: a program, its number of workers, and the options of their launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.units import LONGEST_S, MOST_WORKERS

Kind: TypeAlias = Literal["script", "module", "executable"]
STDOUT, STDERR = 1, 2
"""Bits of torchrun's ``--redirects`` and ``--tee``: 0 neither, 1 stdout, 2 stderr, 3 both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program and its arguments, which samestep does not parse."""

    target: str  # path of a script, dotted name of a module, or name or path of an executable
    kind: Kind = "script"  # kind of `target`: script, module or executable
    args: tuple[str, ...] = ()  # arguments, passed to the program unchanged

    def command(self, *python: str) -> list[str]:
        """Return the command line that runs this in a fresh process; `python` starts an interpreter."""
        before = {"script": [*python], "module": [*python, "-m"], "executable": []}[self.kind]
        is_like_a_flag = self.kind == "script" and self.target.startswith("-")
        return [*before, f"./{self.target}" if is_like_a_flag else self.target, *self.args]


@dataclass(frozen=True, slots=True)
class Std:
    """Selection of output streams by local rank, in torchrun's notation.

    >>> Std.parse("--tee", "3").of(5), Std.parse("--tee", "0:1,1:2").of(1), Std.parse("--tee", "0:1").of(7)
    (3, 2, 0)
    """

    every_rank: int = 0
    by_local_rank: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, flag: str, text: str) -> "Std":
        """Parse ``3`` (all local ranks) or ``0:1,1:3`` (some)."""
        try:
            if ":" not in text:
                return cls(every_rank=_stream_bits(text))
            pairs = (pair.split(":") for pair in text.split(","))
            return cls(by_local_rank={int(rank): _stream_bits(bits) for rank, bits in pairs})
        except ValueError:
            raise UsageError(
                f"{flag} {text!r} is neither one of 0 (none), 1 (stdout), 2 (stderr), 3 (both) nor a list "
                "of local ranks with one each, like 0:1,1:3."
            ) from None

    def of(self, local_rank: int) -> int:
        """Return the bits of one local rank."""
        return self.by_local_rank.get(local_rank, self.every_rank)

    @property
    def is_empty(self) -> bool:
        """Whether no stream is selected."""
        return not (self.every_rank or any(self.by_local_rank.values()))


def _stream_bits(text: str) -> int:
    bits = int(text)
    if not 0 <= bits <= STDOUT | STDERR:
        raise ValueError(text)
    return bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Log files of the workers' output, besides or instead of the console."""

    folder: Path | None = None  # for ``run_id/attempt_K/LOCAL_RANK/{stdout,stderr}.log``
    redirects: Std = Std()  # streams that are written to their file only
    tee: Std = Std()  # streams that are printed with a prefix, and written to their file if there is a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes of a job, and the rendezvous of their launchers, one on each node."""

    count: int = 1  # number of nodes; the maximum if it may change
    least: int | None = None  # the minimum; None if nodes may not leave and return during the run
    rank: int | None = None  # number of this node; None if the rendezvous assigns it
    backend: Literal["static", "c10d"] = "static"  # static: the node ranks are given
    endpoint: str = ""  # ``host:port`` that all nodes reach, on node 0; empty for one node
    # further options of the back end (``--rdzv-conf``)
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"--nnodes {self.count}: a job has at least one node.")
        if self.count > MOST_WORKERS:
            raise UsageError(f"--nnodes {self.count}: use {MOST_WORKERS:,} nodes or fewer.")
        if self.least is not None and not 1 <= self.least < self.count:
            raise UsageError(f"--nnodes {self.least}:{self.count} is no range of nodes such as 1:4.")
        if self.rank is not None and not 0 <= self.rank < self.count:
            raise UsageError(
                f"--node-rank {self.rank} is not within 0 .. {self.count - 1} (--nnodes {self.count})."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Program on a number of workers."""

    program: Program  # program that each worker runs
    workers: int | None = None  # workers in total, on all nodes (``-n``); None if not given
    per_node: int | None = None  # workers of each node (``--nproc-per-node``); None if not given
    nodes: Nodes = Nodes()  # nodes of the job and their rendezvous
    max_restarts: int = 0  # maximum number of restarts of all workers after a failure
    logs: Logs = Logs()  # log files of the workers' output
    run_id: str = "none"  # name of the run, for its workers and in the log folder
    role: str = "default"  # the workers' role, for programs that read it
    grace_s: float = 10.0  # seconds that workers may take to end after a failure, before they are killed
    patience_s: float = 10.0  # seconds that they may take if a signal ends the launcher; no worker hangs then
    monitor_interval_s: float = 0.1  # seconds between two checks of the other nodes
    needs_all: bool = True  # whether the run ends with the failure of any worker; else with that of rank 0
    finishes: bool = False  # whether a worker that has failed may take any time to end, since no other waits

    def __post_init__(self) -> None:
        for flag, value in (("-n", self.workers), ("--nproc-per-node", self.per_node)):
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: there must be at least one worker.")
            if value is not None and value > MOST_WORKERS:
                raise UsageError(
                    f"{flag} {value} is more than the {MOST_WORKERS:,} workers that a job can have."
                )
        if self.max_restarts < 0:
            raise UsageError(f"--max-restarts {self.max_restarts} is negative; 0 means none.")
        if not 0 < self.monitor_interval_s <= LONGEST_S:
            raise UsageError(
                f"--monitor-interval {self.monitor_interval_s:g} is no length of time: give seconds above 0."
            )

    def asked(self) -> int | None:
        """Return the requested number of workers in total, or None.

        Raises:
            UsageError: ``-n`` and ``--nproc-per-node`` contradict each other, or do not divide.
        """
        if self.nodes.least is not None and self.workers is not None:
            raise UsageError(
                f"-n {self.workers} workers in total cannot be kept while nodes come and go (--nnodes "
                f"{self.nodes.least}:{self.nodes.count}): give --nproc-per-node."
            )
        if self.per_node is None:
            return self.workers
        total = self.per_node * self.nodes.count
        if self.workers not in (None, total):
            raise UsageError(
                f"-n {self.workers} workers in total, but --nproc-per-node {self.per_node} on "
                f"{self.nodes.count} node(s) makes {total}. Give one of the two."
            )
        return total
