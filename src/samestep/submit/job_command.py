"""Reads the command that a job runs, and checks the numbers of its workers and GPUs on each node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.units import MOST_WORKERS
from samestep.submit.shell import quoted, slug


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSizes:
    """The size of a job.

    Raises:
        UsageError: a number is too small or too large, or a worker has no GPU.
    """

    nodes: int  # number of nodes, or pods
    per_node: int  # workers on each of them
    gpus_per_node: int = 0  # GPUs of each of them; 0 for none

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--nodes", self.nodes, 1),
            ("--nproc-per-node", self.per_node, 1),
            ("--gpus-per-node", self.gpus_per_node, 0),
        ):
            if value < least:
                raise UsageError(f"{flag} is {value}; give at least {least}.")
            if value > MOST_WORKERS:
                raise UsageError(f"{flag} is {value}; give at most {MOST_WORKERS:,}.")
        if 0 < self.gpus_per_node < self.per_node:
            raise UsageError(
                f"{self.per_node} workers on each node need a GPU each, but --gpus-per-node is "
                f"{self.gpus_per_node}; ask for more GPUs or fewer workers."
            )

    @property
    def workers(self) -> int:
        """Number of workers on all nodes."""
        return self.nodes * self.per_node


def per_node(
    *, nodes: int, gpus_per_node: int, workers: int | None, nproc_per_node: int | None, in_command: int | None
) -> int:
    """Return the number of workers on each node.

    Each of the last three is a number that was given, or None; `in_command` is among the arguments of the
    job's command. The default is a worker for each GPU, at least one.

    Raises:
        UsageError: the numbers contradict each other, or the workers cannot be divided evenly.
    """
    if workers is not None and in_command is not None and workers != in_command:
        raise UsageError(f"-n {workers} and -n {in_command} contradict each other; give only one of them.")
    total = in_command if workers is None else workers
    if total is None:
        return max(gpus_per_node, 1) if nproc_per_node is None else nproc_per_node
    if nproc_per_node is not None and nproc_per_node * nodes != total:
        raise UsageError(
            f"-n is {total}, but --nproc-per-node {nproc_per_node} on {nodes} node(s) is "
            f"{nproc_per_node * nodes} workers; give only one of them."
        )
    if total < 1:
        raise UsageError(f"-n {total}: give at least 1 worker.")
    if nodes < 1 or total % nodes:
        raise UsageError(
            f"-n {total} workers cannot be divided evenly by --nodes {nodes}; give a multiple of the nodes."
        )
    return total // nodes


VERBS = ("run", "train", "bench", "doctor")
"""The verbs that run on several workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command of samestep."""

    verb: str  # such as ``run``
    arguments: tuple[str, ...]  # the words after it
    name: str  # the default name of the job
    workers: int | None = None  # the number of workers that the arguments give; None without one
    resume: str = ""  # the last argument, in which a shell replaces variables; empty for none

    def words(self, workers: int | None = None) -> list[str]:
        """Return the words after ``samestep``, quoted for a shell."""
        return [*quoted(self.plain_words(workers)), *([self.resume] if self.resume else [])]

    def plain_words(self, workers: int | None = None) -> list[str]:
        """Return the words after ``samestep``; with ``-n`` if samestep starts the workers."""
        if workers is None or self.workers is not None:
            return [self.verb, *self.arguments]
        return [self.verb, *_counted(self.verb, self.arguments, workers)]

    def resumable(self, folder: str) -> "JobCommand":
        """Return this command with ``--resume``, so that a second start continues the first one.

        `folder` is the run folder if none is given, quoted for a shell.

        Raises:
            UsageError: the arguments contain ``--out``, which needs a new folder at every start.
        """
        if self.verb != "train" or any(_is(flag, "--resume") for flag in self.arguments):
            return self
        for flag in self.arguments:
            if _is(flag, "--out"):
                raise UsageError(
                    "--requeue starts the job again, but --out needs a new folder. Give --resume DIR "
                    "instead, which starts a run or continues it."
                )
        return replace(self, resume=f"--resume={folder}")


def parse_command(
    words: Sequence[str], *, flags: int = 0, workers: int | None = None, configured: int | None = None
) -> JobCommand:
    """Return the command in `words`: a verb of samestep with its arguments, or a script for `run`.

    Args:
        words: the command.
        flags: how many words after `run` come before its program.
        workers: the number of workers that the words give.
        configured: the number of workers if a file has a default for them, which each start of the job
            would read; the words of the command get it.
    """
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("run", words)
    if verb == "run":
        name = slug(Path(rest[flags]).name.removesuffix(".py"))
    else:
        name = slug("-".join([verb, *(word for word in rest[:1] if not word.startswith("-"))]))
    if configured is not None:
        workers, rest = configured, _counted(verb, rest, configured)
    return JobCommand(verb=verb, arguments=tuple(rest), name=name, workers=workers)


def _counted(verb: str, arguments: Sequence[str], workers: int) -> list[str]:
    """Return the words after a verb with a number of workers."""
    first = 1 if verb == "bench" else 0  # its commands have their own flags
    return [*arguments[:first], "-n", str(workers), *arguments[first:]]


def _is(word: str, flag: str) -> bool:
    return word == flag or word.startswith(f"{flag}=")
