"""Decides how a job runs: which process starts its workers, what the script is, and its compute threads."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base.errors import UsageError
from samestep.base.machine.description import cpu_share
from samestep.base.units import check_hang_timeout
from samestep.launch.job import Job, Program
from samestep.launch.plan import Join, Plan, Spawn
from samestep.launch.source.classify import ScriptKind, classify
from samestep.launch.source.modules import source_of, user_folders
from samestep.launch.task_plan import found_here, planned
from samestep.launchers.compute_threads import Threads, guess_sharing, threads_per_rank
from samestep.launchers.detect import Detected
from samestep.launchers.side_effects import unbind, without_unasked_threads
from samestep.observe.clock.clock_file import ClockOptions

_HELP_FLAGS = {"-h", "--help", "--version", "--usage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything about a run that is settled before it starts.

    Args:
        job: the job that the user asked for.
        plan: which process starts the workers.
        detected: the launcher that started this process, and its place among the launcher's tasks.
        script: the kind of script; None for an executable, and with ``--mode native``.
        threads: compute threads of each worker; None where the program sets them: it starts its own workers,
            or calls `samestep.join` under another launcher.
        must_join: whether it is an error that no worker joins a process group.
        options: how a serial script is split across workers.
        hang_timeout_s: seconds that a rank waits for another one; 0 disables the check.
        sanitize: whether the ranks are compared in every step.
        count: whether steps and samples are counted and timed.
        clocking: which steps are recorded, and where; None for none.
        bind: which cores each worker computes on; see `samestep.launchers.binding`.
        explains_exit_1: whether the program itself prints why it ends with exit code 1.
    """

    job: Job
    plan: Plan
    detected: Detected
    script: ScriptKind | None
    threads: Threads | None
    must_join: bool
    options: Options = DEFAULTS
    hang_timeout_s: float = 0.0
    sanitize: bool = False
    count: bool = False
    clocking: ClockOptions | None = None
    bind: str = "none"
    explains_exit_1: bool = False

    @property
    def size(self) -> int:
        """Number of workers, on all nodes."""
        return self.plan.place.size if isinstance(self.plan, Join) else self.plan.size

    @property
    def is_main(self) -> bool:
        """Whether this process is the one of the launcher's tasks that prints."""
        return self.detected.place.is_main

    @property
    def starts_own_workers(self) -> bool:
        """Whether the program starts its own workers."""
        return self.script is not None and self.script.kind == "spawns"

    @property
    def is_serial(self) -> bool:
        """Whether the program is a serial script."""
        return self.script is not None and self.script.kind == "serial"

    @property
    def is_replicated(self) -> bool:
        """Whether the program is a serial script that runs on several workers."""
        return self.size > 1 and self.is_serial

    @property
    def is_settled_by_join(self) -> bool:
        """Whether `samestep.join` in the program reports the number of workers and sets their threads."""
        return isinstance(self.plan, Join) and self.script is not None and self.script.joins

    @property
    def starts_all(self) -> bool:
        """Whether this process starts all workers, so that none has written a file yet."""
        return isinstance(self.plan, Spawn) and self.plan.nodes.count == 1


def decide(
    job: Job,
    *,
    mode: str,
    threads: int | None,
    master: tuple[str | None, int | None] = (None, None),
    environment: Mapping[str, str],
) -> Decision:
    """Decide how `job` runs, without starting anything and without importing torch.

    Args:
        job: the job.
        mode: ``auto`` to detect what the script is, ``native`` to start it as it is on every worker,
            ``autopilot`` to treat it as a serial script.
        threads: compute threads of each worker, if the user gave a number.
        master: address and port of the rendezvous, each if the user gave it.
        environment: this process's variables.

    Raises:
        UsageError: the job cannot run like this; the message names the reason and a remedy.
    """
    detected = found_here(environment, master=master, nodes=job.nodes.count)
    unbind(environment, detected.launcher)
    job, plan = planned(job, detected)
    script = _script(job.program, mode)
    decision = Decision(
        job=job,
        plan=plan,
        detected=detected,
        script=script,
        threads=None,
        must_join=script is not None and not _HELP_FLAGS & set(job.program.args),
    )
    if decision.starts_own_workers:
        _refuse_several_starts(decision)
        return decision
    if decision.is_settled_by_join and threads is None:
        return decision
    return replace(decision, threads=_threads(plan, detected, environment, threads))


def with_checks(
    decision: Decision,
    *,
    hang_timeout: float,
    sanitize: bool = False,
    count: bool = False,
    clocking: ClockOptions | None = None,
) -> Decision:
    """Return the decision with the checks and records that the user asked for.

    Raises:
        UsageError: one of them does not work with this program, or the folder of the clock is in use.
    """
    check_hang_timeout(hang_timeout)
    uninstrumented = decision.starts_own_workers or decision.job.program.kind == "executable"
    if sanitize and (decision.size == 1 or uninstrumented):
        raise UsageError(
            "--sanitize compares the workers of a Python script; give -n 2 or more, and a script that does "
            "not start its own workers."
        )
    if (count or clocking) and uninstrumented:
        flag = "--count" if count else "--clock"
        raise UsageError(f"{flag} needs a Python script that does not start its own workers.")
    if clocking and decision.starts_all:
        clocking.refuse_used()
    return replace(decision, hang_timeout_s=hang_timeout, sanitize=sanitize, count=count, clocking=clocking)


def recognize_script(program: Program) -> ScriptKind:
    """Return the kind of a script or module, from its text."""
    if program.kind != "script" and program.target == "samestep":  # its own verbs split their work themselves
        return ScriptKind("native", joins=True)
    file, roots = source_file(program)
    return ScriptKind("native") if file is None else classify(file, roots=roots)


def source_file(program: Program) -> tuple[Path | None, list[Path]]:
    """Return the file of a script or module, if it has one, and the folders that its imports come from."""
    here, path = Path.cwd(), sys.path[1:]  # the first is this command's own folder
    if program.kind == "script":
        file = Path(program.target)
        return file, [file.parent, *user_folders(path), here]
    return source_of(program.target, [str(here), *path]), [here, *user_folders(path)]


def refuse_own_workers(program: Program, script: ScriptKind, *, verb: str) -> None:
    """Refuse a script that starts its own workers, which a measuring verb cannot reach.

    Raises:
        UsageError: the script starts its own workers.
    """
    if script.kind == "spawns":
        raise UsageError(
            f"{program.target} starts its own workers, which {verb} cannot measure. If it can run as one "
            "of several workers under a launcher (torchrun, samestep run), give --mode native."
        )


def _script(program: Program, mode: str) -> ScriptKind | None:
    """Return the kind of script: as detected, or as ``--mode`` sets it."""
    if mode == "autopilot" and program.kind == "executable":
        raise UsageError("--mode autopilot is for Python scripts, and --no-python runs an executable.")
    if mode == "native" or program.kind == "executable":
        return None
    return ScriptKind("serial") if mode == "autopilot" else recognize_script(program)


def _threads(plan: Plan, detected: Detected, environment: Mapping[str, str], asked: int | None) -> Threads:
    """Return the compute threads of each worker."""
    cpu, forked = cpu_share(), 1
    environment = without_unasked_threads(environment, detected.launcher)
    if isinstance(plan, Spawn):
        local = sharing = forked = plan.local
    else:
        local = plan.place.local_size
        sharing = guess_sharing(environment, cpu, local_size=local)
    return threads_per_rank(
        environment,
        cpu,
        local_size=local,
        sharing=sharing,
        launcher=detected.launcher,
        asked=asked,
        forked=forked,
    )


def _refuse_several_starts(decision: Decision) -> None:
    """Refuse to start a script several times that starts its own workers each time."""
    several_nodes = isinstance(decision.plan, Spawn) and decision.plan.nodes.count > 1
    if several_nodes or (isinstance(decision.plan, Join) and decision.size > 1):
        evidence = decision.script.evidence if decision.script else ""
        raise UsageError(
            f"{decision.job.program.target} starts its own workers ({evidence}), and several tasks or nodes "
            "would each start them. Start it in one process, or give --mode native if it can be one of "
            "several workers."
        )
