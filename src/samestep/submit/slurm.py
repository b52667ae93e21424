"""Describes Slurm jobs, writes the scripts that sbatch reads, submits them, and reads their state.

The workers are the tasks of Slurm, started by ``srun``, or children of one samestep on each node::

    launch = tasks      srun --ntasks-per-node=4     samestep run train.py       (Slurm starts the workers)
    launch = node       srun --ntasks-per-node=1     samestep run -n 8 train.py  (samestep starts them)

A job can also run several commands of samestep one after another, and store the result of each. Each command
has a folder with its output in ``log.txt`` and, once it has ended, its exit code in ``exit-code``. Subfolders
belong to the command and are empty when it starts. After a command that fails the next one runs.
"""

import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import PREEMPTED, Error, UsageError
from samestep.base.units import counted
from samestep.submit.follow import JobStatus
from samestep.submit.job_command import JobCommand, NodeSizes
from samestep.submit.shell import TIMED_OUT, Ask, command, comment, directive, explained, quoted, run_command
from samestep.submit.site_defaults import SlurmSite

WARNED = 128 + signal.SIGUSR1
"""The exit code of a program that the warning signal has ended."""
MOST_STARTS = 100
"""Number of starts after which a requeued job ends, in case it makes no progress."""
_DURATION = re.compile(r"(?:(?P<days>\d+)-)?(\d+)(?::(\d+))?(?::(?P<third>\d+))?\Z")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, or days-hours:minutes:seconds."""
_EARLY_S = 60  # seconds by which Slurm may send the warning too early
Launch: TypeAlias = Literal["tasks", "node"]
LAUNCHES: tuple[Launch, ...] = ("tasks", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest(NodeSizes):
    """The resources of one job."""

    name: str  # of the job
    site: SlurmSite  # further requests, and the software of the job
    launch: Launch = "tasks"  # whether Slurm starts each worker, or samestep on each node
    output: str  # the log, with Slurm's ``%j`` for the number of the job
    python: str  # the interpreter that submits

    def __post_init__(self) -> None:
        if self.launch not in LAUNCHES:
            raise UsageError(f"--launch {self.launch!r} is not one of {', '.join(LAUNCHES)}.")
        super(SlurmRequest, self).__post_init__()  # with slots=True, super() without arguments fails


def written(*paragraphs: Sequence[str]) -> str:
    """Return a script of these paragraphs; empty ones are left out."""
    return "#!/bin/bash\n" + "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def head(asked: SlurmRequest, *, by: str) -> list[str]:
    """Return the lines that sbatch reads; `by` is the command that writes them."""
    each = ", with a GPU each" if asked.per_node == asked.gpus_per_node else ""
    return [
        comment(f"{asked.name}: {counted(asked.workers, 'worker')} on {counted(asked.nodes, 'node')}{each}."),
        comment(f"Written by {by}; sbatch takes this file as it is."),
        *_size(asked),
        *_site(asked.site),
        directive("--output", asked.output),
    ]


def software(site: SlurmSite) -> list[str]:
    """Return the lines that set up the software."""
    return [*site.preparation(), "export PYTHONUNBUFFERED=1  # the log grows with every line printed"]


def samestep(asked: SlurmRequest) -> list[str]:
    """Return the words that call samestep in a task, quoted for a shell."""
    site = asked.site
    return [*site.within(gpus=asked.gpus_per_node > 0), *site.python(asked.python), "-m", "samestep"]


def srun_flags(asked: SlurmRequest, *, ends_together: bool) -> list[tuple[str, str]]:
    """Return the flags of srun, quoted for a shell, each with its purpose.

    With `ends_together`, a failed worker ends the others.
    """
    site, flags = asked.site, []
    if site.cpus_per_task is not None:
        why = "srun does not take it from the job (Slurm 22.05 and later)"
        flags.append(('--cpus-per-task="$SLURM_CPUS_PER_TASK"', why))
    if ends_together:
        flags.append(("--kill-on-bad-exit=1", "a failed worker ends the others"))
    if site.container and site.container_runtime == "pyxis":
        flags.append(("--container-image=" + quoted([site.container])[0], "the workers' container"))
        flags.append(('--container-mounts="$PWD"', "this folder is mounted in it,"))
        flags.append(('--container-workdir="$PWD"', "and is the working folder"))
    return flags


def _size(asked: SlurmRequest) -> list[str]:
    tasks = asked.per_node if asked.launch == "tasks" else 1
    lines = [
        directive("--job-name", asked.name),
        directive("--nodes", asked.nodes),
        directive("--ntasks-per-node", tasks),
    ]
    if asked.gpus_per_node:
        lines.append(directive("--gpus-per-node", asked.gpus_per_node))
    if asked.site.cpus_per_task is not None:
        lines.append(directive("--cpus-per-task", asked.site.cpus_per_task * asked.per_node // tasks))
    return lines


def _site(site: SlurmSite) -> list[str]:
    asked = {
        "--mem": site.mem,
        "--time": site.time,
        "--partition": site.partition,
        "--account": site.account,
        "--qos": site.qos,
        "--reservation": site.reservation,
        "--constraint": site.constraint,
    }
    lines = [directive(flag, value) for flag, value in asked.items() if value]
    # User-defined options, quoted for sbatch.
    return lines + [directive(line.removeprefix("#SBATCH").strip()) for line in site.directives]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob(SlurmRequest):
    """A Slurm job."""

    command: JobCommand  # the command that each worker runs
    # seconds before the time limit at which the workers get a signal, after which the job is requeued; None
    # for a job that ends at its limit
    warning_s: int | None = None

    def __post_init__(self) -> None:
        super(SlurmJob, self).__post_init__()
        if self.warning_s is not None and self.warning_s < 1:
            raise UsageError(f"--warning is {self.warning_s}; give at least 1.")
        limit_s = seconds_of(self.site.time)
        if self.warning_s is not None and limit_s and limit_s <= self.warning_s + _EARLY_S:
            raise UsageError(
                f"--time {self.site.time} is too short for --warning {self.warning_s}, since Slurm may warn "
                f"{_EARLY_S} s earlier; ask for more time, or a shorter warning."
            )


def seconds_of(duration: str) -> int | None:
    """Return a time limit of sbatch, or a duration that Slurm reports, in seconds; 0 is no limit.

    It is None for ``UNLIMITED``, and for any other notation.

    >>> seconds_of("90"), seconds_of("1:30"), seconds_of("1:00:00"), seconds_of("2-0"), seconds_of("1-1:01")
    (5400, 90, 3600, 172800, 90060)
    """
    if not (parts := _DURATION.match(duration)):
        return None
    days, first, second, third = (int(part or 0) for part in parts.groups())
    if parts["days"] is not None or parts["third"] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


def script(job: SlurmJob) -> str:
    """Return the script of `job`; pure."""
    return written(
        [*head(job, by="samestep submit slurm"), *_requeue(job)], software(job.site), _start(job), _end(job)
    )


def _requeue(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        comment(f"The workers get SIGUSR1 at least {job.warning_s} s before the time limit. They finish"),
        comment("the step and write a checkpoint, and the job is requeued under its number."),
        directive("--signal", f"USR1@{job.warning_s}"),
        directive("--requeue"),
        directive("--open-mode", "append"),
    ]


def _start(job: SlurmJob) -> list[str]:
    flags = srun_flags(job, ends_together=job.warning_s is None)
    work = job.command
    if job.warning_s is not None:
        work = work.resumable(f'runs/{quoted([job.command.name])[0]}-"$SLURM_JOB_ID"')
    words = work.words(job.workers if job.launch == "node" and job.per_node > 1 else None)
    return [*explained(flags), command(["srun", *(flag for flag, _ in flags)], [*samestep(job), *words])]


def _end(job: SlurmJob) -> list[str]:
    if job.warning_s is None:
        return []
    return [
        "code=$?",
        comment(
            f"{PREEMPTED}: stopped after a checkpoint; {WARNED}: ended by the signal. Both can be resumed."
        ),
        f'if [ "$code" -eq {PREEMPTED} ] || [ "$code" -eq {WARNED} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {MOST_STARTS} ]; then',
        '        echo "samestep: the job is requeued" >&2',
        '        scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        f'        echo "samestep: the job was requeued {MOST_STARTS} times and ends; read its log" >&2',
        "    fi",
        "fi",
        'exit "$code"',
    ]


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


def recorded_script(asked: SlurmRequest, sequence: Sequence[RecordedCommand], *, by: str) -> str:
    """Return the script of the job; pure.

    The workers are the tasks of the job; `by` is the command that writes the script.
    """
    flags = srun_flags(asked, ends_together=True)
    srun = " ".join(["srun", *(flag for flag, _ in flags)])
    function = _FUNCTION.format(srun=srun, log=LOG, exit_code=EXIT_CODE)
    common = {
        name: value
        for name, value in sequence[0].variables.items()
        if all(recorded.variables.get(name) == value for recorded in sequence)
    }
    return written(
        head(asked, by=by),
        [*software(asked.site), *(f"export {word}" for word in _assigned(common))],
        [*explained(flags), *function.splitlines()],
        [_recorded(asked, recorded, exported=common) for recorded in sequence],
        ['exit "$failed"'],
    )


def recorded_exit_code(folder: Path) -> int | None:
    """Return the exit code of a folder's command; None if it has not ended."""
    try:
        return int((folder / EXIT_CODE).read_text())
    except (OSError, ValueError):
        return None


def _recorded(asked: SlurmRequest, recorded: RecordedCommand, *, exported: Mapping[str, str]) -> str:
    variables = {name: value for name, value in recorded.variables.items() if name not in exported}
    env = ["env", *_assigned(variables)] if variables else []
    return command(
        ["recorded", *quoted([str(recorded.folder)]), *env], [*samestep(asked), *quoted(recorded.words)]
    )


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={quoted([value])[0]}" for name, value in variables.items()]


_PREFIX = re.compile(r"^sbatch: (error|fatal): ")
_UNREACHABLE = re.compile("configuration source|Unable to contact slurm controller")
"""The errors of sbatch when it cannot reach Slurm."""
_FIELD = re.compile(r"\b(JobState|Reason|ExitCode|Restarts|NodeList|RunTime|TimeLimit|StartTime)=(\S+)")

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
        words = _state_in_words(
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

    def close(self) -> None:
        """Do nothing: Slurm writes the log."""

    def _accounted(self) -> JobStatus:
        """Return the state of a job that only the accounting still has."""
        answer = self._ask(["sacct", "-n", "-X", "-P", "-o", "State,ExitCode", "-j", self.number])
        state, _, code = answer.out.strip().partition("|")
        state = state.split(" ")[0]  # "CANCELLED by 1000"
        if answer.code or state not in ENDS:
            raise Error(f"Slurm no longer has {self.name}, and its accounting has no final state of it.")
        return _status(state, _state_in_words(state), code, self._log)


def _status(state: str, words: str, slurm_code: str, log: Path | None) -> JobStatus:
    if state not in ENDS:
        return JobStatus(words=words, log=log, waits=state == "PENDING")
    code = _exit_code(state, slurm_code)
    return JobStatus(
        words=f"{words}, exit code {code}" if code else words,
        log=log,
        exit_code=code,
        cut_off=state not in ("COMPLETED", "FAILED"),
    )


def _log(line: str) -> Path | None:
    path = line.strip().partition("=")[2]
    return None if path in ("", "/dev/null") else Path(path)


def _state_in_words(state: str, *, reason: str = "", nodes: str = "", restarts: int = 0) -> str:
    """Return the state of a job in words.

    >>> _state_in_words("PENDING", reason="Resources")
    'waits for nodes to become free (Resources)'
    >>> _state_in_words("RUNNING", nodes="node[0-1]", restarts=1)
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


def _exit_code(state: str, slurm_code: str) -> int:
    """Return the exit code of a job that ended, as a shell has it.

    `slurm_code` is Slurm's ``ExitCode``: the code and the signal.

    >>> _exit_code("FAILED", "3:0"), _exit_code("CANCELLED", "0:15"), _exit_code("TIMEOUT", "0:0")
    (3, 143, 1)
    """
    code, _, number = slurm_code.partition(":")
    if code.isdecimal() and int(code):
        return int(code)
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return 0 if state == "COMPLETED" else 1
