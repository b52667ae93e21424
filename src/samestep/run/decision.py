"""Decides how a job runs: which process starts its workers, what the script is, and its compute threads.

The decision is a value, which the banner and ``--dry-run`` describe.
"""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable
from samestep.base.machine.accelerators import can_have_accelerators
from samestep.base.machine.description import cores, cpu_share, refuse_beyond_cores, refuse_beyond_memory
from samestep.base.units import check_hang_timeout, counted
from samestep.launch.job import Job, Program
from samestep.launch.local.child import interpreter
from samestep.launch.plan import Join, Plan, Spawn, planned
from samestep.launch.source.classify import ScriptKind, classify
from samestep.launch.source.modules import is_safe_path, source_of, user_folders
from samestep.launchers.detect import UNLAUNCHED, Detected
from samestep.launchers.detect_task import detect_task
from samestep.launchers.processors import (
    Threads,
    checked,
    guess_sharing,
    share_of,
    threads_per_rank,
    undo_default_binding,
    without_default_threads,
)
from samestep.launchers.processors import in_words as binding_text
from samestep.observe.clock_file import ClockOptions
from samestep.ranks.world.banner import threads_text

TRAINS_ALONE = (
    "the script trains without spawning a worker, so its steps are not recorded. Give --mode native to run "
    "it as one worker."
)
"""Message about a script that can spawn workers and does not, because one worker was asked for."""
_HELP_FLAGS = {"-h", "--help", "--version", "--usage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything about a run that is settled before it starts."""

    job: Job  # the job that the user asked for
    plan: Plan  # which process starts the workers
    detected: Detected  # the launcher that started this process, and its place among the launcher's tasks
    script: ScriptKind | None  # the kind of script; None for an executable, and with ``--mode native``
    threads: Threads | None  # compute threads of each worker; None if the program sets them
    must_join: bool  # whether it is an error that no worker joins a process group
    options: Options = DEFAULTS  # how a serial script is split across workers
    hang_timeout_s: float = 0.0  # seconds that a rank waits for another one; 0 disables the check
    sanitize: bool = False  # whether the ranks are compared in every step
    count: bool = False  # whether steps and samples are counted and timed
    clocking: ClockOptions | None = None  # which steps are recorded, and where; None for none
    bind: str = "none"  # which cores each worker computes on; see `samestep.launchers.processors`
    explains_exit_1: bool = False  # whether the program itself prints why it ends with exit code 1

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
    def forks_workers(self) -> bool:
        """Whether samestep forks the program's workers; of processes started by hand, it needs the number."""
        if self.script is None or not self.script.has_forkable_workers:
            return False
        return not self.script.starts_processes or self.job.asked() is not None

    @property
    def starts_workers_alone(self) -> bool:
        """Whether the program starts its own workers, and samestep does not fork them."""
        return self.starts_own_workers and not self.forks_workers

    @property
    def must_have_group(self) -> bool:
        """Whether all workers must be in one process group; those that a script spawns need none."""
        if self.script is None or not self.must_join or self.size == 1 or self.is_serial:
            return False
        return not self.starts_own_workers or self.script.creates_group

    @property
    def is_serial(self) -> bool:
        """Whether the program is a serial script."""
        return self.script is not None and self.script.kind == "serial"

    @property
    def runs_once(self) -> bool:
        """Whether one worker runs the script, and the others compute slices of its calls."""
        return self.size > 1 and self.is_serial

    @property
    def has_helpers(self) -> bool:
        """Whether the worker that runs the script starts the others: on one host, on its cores."""
        return self.runs_once and self.starts_all and not self.has_devices

    @property
    def has_devices(self) -> bool:
        """Whether the workers possibly compute on accelerators."""
        return self.options.device != "cpu" and can_have_accelerators()

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
    detected = detect_task(environment, master=master, nodes=job.nodes.count)
    undo_default_binding(environment, detected.launcher)
    script = _script(job.program, mode, is_launched=detected.launcher != UNLAUNCHED)
    job, plan = planned(job, detected, spawns=script is not None and script.has_forkable_workers)
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
        if not (decision.forks_workers and job.asked()):
            return decision
        decision = replace(decision, job=replace(job, program=_with_numbers(job.program, plan)))
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
    oversubscribe: bool = False,
) -> Decision:
    """Return the decision with the checks and records that the user asked for.

    Raises:
        UsageError: one of them does not work with this program, the folder of the clock is in use, or there
            are far more workers than cores, without `oversubscribe`.
    """
    check_hang_timeout(hang_timeout)
    if decision.starts_all and not (oversubscribe or decision.starts_workers_alone or decision.has_devices):
        refuse_beyond_cores(decision.size)
    uninstrumented = decision.starts_workers_alone or decision.job.program.kind == "executable"
    if sanitize and decision.runs_once:
        raise UsageError("--sanitize compares workers that all run the script; a serial script runs once.")
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


def with_binding(decision: Decision, kind: str) -> Decision:
    """Return the decision with its workers bound to cores.

    Raises:
        UsageError: there is no such binding, there are too few cores, or the program starts its own workers.
    """
    if checked(kind) != "none" and decision.starts_workers_alone:
        raise UsageError(
            f"--bind {kind} binds samestep's workers, and {decision.job.program.target} starts its own. "
            "Leave --bind out."
        )
    if kind != "none" and isinstance(decision.plan, Spawn):  # raises before any worker is started
        share_of(kind, cores(cpu_share().allowed), local_rank=0, local_size=decision.plan.local)
    return replace(decision, bind=kind)


def with_scratch(decision: Decision, scratch: Path | None) -> Decision:
    """Return the decision with the folder of ``--scratch``, if one was given.

    Raises:
        UsageError: the program's writes cannot be redirected, or the folder cannot be written to.
    """
    if scratch is None:
        return decision
    if decision.starts_workers_alone or decision.job.program.kind == "executable":
        raise UsageError(
            "--scratch needs a Python script that does not start its own workers, and "
            f"{decision.job.program.target} is not one. Leave it out."
        )
    refuse_unwritable("--scratch", scratch)
    return replace(decision, options=replace(decision.options, scratch=scratch.absolute()))


def recognize_script(program: Program, is_set: Callable[[str], bool] = lambda _: False) -> ScriptKind:
    """Return the kind of a script or module, from its text; see `classify` for `is_set`."""
    if program.kind != "script" and program.target == "samestep":  # its own verbs split their work themselves
        return ScriptKind("native", joins=True)
    file, roots = source_file(program)
    if file is None:
        return ScriptKind("native")
    return classify(file, roots=roots, arguments=program.args, is_set=is_set)


def source_file(program: Program) -> tuple[Path | None, list[Path]]:
    """Return the file of a script or module, if it has one, and the folders that its imports come from."""
    # Without the folder of this command.
    here, path = Path.cwd(), sys.path if is_safe_path() else sys.path[1:]
    if program.kind == "script":
        file = Path(program.target)
        return file, [file.parent, *user_folders(path), here]
    return source_of(program.target, [str(here), *path]), [here, *user_folders(path)]


def _script(program: Program, mode: str, *, is_launched: bool) -> ScriptKind | None:
    """Return the kind of script: as detected, or as ``--mode`` sets it."""
    if mode == "native" or program.kind == "executable":
        return None
    if mode == "autopilot":
        return ScriptKind("serial")
    # Under any launcher samestep sets the variables of torchrun, too.
    return recognize_script(program, lambda _: is_launched)


def _threads(plan: Plan, detected: Detected, environment: Mapping[str, str], asked: int | None) -> Threads:
    """Return the compute threads of each worker."""
    cpu, forked = cpu_share(), 1
    environment = without_default_threads(environment, detected.launcher)
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


def filled(program: Program, **values: int) -> Program:
    """Return a program whose arguments have each value for its name in braces.

    >>> filled(Program(target="train.py", args=("--gpus={n}", "{x}")), n=2).args
    ('--gpus=2', '{x}')
    """
    arguments = program.args
    for name, value in values.items():
        arguments = tuple(argument.replace(f"{{{name}}}", str(value)) for argument in arguments)
    return replace(program, args=arguments)


def _with_numbers(program: Program, plan: Plan) -> Program:
    """Return a program whose arguments have the numbers of workers and nodes, as far as they are known."""
    if not isinstance(plan, Spawn):
        return filled(program, n=plan.place.size, local=plan.place.size, nodes=1, node_rank=0)
    nodes = plan.nodes
    known = {} if nodes.rank is None and nodes.count > 1 else {"node_rank": nodes.rank or 0}
    return filled(program, n=plan.size, local=plan.local, nodes=nodes.count, **known)


def banner(decision: Decision) -> list[str]:
    """Return the lines that are printed before a run."""
    if decision.starts_own_workers or decision.is_settled_by_join:
        words = binding_text(decision.bind)
        return [
            *decision.detected.notes,
            *([f"workers are {words}"] if words else []),
            _script_text(decision),
        ]
    return [headline(decision), *decision.detected.notes, _script_text(decision)]


def headline(decision: Decision) -> str:
    """Return the line with the number of workers and their threads."""
    threads = decision.threads
    each = "" if threads is None else f", {threads_text(threads, each=decision.size > 1)}"
    each += f", {words}" if (words := binding_text(decision.bind)) else ""
    if isinstance(decision.plan, Join):
        where = f"started by {decision.detected.launcher}"
    elif decision.plan.nodes.count > 1:
        nodes = decision.plan.nodes
        count = f"{nodes.count}" if nodes.least is None else f"at most {nodes.count}"
        where = f"= {count} nodes x {decision.plan.local}"
    else:
        where = "on this node"
    return f"{counted(decision.size, 'worker')} {where}{each}"


def oversubscription(decision: Decision) -> str:
    """Return a warning if this node has fewer cores than the workers that start on it, or an empty text.

    Raises:
        UsageError: the memory of this node cannot hold them.
    """
    if not isinstance(decision.plan, Spawn) or decision.starts_workers_alone:
        return ""
    workers, usable = decision.plan.local, cpu_share().usable
    if workers <= usable:
        return ""
    if decision.job.program.kind != "executable":
        refuse_beyond_memory(workers)
    flag = "-n" if decision.plan.nodes.count == 1 else "--nproc-per-node"  # -n is for all nodes
    return (
        f"warning: {workers} workers share {counted(usable, 'usable core')}, so they wait for each other and "
        f"are slower than {counted(usable, 'worker')}. Give {flag} {usable}, or more cores or nodes."
    )


def dry_run_lines(decision: Decision) -> list[str]:
    """Return the whole decision as lines."""
    job = decision.job
    lines = [decision.plan.describe(), f"program: {shlex.join(job.program.command(*interpreter()))}"]
    if decision.threads is not None:
        lines.append(f"threads: {decision.threads.count} each ({decision.threads.reason})")
    elif decision.is_settled_by_join:
        lines.append("threads: set by samestep.join, from the cores that the workers share")
    lines.append(f"script: {_script_text(decision)}")
    if decision.bind != "none":
        lines.append(f"bind: {decision.bind}")
    if job.max_restarts:
        lines.append(f"restarts: up to {job.max_restarts}, each with a fresh store and port")
    if job.logs.folder is not None:
        lines.append(f"logs: {job.logs.folder / job.run_id}/attempt_K/LOCAL_RANK/{{stdout,stderr}}.log")
    return lines


def _script_text(decision: Decision) -> str:
    """Return what the script is and how it runs."""
    target, script = decision.job.program.target, decision.script
    if decision.job.program.kind == "executable":
        return f"{target} runs on each worker, with torchrun's variables"
    if script is None:
        return f"{target} runs on each worker as it is (--mode native)"
    if script.kind == "spawns":
        several = isinstance(decision.plan, Spawn) and decision.plan.nodes.count > 1
        once = "it is started once" + (" on each node" if several else "")
        forked = ", and its workers are forked" if decision.forks_workers else ""
        return f"{target} starts its own workers ({script.evidence}): {once}{forked}"
    if script.kind == "serial":
        return f"{target} {_serial_text(decision, script)}"
    why = f" ({script.evidence})" if script.evidence else ""
    return f"{target} joins its peers itself{why}: runs as under torchrun"


def _serial_text(decision: Decision, script: ScriptKind) -> str:
    """Return how a serial script runs."""
    if not decision.runs_once:
        misplaced = decision.size == 1 and "-n" in decision.job.program.args
        note = " (`-n` after the script name was passed to the script; put it before)" if misplaced else ""
        return f"is a serial script{note}"
    if script.optional is not None:
        return (
            f"runs as on one device, and its models' calls are split across workers; --mode native runs its "
            f"own data parallelism ({script.optional})"
        )
    if script.evidence is None:
        return "is a serial script: it runs once, and calls of its models are split across workers"
    return (
        f"trains on one device ({script.evidence}): its models' calls are split across workers; --mode "
        f"native starts the library's own data parallelism, with {decision.size} times the global batch"
    )


def refuse_own_workers(program: Program, script: ScriptKind, *, verb: str) -> None:
    """Refuse a script that starts its own workers in a way in which a measuring verb cannot reach them.

    Raises:
        UsageError: the script starts its own workers, and not by `torch.multiprocessing`.
    """
    if script.kind == "spawns" and not script.has_forkable_workers:
        raise UsageError(
            f"{program.target} starts its own workers, which {verb} cannot measure. If it can run as one "
            "of several workers under a launcher (torchrun, samestep run), give --mode native."
        )


def refuse_several_tasks(program: Program, script: ScriptKind, *, remedy: str) -> None:
    """Refuse to start a script once per task if it starts its own workers each time.

    `remedy` is what to do, as the beginning of a sentence.

    Raises:
        UsageError: the script starts its own workers.
    """
    if script.kind == "spawns":
        raise UsageError(
            f"{program.target} starts its own workers ({script.evidence}), and several tasks or nodes would "
            f"each start them. {remedy}, or give --mode native if it can be one of several workers."
        )


def _refuse_several_starts(decision: Decision) -> None:
    """Refuse to start a script several times that starts its own workers each time.

    A script that spawns them can be started once on each node, if the number of workers is known.

    Raises:
        UsageError: several processes would each start workers, or their number is unknown.
    """
    job, plan, script = decision.job, decision.plan, decision.script
    nodes = None if isinstance(plan, Join) else plan.nodes
    size = plan.place.size if isinstance(plan, Join) else plan.nodes.count
    if script is None or size == 1:
        return
    target, evidence = job.program.target, script.evidence
    if not decision.forks_workers or (nodes is None and decision.detected.place.local_size > 1):
        refuse_several_tasks(job.program, script, remedy="Start it in one process")
    if nodes is not None and nodes.least is not None:
        raise UsageError(
            f"{target} spawns its workers ({evidence}), so nodes cannot come and go: give --nnodes "
            f"{nodes.count}."
        )
    if job.asked() is None:
        raise UsageError(
            f"{target} spawns its workers on each node ({evidence}): give their number on all nodes (-n), "
            "and the script's own flags with {local}, {nodes} and {node_rank}: samestep run -n 4 train.py "
            "--gpus {local} --nodes {nodes} --nr {node_rank}."
        )
