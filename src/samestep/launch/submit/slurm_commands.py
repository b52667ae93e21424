"""Submits jobs to Slurm, and reads their state from its commands."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import Error, UsageError
from samestep.launch.submit.follow import JobStatus
from samestep.launch.submit.slurm_states import ENDS, exit_code, in_words

_TIMEOUT_S = 60
_TIMED_OUT = 124
"""The exit code of a command that did not end in time, as that of ``timeout``."""

_PREFIX = re.compile(r"^sbatch: (error|fatal): ")
_UNREACHABLE = re.compile("configuration source|Unable to contact slurm controller")
"""The errors of sbatch when it cannot reach Slurm."""

_FIELD = re.compile(r"\b(JobState|Reason|ExitCode|Restarts|NodeList|BatchHost)=(\S+)")

Ask = Callable[[Sequence[str]], "Answer"]
"""Runs a command of Slurm."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def ask(words: Sequence[str]) -> Answer:
    """Run a command of Slurm to its end; it has its own session, so that a Ctrl-C does not interrupt it."""
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(127, "", f"there is no {words[0]} on this machine")
    except subprocess.TimeoutExpired:
        return Answer(_TIMED_OUT, "", f"{words[0]} did not answer within {_TIMEOUT_S} s")
    return Answer(ended.returncode, ended.stdout, ended.stderr)


def refuse_without_sbatch() -> None:
    """Refuse to submit a job without Slurm.

    Raises:
        UsageError: there is no sbatch.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine; submit from a login node of the cluster, or print the job "
            "with --dry-run."
        )


def submit(script: Path, *, name: str = "", ask: Ask = ask) -> str:
    """Submit a job to Slurm, and return its number.

    Args:
        script: of the job.
        name: of the job in error messages; empty for the path of the script.
        ask: runs a command of Slurm; tests pass their own.

    Raises:
        UsageError: Slurm rejects the job, or does not answer.
    """
    answer = ask(["sbatch", "--parsable", str(script)])
    number = answer.out.strip().partition(";")[0]  # the name of the cluster may follow
    if answer.code == 0 and number.isdecimal():
        return number
    if answer.code == _TIMED_OUT:
        raise UsageError(
            f"{answer.err}. Slurm may still have accepted the job {name or script}; check with squeue --me "
            "before you submit it again."
        )
    lines = [_PREFIX.sub("", line) for line in (answer.err or answer.out).splitlines()]
    if any(_UNREACHABLE.search(line) for line in lines):
        raise UsageError(
            f"Slurm does not answer here ({lines[-1]}). Submit from a login node of the cluster, or print "
            "the job with --dry-run."
        )
    reason = " ".join(" ".join(lines).split()) or f"sbatch ended with exit code {answer.code}"
    raise UsageError(f"Slurm rejected the job {name or script}: {reason}")


class FollowedSlurmJob:
    """A submitted Slurm job.

    Args:
        number: of the job.
        ask: runs a command of Slurm; tests pass their own.
    """

    def __init__(self, number: str, *, ask: Ask = ask) -> None:
        self.name = f"job {number}"
        self.number = number
        self.stop = f"scancel {number}"
        self._ask = ask
        self._log: Path | None = None

    def status(self) -> JobStatus:
        """Return the present state of the job.

        Raises:
            Error: neither Slurm nor its accounting has the job.
        """
        answer = self._ask(["scontrol", "show", "job", self.number])
        if answer.code and "Invalid job id" in answer.err + answer.out:
            return self._accounted()
        if answer.code:  # Slurm is busy or restarts, and the job goes on
            return JobStatus(words=f"Slurm does not answer ({' '.join(answer.err.split())})", log=self._log)
        lines = answer.out.split("\n\n")[0].splitlines()  # the first task of an array
        self._log = next((_log(line) for line in lines if line.strip().startswith("StdOut=")), self._log)
        fields = [line for line in lines if not re.match(r"\s*(JobId|Command|WorkDir|Std|Comment)", line)]
        values = dict(_FIELD.findall("\n".join(fields)))
        state = values.get("JobState", "PENDING")
        restarts = int(values.get("Restarts", "0"))
        words = in_words(
            state, reason=values.get("Reason", ""), nodes=values.get("NodeList", ""), restarts=restarts
        )
        return _status(state, words, values.get("ExitCode", "0:0"), self._log)

    def _accounted(self) -> JobStatus:
        """Return the state of a job that only the accounting still has."""
        answer = self._ask(["sacct", "-n", "-X", "-P", "-o", "State,ExitCode", "-j", self.number])
        state, _, code = answer.out.strip().partition("|")
        state = state.split(" ")[0]  # "CANCELLED by 1000"
        if answer.code or state not in ENDS:
            raise Error(f"Slurm no longer has {self.name}, and its accounting has no final state of it.")
        return _status(state, in_words(state), code, self._log)


def _status(state: str, words: str, slurm_code: str, log: Path | None) -> JobStatus:
    if state not in ENDS:
        return JobStatus(words=words, log=log, waits=state == "PENDING")
    code = exit_code(state, slurm_code)
    return JobStatus(
        words=f"{words}, exit code {code}" if code else words,
        log=log,
        exit_code=code,
        cut_off=state not in ("COMPLETED", "FAILED"),
    )


def _log(line: str) -> Path | None:
    path = line.strip().partition("=")[2]
    return None if path in ("", "/dev/null") else Path(path)
