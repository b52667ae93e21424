"""Runs a decided job to its end: starts the workers or becomes one, and logs why they failed."""

import faulthandler
import gc
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from samestep.base import env, event_record
from samestep.base.console import inform, log, write_stderr
from samestep.base.errors import PREEMPTED, OutOfStep, PeerLost, StepsDiffer, UsageError, WorkerFailed
from samestep.base.machine.description import cpu_share
from samestep.base.owned_folders import temporary_directory
from samestep.base.place import Place
from samestep.base.signals import ended_by_interrupt
from samestep.launch.job import STDERR, Job, Program
from samestep.launch.local.child import Report, ReportPipe, Start, become, entry_of, has_common_group
from samestep.launch.local.forking import fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending, host, leave
from samestep.launch.local.local_backend import Outcome, Restarts, place_variables
from samestep.launch.plan import Join, Spawn, agreed_plan, use_interface
from samestep.launch.source.classify import ScriptKind
from samestep.launch.source.launcher_variables import values_at, values_beside
from samestep.launchers.processors import bind, guess_sharing, thread_variables
from samestep.run.decision import (
    TRAINS_ALONE,
    Decision,
    decide,
    filled,
    headline,
    oversubscription,
    with_binding,
)
from samestep.run.rerun import rerun_in_allocation
from samestep.run.worker_wrappers import monitor, wrapper

SILENT_COPIES = (
    "{size} workers ended and no process group had all of them: silent copies of one run. "
    "Call `samestep.join` or init_process_group in the script, give -n 1, or give --mode native if "
    "independent copies are intended."
)


_WITHOUT_TRACEBACK = (OutOfStep.__name__, StepsDiffer.__name__, PeerLost.__name__)
"""Names of errors whose reason is not in the traceback of a rank, but in the events of all."""

OWN_PROGRAM = Program(target="samestep", kind="module")
"""The program of a verb that runs its own code on the workers."""


def decide_own(job: Job, *, threads: int | None = None, bind: str = "none") -> Decision:
    """Decide how a verb's own job runs; in a shell that holds a Slurm allocation, rerun the command inside.

    Raises:
        UsageError: the job cannot run like this.
    """
    rerun_in_allocation(job)
    return with_binding(decide(job, mode="native", threads=threads, environment=env.snapshot()), bind)


def start_own(decision: Decision, arguments: Sequence[str]) -> int:
    """Start the workers of a verb's own job with `arguments`, and return the exit code of the run."""
    if decision.is_main:
        warning = oversubscription(decision)
        inform(headline(decision))
        if warning:
            log(warning)
    program = replace(decision.job.program, args=tuple(arguments))
    return execute(replace(decision, job=replace(decision.job, program=program)))


def execute(decision: Decision) -> int:
    """Run the job to its end and return the exit code of the run."""
    if decision.threads is not None:
        # Read when torch and NumPy are loaded, here or in a fresh interpreter.
        env.export(thread_variables(decision.threads))
    folder = _folder_of_script(decision)
    is_new = folder is not None and not folder.exists()
    with agreed_plan(decision.plan, decision.detected, is_given=decision.job.nodes.count > 1) as settled:
        if (interface := use_interface(settled)) is not None and interface.must_set and decision.is_main:
            log(f"Gloo uses {interface.name} between the nodes ({interface.why})")
        if isinstance(settled, Join):
            _run_here(decision, settled)
        event_record.begin_run()
        outcome = _spawn(decision, settled)
        event_record.end_run(has_failed=_needs_events(outcome))
    if _trains_alone_in_scratch(decision, outcome):
        if folder is not None and is_new:
            shutil.rmtree(folder, ignore_errors=True)
        return execute(replace(decision, script=ScriptKind("native")))
    if outcome.preempted:
        return PREEMPTED
    if outcome.interrupted_by:
        # A closed terminal, which has sent SIGHUP, takes no line any more.
        write_stderr(f"samestep: ended by signal {outcome.interrupted_by}; all workers were stopped.\n")
        return 128 + outcome.interrupted_by
    if outcome.elsewhere is not None:
        log(f"{outcome.elsewhere}; this node has stopped its workers.")
        return outcome.elsewhere.code
    if (
        outcome.silent_copies
        and decision.must_join
        and not decision.starts_own_workers
        and not decision.has_helpers
    ):
        raise WorkerFailed(SILENT_COPIES.format(size=decision.size))
    return outcome.cause.code if outcome.cause else 0


def _needs_events(outcome: Outcome) -> bool:
    """Return whether the events of all workers are kept: one was killed, or they hung."""
    cause = outcome.cause
    if cause is None or outcome.interrupted_by or outcome.preempted:
        return False
    return cause.exit_code < 0 or cause.error in _WITHOUT_TRACEBACK


def bind_worker(decision: Decision, place: Place) -> None:
    """Bind this process, the worker at `place`, to the cores that were decided.

    Raises:
        UsageError: there are fewer cores than workers.
    """
    environment, shared = env.snapshot(), True
    if isinstance(decision.plan, Join):
        shared = guess_sharing(environment, cpu_share(), local_size=place.local_size) > 1
    bind(decision.bind, place, environment, shared=shared or place.local_size == 1)


def log_failure(decision: Decision, outcome: Outcome, restarts: Restarts) -> None:
    """Log why the workers failed, if they did."""
    cause = outcome.cause
    if cause is None or outcome.preempted or _trains_alone_in_scratch(decision, outcome):
        return
    if decision.explains_exit_1 and cause.exit_code == 1 and not cause.error:
        return
    words = cause.describe(decision.size)
    if decision.starts_own_workers or decision.runs_once:  # the script has failed, not a rank
        how = (
            f"failed with {cause.error} (exit code {cause.code})"
            if cause.error
            else f"ended with exit code {cause.code}"
        )
        words = f"{decision.job.program.target} {how}"
    if isinstance(decision.plan, Spawn) and decision.plan.nodes.count > 1 and cause.weight:
        # Another node may have no clearer failure; then this message is all that is known of the cause.
        message = " ".join(cause.message.split()).rstrip(".")
        log(
            f"{words}{message and f': {message}'}. It may follow from a failure on another node; see its log."
        )
        return
    sys.stderr.write(cause.traceback)
    if _needs_events(outcome) and decision.size > 1:
        log(f"the last events of each worker: samestep stacks {os.getpid()}")
    is_of_rank = decision.size > 1 and not decision.starts_own_workers and not decision.runs_once
    effect = "the others were stopped" if is_of_rank else "the run is over"
    log(f"{words}; {effect}{restarts.in_words()}.")


def _trains_alone_in_scratch(decision: Decision, outcome: Outcome) -> bool:
    """Return whether a script, for one worker, trains without spawning it, and has written no file yet."""
    cause = outcome.cause
    return cause is not None and cause.message == TRAINS_ALONE and decision.options.scratch is not None


def _folder_of_script(decision: Decision) -> Path | None:
    """Return the folder in which the first worker of a run with ``--scratch`` writes; None without it."""
    scratch = decision.options.scratch
    return None if scratch is None else scratch / "0"


def _spawn(decision: Decision, spawn: Spawn) -> Outcome:
    """Start the workers of this node, and wait for their end."""
    ended = partial(log_failure, decision)
    job = replace(decision.job, needs_all=not decision.runs_once)
    hosted = job.program.kind != "executable" and fork_is_safe()
    if hosted:
        _import_torch(with_compiler=decision.runs_once and spawn.local > 1)
        hosted = release_compute_threads()
    if (decision.sanitize or decision.count or decision.clocking) and not hosted:
        raise UsageError(
            "--sanitize, --count and --clock need forked workers, and this process cannot fork safely. Start "
            "the workers with torchrun or srun."
        )
    if decision.runs_once and not hosted:
        raise UsageError(
            f"{job.program.target} is a serial script, whose workers are forked, and this process cannot "
            "fork safely (it has other threads, or the system is not Linux). Start it with torchrun or srun."
        )
    watch = monitor(decision, forked=spawn.nodes.count == 1)
    run, once = wrapper(decision), decision.starts_own_workers or decision.has_helpers

    def entry(start: Start, pipe: ReportPipe) -> Report:
        named = filled(job.program, node_rank=start.place.node) if decision.forks_workers else job.program
        program = entry_of(named, hosted=hosted, around=run, watch=watch, joins=not once)
        bind_worker(decision, start.place)
        if decision.script is not None:
            env.export(values_at(decision.script.reads, start.place))
        return program(start, pipe)

    if spawn.nodes.count > 1:
        from samestep.launch.nodes import nodes_backend

        count = 1 if once else spawn.local
        return nodes_backend.run(job, entry, local=count, nodes=spawn.nodes, on_round_end=ended)
    from samestep.launch.local import local_backend

    return local_backend.run(job, entry, local=1 if once else spawn.local, on_round_end=ended, alone=once)


def _import_torch(*, with_compiler: bool = False) -> None:
    """Import torch without collecting garbage; later collections need not visit what this has made.

    Its compiler, which each worker would import for its optimizer, takes more than a second: it is imported
    once for all workers that are forked from this process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with ended_by_interrupt():
            import torch.distributed

            if with_compiler:
                temporary_directory()  # the import needs it
                import torch._dynamo  # noqa: F401
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _run_here(decision: Decision, join: Join) -> NoReturn:
    """Run the program in this process, which a launcher started as a worker."""
    program, place = decision.job.program, join.place
    if not faulthandler.is_enabled():  # the launcher reports no line of a worker that a signal kills
        faulthandler.enable(os.dup(STDERR))
    bind_worker(decision, place)
    env.export(place_variables(place, join.master))
    if decision.script is not None and decision.script.kind == "native":
        env.export(values_beside(decision.script.reads, place, env.snapshot()))
    if program.kind == "executable":
        ending = become(program).ending
    else:
        if place.size > 1 and decision.script is not None and decision.script.kind != "spawns":
            _import_torch()
            from samestep.ranks.world.torch_rendezvous import prepare_groups

            prepare_groups()
        ending = monitor(decision)(partial(wrapper(decision), lambda: host(program)), _failure_writer())
    write_stderr(ending.traceback)
    if ending.exit_code == 0 and decision.must_join and not has_common_group(place.size):
        log(f"error: {SILENT_COPIES.format(size=place.size)}")
        leave(1)
    leave(ending.exit_code)


def run_monitored(decision: Decision, work: Callable[[], None]) -> None:
    """Call `work` in this process, which a launcher started as a worker, under the watchdog."""

    def run() -> Ending:
        work()
        return Ending()

    monitor(decision)(run, _failure_writer())


def _failure_writer() -> Callable[[Ending], None]:
    """Return a function that writes a failure to the present stderr, which the program may redirect later."""
    stderr = os.dup(STDERR)

    def write(ending: Ending) -> None:
        os.write(stderr, ending.traceback.encode())

    return write
