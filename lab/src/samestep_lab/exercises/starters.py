"""Writes the starter files of the exercises, which are the solutions with gaps.

A gap of a solution is fenced: its task in comments, the lines of the starter file, then the solution::

    # >>> Average the gradients over the ranks.
    # | raise NotImplementedError
    for parameter in model.parameters():
        ...
    # <<<
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError

SOLUTIONS = Path(__file__).parent / "solutions"
_FENCED = re.compile(
    r"(?P<tasks>(?:^ *# >>> .*\n)+)(?P<starts>(?:^ *# \| .*\n)*)(?P<solution>(?:.*\n)*?) *# <<<\n",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One exercise."""

    summary: str  # what to write
    function: str = ""  # the function to write; empty for a training script, compared with a serial one


EXERCISES: Mapping[str, Exercise] = {
    "broadcast": Exercise(summary="broadcast from send and receive", function="broadcast"),
    "gather": Exercise(summary="gather from send and receive", function="gather"),
    "reduce": Exercise(summary="sum and mean on one rank", function="reduce"),
    "all-reduce": Exercise(summary="sum and mean on all ranks", function="all_reduce"),
    "ring": Exercise(summary="all-reduce in a ring", function="ring_all_reduce"),
    "six-steps": Exercise(summary="a serial training by DistributedDataParallel"),
    "trainer": Exercise(summary="a serial trainer by broadcast and all-reduce"),
}


def solution(name: str) -> str:
    """Return the text of the solution of an exercise."""
    return (SOLUTIONS / f"{file_stem(name)}.py").read_text()


def file_stem(name: str) -> str:
    """Return the stem of an exercise's file."""
    return name.replace("-", "_")


def starter(text: str) -> str:
    """Return a solution with gaps: of each, the comments with its task, and the lines to begin with."""
    return _FENCED.sub(lambda gap: re.sub("# >>> ", "# ", gap["tasks"]) + _begin(gap), text)


def serial(text: str) -> str:
    """Return the serial script of a solution: its starter file without the tasks."""
    return _FENCED.sub(_begin, text)


def serial_path(script: Path) -> Path:
    """Return the place of the serial script that a training script is compared with."""
    return script.with_name(f"{script.stem}_serial.py")


def write_starter(name: str, folder: Path) -> list[Path]:
    """Write the starter file of an exercise, and its serial script if it has one; return their paths.

    Raises:
        UsageError: there is no such exercise, or a file exists already.
    """
    if name not in EXERCISES:
        raise UsageError(f"{name!r} is no exercise; give one of {', '.join(EXERCISES)}.")
    text, path = solution(name), folder / f"{file_stem(name)}.py"
    files = {path: starter(text)}
    if not EXERCISES[name].function:
        files[serial_path(path)] = serial(text)
    if existing := next((file for file in files if file.exists()), None):
        raise UsageError(f"{existing} exists already; give another folder, or move it away.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            file.write_text(content)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}; give another folder.") from None
    return list(files)


def _begin(gap: re.Match[str]) -> str:
    return re.sub(r"# \| ", "", gap["starts"])
