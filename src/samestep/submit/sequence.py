"""A job that runs several commands of samestep one after another, and keeps what became of each.

Each has a folder, with ``log.txt``, all that it prints, and in the end ``exit-code``: whoever finds no such
file knows that the command did not come to its end. What is in folders below is the command's: it finds them
empty. One that fails does not keep the next from running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samestep.submit.request import SlurmRequest, head, samestep, software, srun_flags, written
from samestep.submit.words import command, explained, quoted

LOG, EXIT_CODE = "log.txt", "exit-code"

_KEPT = """\
failed=0
kept() {{  # FOLDER COMMAND...: as the job's tasks; its output and exit code are kept in the folder
    local folder="$1" code=0
    shift
    [ ! -e "$folder/{exit_code}" ] || return 0  # a job that was queued again goes on where it was,
    find "$folder" -mindepth 2 -delete  # without what its first start left half done
    {srun} "$@" > "$folder/{log}" 2>&1 || code=$?
    echo "$code" > "$folder/{exit_code}.part" && mv "$folder/{exit_code}.part" "$folder/{exit_code}"
    [ "$code" -eq 0 ] || failed=1
}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One of the commands.

    Args:
        words: behind ``samestep``.
        folder: takes what it prints, and how it ended.
        variables: set for this command only.
    """

    words: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def script(asked: SlurmRequest, sequence: Sequence[Kept], *, by: str) -> str:
    """Return the script of the job; pure.

    Args:
        asked: what the job asks for; the workers are its tasks.
        sequence: the commands, in the order in which they run.
        by: the command that writes the script.
    """
    flags = srun_flags(asked, ends_together=True)
    srun = " ".join(["srun", *(flag for flag, _ in flags)])
    keep = _KEPT.format(srun=srun, log=LOG, exit_code=EXIT_CODE)
    common = {
        name: value
        for name, value in sequence[0].variables.items()
        if all(one.variables.get(name) == value for one in sequence)
    }
    return written(
        head(asked, by=by),
        [*software(asked.site), *(f"export {word}" for word in _assigned(common))],
        [*explained(flags), *keep.splitlines()],
        [_one(asked, one, exported=common) for one in sequence],
        ['exit "$failed"'],
    )


def exit_code(folder: Path) -> int | None:
    """Return how the command of a folder ended; None where it has not."""
    try:
        return int((folder / EXIT_CODE).read_text())
    except (OSError, ValueError):
        return None


def _one(asked: SlurmRequest, one: Kept, *, exported: Mapping[str, str]) -> str:
    own = {name: value for name, value in one.variables.items() if name not in exported}
    env = ["env", *_assigned(own)] if own else []
    return command(["kept", *quoted([str(one.folder)]), *env], [*samestep(asked), *quoted(one.words)])


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={quoted([value])[0]}" for name, value in variables.items()]
