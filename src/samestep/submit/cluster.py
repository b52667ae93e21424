"""Asks Slurm: takes a job, and says what became of it."""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import Error, UsageError
from samestep.submit.follow import Seen
from samestep.submit.states import ENDS, exit_code, in_words

_PATIENCE_S = 60
_SILENT = 124
"""The exit code of a command that did not answer, as that of ``timeout``."""

_SPEAKER = re.compile(r"^sbatch: (error|fatal): ")
_AWAY = re.compile("configuration source|Unable to contact slurm controller")
"""How sbatch says that there is no Slurm to which it could give a job."""

_FIELD = re.compile(r"\b(JobState|Reason|ExitCode|Restarts|NodeList|BatchHost)=(\S+)")

Ask = Callable[[Sequence[str]], "Answer"]
"""Runs one of Slurm's commands."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str


def ask(words: Sequence[str]) -> Answer:
    """Run one of Slurm's commands to its end; a Ctrl-C is for this process, and not for sbatch on its way."""
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(127, "", f"there is no {words[0]} on this machine")
    except subprocess.TimeoutExpired:
        return Answer(_SILENT, "", f"{words[0]} did not answer within {_PATIENCE_S} s")
    return Answer(ended.returncode, ended.stdout, ended.stderr)


def submit(script: Path, *, name: str = "", ask: Ask = ask) -> str:
    """Give a job to Slurm and return its number.

    Args:
        script: of the job.
        name: of the job, where the script is no name for it.
        ask: runs one of Slurm's commands; tests pass their own.

    Raises:
        UsageError: Slurm does not take it, or does not answer.
    """
    answer = ask(["sbatch", "--parsable", str(script)])
    number = answer.out.strip().partition(";")[0]  # the name of the cluster may follow
    if answer.code == 0 and number.isdecimal():
        return number
    if answer.code == _SILENT:
        raise UsageError(
            f"{answer.err}. Slurm may have taken the job {name or script} all the same: look with "
            "squeue --me before submitting it again."
        )
    lines = [_SPEAKER.sub("", line) for line in (answer.err or answer.out).splitlines()]
    if any(_AWAY.search(line) for line in lines):
        raise UsageError(
            f"Slurm does not answer here ({lines[-1]}). Submit from a login node of the cluster, or see what "
            "would be submitted with --dry-run."
        )
    said = " ".join(" ".join(lines).split()) or f"sbatch exited {answer.code}"
    raise UsageError(f"Slurm did not take the job {name or script}: {said}")


class SlurmFollowed:
    """A job of Slurm that is followed.

    Args:
        number: of the job.
        ask: runs one of Slurm's commands; tests pass their own.
    """

    def __init__(self, number: str, *, ask: Ask = ask) -> None:
        self.name = f"job {number}"
        self.stop = f"scancel {number}"
        self._number = number
        self._ask = ask
        self._log: Path | None = None

    def look(self) -> Seen:
        """Return what Slurm says about the job now.

        Raises:
            Error: Slurm has forgotten it.
        """
        answer = self._ask(["scontrol", "show", "job", self._number])
        if answer.code and "Invalid job id" in answer.err + answer.out:
            return self._remembered()
        if answer.code:  # busy, or being restarted: the job goes on without it
            return Seen(words=f"Slurm does not answer ({' '.join(answer.err.split())})", log=self._log)
        lines = answer.out.split("\n\n")[0].splitlines()  # of an array, the first task
        self._log = next((_log(line) for line in lines if line.strip().startswith("StdOut=")), self._log)
        told = [line for line in lines if not re.match(r"\s*(JobId|Command|WorkDir|Std|Comment)", line)]
        fields = dict(_FIELD.findall("\n".join(told)))
        state = fields.get("JobState", "PENDING")
        restarts = int(fields.get("Restarts", "0"))
        words = in_words(
            state, reason=fields.get("Reason", ""), nodes=fields.get("NodeList", ""), restarts=restarts
        )
        return _seen(state, words, fields.get("ExitCode", "0:0"), self._log)

    def _remembered(self) -> Seen:
        """Return what the accounting says of a job that is no longer in Slurm's memory."""
        answer = self._ask(["sacct", "-n", "-X", "-P", "-o", "State,ExitCode", "-j", self._number])
        state, _, told = answer.out.strip().partition("|")
        state = state.split(" ")[0]  # "CANCELLED by 1000"
        if answer.code or state not in ENDS:
            raise Error(f"Slurm no longer knows {self.name}, and its accounting does not say how it ended.")
        return _seen(state, in_words(state), told, self._log)


def _seen(state: str, words: str, told: str, log: Path | None) -> Seen:
    if state not in ENDS:
        return Seen(words=words, log=log, waits=state == "PENDING")
    code = exit_code(state, told)
    return Seen(
        words=f"{words}, exit code {code}" if code else words,
        log=log,
        exit_code=code,
        cut_off=state not in ("COMPLETED", "FAILED"),
    )


def _log(line: str) -> Path | None:
    path = line.strip().partition("=")[2]
    return None if path in ("", "/dev/null") else Path(path)
