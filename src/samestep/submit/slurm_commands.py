"""Submits jobs to Slurm, and reads their state from its commands."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from samestep.base.errors import Error, UsageError
from samestep.submit.follow import JobStatus
from samestep.submit.shell import TIMED_OUT, Ask, run_command

_PREFIX = re.compile(r"^sbatch: (error|fatal): ")
_UNREACHABLE = re.compile("configuration source|Unable to contact slurm controller")
"""The errors of sbatch when it cannot reach Slurm."""
_FIELD = re.compile(r"\b(JobState|Reason|ExitCode|Restarts|NodeList|RunTime|TimeLimit|StartTime)=(\S+)")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)\Z")

REASONS: Mapping[str, str] = {
    "None": "until the scheduler has considered it",
    "Resources": "for nodes to become free",
    "Priority": "behind jobs of higher priority",
    "BeginTime": "until its start time; Slurm holds a requeued job back for two minutes",
    "Dependency": "for another job",
    "DependencyNeverSatisfied": "for another job that can no longer end as required; cancel it",
    "JobHeldUser": "because you hold it (scontrol release)",
    "JobHeldAdmin": "because an administrator holds it",
    "Reservation": "for its reservation to begin",
    "ReqNodeNotAvail": "for nodes that are down, reserved or being emptied",
    "NodeDown": "for a node that is down",
    "Licenses": "for a license",
    "PartitionDown": "because its partition accepts no jobs now",
    "PartitionInactive": "because its partition starts no jobs now",
    "PartitionNodeLimit": "for more nodes than its partition allows; it will not start",
    "PartitionTimeLimit": "for more time than its partition allows; it will not start",
    "BadConstraints": "for nodes that do not exist; it will not start",
    "InvalidAccount": "because of its account; it will not start",
    "InvalidQOS": "because of its quality of service; it will not start",
    "JobArrayTaskLimit": "for other tasks of its array",
    "Cleaning": "until its last start is cleaned up",
    "launch_failed_requeued_held": "because it could not be started; an administrator has to release it",
}
"""Why a job waits, by Slurm's code; other codes name a limit of an account or a QOS."""

_STATES: Mapping[str, str] = {
    "CONFIGURING": "its nodes are being prepared",
    "COMPLETING": "is ending",
    "STAGE_OUT": "is ending",
    "SIGNALING": "is being signaled",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "RESIZING": "is being resized",
    "REQUEUED": "is being requeued",
    "REQUEUE_FED": "is being requeued",
    "REQUEUE_HOLD": "is requeued and held (scontrol release)",
    "SPECIAL_EXIT": "is requeued and held (scontrol release)",
    "RESV_DEL_HOLD": "is held because its reservation was deleted (scontrol release)",
}

WITH_REQUEUE = "--requeue lets it continue"
"""The remedy for a job that was ended from outside."""

ENDS: Mapping[str, str] = {
    "COMPLETED": "has ended well",
    "FAILED": "has failed",
    "TIMEOUT": f"was ended at its time limit (raise --time; {WITH_REQUEUE})",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "was ended because one of its nodes failed",
    "OUT_OF_MEMORY": "was ended because it used more memory than requested (raise --mem)",
    "PREEMPTED": f"was preempted by another job ({WITH_REQUEUE})",
    "BOOT_FAIL": "could not be started: a node did not boot",
    "DEADLINE": "was ended at its deadline",
    "REVOKED": "was moved to another cluster",
}
"""The final states."""


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


def submit(script: Path, *, name: str = "", ask: Ask = run_command) -> str:
    """Submit a job to Slurm, and return its number.

    `name` is that of the job in error messages; empty for the path of the script.

    Raises:
        UsageError: Slurm rejects the job, or does not answer.
    """
    answer = ask(["sbatch", "--parsable", str(script)])
    number = answer.out.strip().partition(";")[0]  # the name of the cluster may follow
    if answer.code == 0 and number.isdecimal():
        return number
    if answer.code == TIMED_OUT:
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
    """A submitted Slurm job; `ask` runs a command of Slurm."""

    def __init__(self, number: str, *, ask: Ask = run_command) -> None:
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
            words = f"Slurm does not answer ({' '.join(answer.err.split())})"
            return JobStatus(words=words, log=self._log, is_known=False)
        lines = answer.out.split("\n\n")[0].splitlines()  # the first task of an array
        self._log = next((_log(line) for line in lines if line.strip().startswith("StdOut=")), self._log)
        fields = [line for line in lines if not re.match(r"\s*(JobId|Command|WorkDir|Std|Comment)", line)]
        values = dict(_FIELD.findall("\n".join(fields)))
        state = values.get("JobState", "PENDING")
        restarts = int(values.get("Restarts", "0"))
        words = in_words(
            state, reason=values.get("Reason", ""), nodes=values.get("NodeList", ""), restarts=restarts
        )
        status = _status(state, words, values.get("ExitCode", "0:0"), self._log)
        start = values.get("StartTime", "Unknown")
        return replace(
            status,
            elapsed_s=None if status.waits else seconds_of(values.get("RunTime", "")),
            limit_s=seconds_of(values.get("TimeLimit", "")),
            expected_start=start if status.waits and start != "Unknown" else "",
        )

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


def seconds_of(duration: str) -> float | None:
    """Return a duration of Slurm in seconds; None for ``UNLIMITED`` and the like.

    >>> seconds_of("1-02:00:30"), seconds_of("00:05:00"), seconds_of("UNLIMITED")
    (93630.0, 300.0, None)
    """
    if not (found := _DURATION.match(duration)):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _log(line: str) -> Path | None:
    path = line.strip().partition("=")[2]
    return None if path in ("", "/dev/null") else Path(path)


def in_words(state: str, *, reason: str = "", nodes: str = "", restarts: int = 0) -> str:
    """Return the state of a job in words.

    >>> in_words("PENDING", reason="Resources")
    'waits for nodes to become free (Resources)'
    >>> in_words("RUNNING", nodes="node[0-1]", restarts=1)
    'runs on node[0-1], start 2'
    """
    if state == "PENDING":
        plain = reason.partition(",")[0].strip("()") or "None"
        why = REASONS.get(plain) or ("within a limit" if "Max" in plain or "Grp" in plain else "")
        return " ".join(part for part in ("waits", why, f"({plain})" if plain != "None" else "") if part)
    if state == "RUNNING":
        again = f", start {restarts + 1}" if restarts else ""
        return f"runs on {nodes or 'its nodes'}{again}"
    return ENDS.get(state) or _STATES.get(state) or f"is in state {state}"


def exit_code(state: str, slurm_code: str) -> int:
    """Return the exit code of a job that ended, as a shell has it.

    `slurm_code` is Slurm's ``ExitCode``: the code and the signal.

    >>> exit_code("FAILED", "3:0"), exit_code("CANCELLED", "0:15"), exit_code("TIMEOUT", "0:0")
    (3, 143, 1)
    """
    code, _, number = slurm_code.partition(":")
    if code.isdecimal() and int(code):
        return int(code)
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return 0 if state == "COMPLETED" else 1
