"""Reads the command that a job runs, and checks the numbers of its workers and GPUs on each node."""

import re
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
_COUNT = re.compile(r"-n(=?\d*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command of samestep."""

    verb: str  # such as ``run``
    arguments: tuple[str, ...]  # the words after it, without ``-n``
    name: str  # the default name of the job
    workers: int | None = None  # the value of ``-n 4`` or ``-n4`` among the arguments; None without it
    resume: str = ""  # the last argument, in which a shell replaces variables; empty for none

    def words(self, workers: int | None = None) -> list[str]:
        """Return the words after ``samestep``, quoted for a shell."""
        return [*quoted(self.plain_words(workers)), *([self.resume] if self.resume else [])]

    def plain_words(self, workers: int | None = None) -> list[str]:
        """Return the words after ``samestep``; with ``-n`` if samestep starts the workers."""
        count = [] if workers is None else ["-n", str(workers)]
        first = self.arguments[:1] if self.verb == "bench" else ()  # its commands have their own flags
        return [self.verb, *first, *count, *self.arguments[len(first) :]]

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


def parse_command(words: list[str]) -> JobCommand:
    """Return the command in `words`: a verb of samestep with its arguments, or a script for `run`.

    Raises:
        UsageError: ``-n`` has no number as its value, ``--nproc-per-node`` is given, or `run` has no program.
    """
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("run", words)
    flags, program = _own(verb, rest)
    if verb == "run" and not program:
        raise UsageError(
            f"run {' '.join(rest)} names no existing script; give the path of one, -m MODULE, or "
            "--no-python COMMAND."
        )
    workers, flags = _without_count(flags)
    recipe = [word for word in rest[:1] if not word.startswith("-")]
    name = slug(Path(program[0]).name.removesuffix(".py")) if program else slug("-".join([verb, *recipe]))
    return JobCommand(verb=verb, arguments=(*flags, *program), name=name, workers=workers)


def _own(verb: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """Split the words of `run` at its program: those after it are the program's."""
    if verb != "run":
        return rest, []
    for at, word in enumerate(rest):
        if not word.startswith("-") and (Path(word).is_file() or _is_named(rest[:at])):
            return rest[:at], rest[at:]
    return rest, []


def _is_named(before: list[str]) -> bool:
    """Return whether the word after these is a module or an executable."""
    return any(word in ("-m", "--module", "--no-python", "--no_python") for word in before[-1:])


def _without_count(words: list[str]) -> tuple[int | None, list[str]]:
    """Return the value of ``-n 4`` or ``-n4`` among samestep's own words, and the other words."""
    for word in words:
        if _is(word.replace("_", "-"), "--nproc-per-node"):
            raise UsageError(
                f"{word} after the verb starts workers for which the job has no resources. Give it to the "
                "job: submit slurm --nproc-per-node 4 run ..."
            )
    at = next((at for at, word in enumerate(words) if _COUNT.match(word)), None)
    if at is None or words[at:] == ["-n"]:
        return None, words
    count, rest = (words[at][2:], words[at + 1 :]) if words[at] != "-n" else (words[at + 1], words[at + 2 :])
    if not count.isdecimal():
        raise UsageError(f"-n {count} is not a number of workers.")
    return int(count), [*words[:at], *rest]


def _is(word: str, flag: str) -> bool:
    return word == flag or word.startswith(f"{flag}=")
