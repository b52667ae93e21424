"""Writes a job that runs several commands of samestep one after another, and stores the result of each.

Each command has a folder with its output in ``log.txt`` and, once it has ended, its exit code in
``exit-code``. Subfolders belong to the command and are empty when it starts. After a command that fails the
next one runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samestep.submit.shell import command, explained, quoted
from samestep.submit.slurm import SlurmRequest, head, samestep, software, srun_flags, written

LOG, EXIT_CODE = "log.txt", "exit-code"

_FUNCTION = """\
failed=0
recorded() {{  # FOLDER COMMAND...: run it as the job's tasks, with its output and exit code in the folder
    local folder="$1" code=0
    shift
    [ ! -e "$folder/{exit_code}" ] || return 0  # a requeued job skips commands that have ended,
    find "$folder" -mindepth 2 -delete  # and removes what an interrupted one has written
    {srun} "$@" > "$folder/{log}" 2>&1 || code=$?
    echo "$code" > "$folder/{exit_code}.part" && mv "$folder/{exit_code}.part" "$folder/{exit_code}"
    [ "$code" -eq 0 ] || failed=1
}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """A command whose output and exit code are stored."""

    words: tuple[str, ...]  # the words after ``samestep``
    folder: Path  # for its output and its exit code
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables of this command


def script(asked: SlurmRequest, sequence: Sequence[RecordedCommand], *, by: str) -> str:
    """Return the script of the job; pure.

    The workers are the tasks of the job; `by` is the command that writes the script.
    """
    flags = srun_flags(asked, ends_together=True)
    srun = " ".join(["srun", *(flag for flag, _ in flags)])
    function = _FUNCTION.format(srun=srun, log=LOG, exit_code=EXIT_CODE)
    common = {
        name: value
        for name, value in sequence[0].variables.items()
        if all(one.variables.get(name) == value for one in sequence)
    }
    return written(
        head(asked, by=by),
        [*software(asked.site), *(f"export {word}" for word in _assigned(common))],
        [*explained(flags), *function.splitlines()],
        [_one(asked, one, exported=common) for one in sequence],
        ['exit "$failed"'],
    )


def exit_code(folder: Path) -> int | None:
    """Return the exit code of a folder's command; None if it has not ended."""
    try:
        return int((folder / EXIT_CODE).read_text())
    except (OSError, ValueError):
        return None


def _one(asked: SlurmRequest, one: RecordedCommand, *, exported: Mapping[str, str]) -> str:
    own = {name: value for name, value in one.variables.items() if name not in exported}
    env = ["env", *_assigned(own)] if own else []
    return command(["recorded", *quoted([str(one.folder)]), *env], [*samestep(asked), *quoted(one.words)])


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={quoted([value])[0]}" for name, value in variables.items()]
