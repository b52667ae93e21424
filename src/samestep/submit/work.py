"""What a job runs: a script, or one of samestep's own verbs."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.submit.words import quoted, slug

VERBS = ("run", "train", "bench", "doctor")
"""The verbs that a job's tasks can share."""

_COUNT = re.compile(r"-n(=?\d*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One command of samestep.

    Args:
        verb: such as ``run``.
        arguments: what stands behind it, quoted for a shell.
        name: what to call the job, unless the user says.
        workers: what ``-n 4`` or ``-n4`` among the arguments said; it has been taken out of them.
    """

    verb: str
    arguments: tuple[str, ...]
    name: str
    workers: int | None = None

    def words(self, workers: int | None = None) -> list[str]:
        """Return the words behind ``samestep``, quoted; with ``-n`` where the workers are to be started."""
        count = [] if workers is None else ["-n", str(workers)]
        first = self.arguments[:1] if self.verb == "bench" else ()  # whose commands have their own flags
        return [self.verb, *first, *count, *self.arguments[len(first) :]]

    def resumable(self, folder: str) -> "Work":
        """Return this work such that a second start goes on where the first one was stopped.

        Args:
            folder: the run folder if none is said, quoted for a shell.

        Raises:
            UsageError: its folder must be new at every start.
        """
        if self.verb != "train" or any(_is(flag, "--resume") for flag in self.arguments):
            return self
        for flag in self.arguments:
            if _is(flag, "--out"):
                raise UsageError(
                    "--requeue starts the job again, and --out wants a folder that is not there yet. Give "
                    "--resume DIR in its place: it begins the run, and goes on with it."
                )
        return replace(self, arguments=(*self.arguments, f"--resume={folder}"))


def work(words: list[str]) -> Work:
    """Return what the words behind samestep's own flags ask for: a verb of samestep, or a script for `run`.

    Raises:
        UsageError: ``-n`` among them is no number, ``--nproc-per-node`` is there, or `run` has no program.
    """
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("run", words)
    own, theirs = _own(verb, rest)
    if verb == "run" and not theirs:
        raise UsageError(
            f"run {' '.join(rest)}: none of these is a script that is there. Give the path "
            "of one, -m MODULE, or --no-python COMMAND."
        )
    workers, own = _without_count(own)
    recipe = [word for word in rest[:1] if not word.startswith("-")]
    name = slug(Path(theirs[0]).name.removesuffix(".py")) if theirs else slug("-".join([verb, *recipe]))
    return Work(verb=verb, arguments=tuple(quoted([*own, *theirs])), name=name, workers=workers)


def _own(verb: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """Cut the words of `run` at its program: what stands behind it is the program's."""
    if verb != "run":
        return rest, []
    for at, word in enumerate(rest):
        if not word.startswith("-") and (Path(word).is_file() or _is_named(rest[:at])):
            return rest[:at], rest[at:]
    return rest, []


def _is_named(before: list[str]) -> bool:
    """Whether the word behind these is a module or an executable."""
    return any(word in ("-m", "--module", "--no-python", "--no_python") for word in before[-1:])


def _without_count(words: list[str]) -> tuple[int | None, list[str]]:
    """Take ``-n 4`` or ``-n4`` out of samestep's own words."""
    for word in words:
        if _is(word.replace("_", "-"), "--nproc-per-node"):
            raise UsageError(
                f"{word} behind the verb starts workers that the job has no room for. It is the job's own "
                "flag: submit slurm --nproc-per-node 4 run ..., or submit mpi --hosts a:4,b:4 run ..."
            )
    at = next((at for at, word in enumerate(words) if _COUNT.match(word)), None)
    if at is None or words[at:] == ["-n"]:
        return None, words
    said, rest = (words[at][2:], words[at + 1 :]) if words[at] != "-n" else (words[at + 1], words[at + 2 :])
    if not said.isdecimal():
        raise UsageError(f"-n {said} is not a number of workers.")
    return int(said), [*words[:at], *rest]


def _is(word: str, flag: str) -> bool:
    return word == flag or word.startswith(f"{flag}=")
