"""Runs a decided job to its end: starts the workers or becomes one, and logs why they failed.

The wrappers around each worker's program, from the outside to the script::

    --device cpu, --scratch     of a script that starts its own workers: around it and them
    its own workers
      --bind
        the record of events
        --sanitize              these four on rank 0 alone, where the other ranks only help
        the check of the group
        --clock
        --count
          --device cpu          of a script that runs on each worker
          no variables of ranks of a serial script that does so
          --scratch
            the script, if it runs once with its helpers

Modules that import torch are imported where they are used: the launcher may run without them.
"""

import faulthandler
import gc
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeAlias

from samestep.base import env, event_record
from samestep.base.console import inform, log, write_stderr
from samestep.base.errors import PREEMPTED, OutOfStep, PeerLost, StepsDiffer, UsageError, WorkerFailed
from samestep.base.folders import temporary_directory
from samestep.base.machine.accelerators import advice_on
from samestep.base.machine.description import cpu_share
from samestep.base.place import Place
from samestep.base.signals import ended_by_interrupt
from samestep.launch.job import STDERR, Job, Program
from samestep.launch.local.child import (
    Around,
    Report,
    ReportPipe,
    Start,
    Watch,
    as_it_is,
    become,
    entry_of,
    has_common_group,
    unwatched,
)
from samestep.launch.local.forking import fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending, host, leave
from samestep.launch.local.local_backend import Outcome, Restarts, place_variables
from samestep.launch.plan import Join, Spawn, agreed_plan, use_interface
from samestep.launch.source.classify import ScriptKind
from samestep.launch.source.launcher_variables import values_at, values_beside
from samestep.launchers.detect import detect
from samestep.launchers.processors import bind, guess_sharing, thread_variables
from samestep.launchers.registry import RANK_VARIABLES, SAMESTEP
from samestep.observe.clock_file import ClockOptions, Kind, has_recorded_its_steps, has_steps
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
    advice = advice_on(cause.message)
    log(f"{words}; {effect}{restarts.in_words()}.{advice and f' {advice}.'}")


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
    runs_alone = decision.is_serial and (decision.has_helpers or spawn.local == 1) and spawn.nodes.count == 1
    job = replace(decision.job, needs_all=not decision.runs_once, finishes=runs_alone)
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
        from samestep.launch import nodes_backend

        count = 1 if once else spawn.local
        return nodes_backend.run(job, entry, local=count, nodes=spawn.nodes, on_round_end=ended)
    from samestep.launch.local import local_backend

    return local_backend.run(
        job, entry, local=1 if once else spawn.local, on_round_end=ended, alone=once or runs_alone
    )


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
    if decision.detected.launcher == SAMESTEP.name:  # it runs its workers under the watchdog already
        work()
        return

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


Wrapper: TypeAlias = Callable[..., Ending]
"""Runs a worker's program, its argument, in ``around``, which has the wrappers inside of this one."""


def wrapper(decision: Decision) -> Around:
    """Return the function that runs each program that is started, with all that the decision asks for."""
    if not decision.forks_workers:
        return _of_worker(decision)
    wrappers: list[Wrapper] = []  # the workers are forked within these
    if decision.options.device == "cpu":
        wrappers.append(partial(_run_on_cpu, gpus=_local(decision)))
    if decision.options.scratch is not None:
        wrappers.append(partial(_run_in_scratch, scratch=decision.options.scratch))
    return _nested(wrappers, _of_spawning_script(decision))


def _nested(wrappers: Sequence[Wrapper], inner: Around) -> Around:
    """Return `inner` in `wrappers`, the first of which is the outermost."""
    for outer in reversed(wrappers):
        inner = partial(outer, around=inner)
    return inner


def _of_spawning_script(decision: Decision) -> Around:
    """Return the function that runs a script which spawns its workers, and starts these."""
    from samestep.run.spawning_script import SpawnedRuns, with_own_workers

    options, clocking = decision.options, decision.clocking
    if clocking is not None:
        clocking = replace(clocking, folder=clocking.folder.absolute())  # the script may change its folder
    needing_fork = {
        "--sanitize": decision.sanitize,
        "--count": decision.count,
        "--clock": clocking,
        "--device cpu": options.device == "cpu",
        "--scratch": options.scratch,
        f"--bind {decision.bind}": decision.bind != "none",
    }
    inner = replace(decision, options=replace(options, device="auto", scratch=None))
    bound = partial(_run_bound, kind=decision.bind)
    how = SpawnedRuns(
        asked=None if decision.job.asked() is None else _local(decision),
        needs_fork=next((name for name, value in needing_fork.items() if value), ""),
        must_spawn=decision.count or clocking is not None,
        around=_nested([bound], _of_worker(inner)),
        again=_nested([bound], _of_worker(replace(inner, clocking=None))),
        has_steps=(lambda _: False) if clocking is None else partial(_has_clocked, clocking),
        watch=partial(_monitor_of_spawned, decision),
        was_stopped=None if clocking is None or clocking.steps is None else partial(_was_stopped, clocking),
    )
    return partial(with_own_workers, how=how)


def _has_clocked(clocking: ClockOptions, ranks: Sequence[int]) -> bool:
    """Return whether workers have recorded steps; remove the files of workers that have not."""
    from samestep.autopilot.files.file_calls import unredirected

    files = [clocking.file_of(rank) for rank in ranks]
    with unredirected():
        have_steps = any(map(has_steps, files))
        for file in () if have_steps else files:
            file.unlink(missing_ok=True)
    return have_steps


def _was_stopped(clocking: ClockOptions, rank: int) -> bool:
    """Return whether a worker was ended after its last recorded step."""
    return has_recorded_its_steps(clocking.file_of(rank))


def _monitor_of_spawned(decision: Decision, count: int) -> Watch:
    """Return the function that runs and watches each of the workers that a script spawns."""
    nodes = decision.plan.nodes.count if isinstance(decision.plan, Spawn) else 1
    return unwatched if count * nodes == 1 else _watched(decision, forked=nodes == 1)


def _local(decision: Decision) -> int:
    """Return the number of workers of this node."""
    return decision.plan.local if isinstance(decision.plan, Spawn) else decision.plan.place.local_size


def _of_worker(decision: Decision) -> Around:
    """Return the function that runs each worker's program, with all that the decision asks for around it."""
    observers, inner = _observers(decision), _running(decision)
    run = _nested(observers, inner)
    if decision.runs_once and not decision.has_helpers:
        run = partial(_on_main_rank, observed=run, as_helper=inner)
    return partial(_recorded, around=run, decision=decision)


def _recorded(run: Callable[[], Ending], *, around: Around, decision: Decision) -> Ending:
    """Run a worker's program in `around`, and record the worker's events."""
    from samestep.run.worker_monitors import recorded

    return recorded(run, around=around, size=decision.size, script=decision.job.program.target)


def _on_main_rank(run: Callable[[], Ending], *, observed: Around, as_helper: Around) -> Ending:
    """Run a script that runs once on rank 0, and help it on the other ranks."""
    is_main = detect(env.snapshot()).place.is_main
    return observed(run) if is_main else as_helper(run)


def _observers(decision: Decision) -> list[Wrapper]:
    """Return the checks and records that the user asked for."""
    wrappers: list[Wrapper] = []
    if decision.sanitize:
        from samestep.run.worker_monitors import sanitized

        wrappers.append(sanitized)
    if decision.must_have_group:
        from samestep.run.worker_monitors import checked_group

        reads = decision.script.reads if decision.script else ()
        wrappers.append(partial(checked_group, reads=reads))
    if decision.clocking is not None:
        from samestep.run.worker_monitors import clocked

        kind, size = _kind(decision), decision.size
        wrappers.append(partial(clocked, clocking=decision.clocking, kind=kind, size=size))
    if decision.count:
        from samestep.run.worker_monitors import counted

        wrappers.append(partial(counted, native=not decision.runs_once))
    return wrappers


def monitor(decision: Decision, *, forked: bool = False) -> Watch:
    """Return the function that runs each worker's program under the watchdog, if there is one.

    `forked` is whether all workers are forked from this process.
    """
    if decision.size == 1 or decision.starts_own_workers or decision.runs_once:
        return unwatched
    return _watched(decision, forked=forked)


def _watched(decision: Decision, *, forked: bool) -> Watch:
    if not decision.hang_timeout_s:
        return unwatched
    from samestep.run.worker_monitors import watchdog

    return watchdog(limit_s=decision.hang_timeout_s, forked=forked)


def _running(decision: Decision) -> Around:
    """Return the function that runs a serial script with its helpers, and other programs as they are."""
    options = decision.options
    if decision.is_serial and (decision.runs_once or options.device != "auto"):
        from samestep.autopilot.once_script import run_launched, run_once

        if decision.has_helpers or decision.size == 1:
            return partial(run_once, size=decision.size, timeout_s=decision.hang_timeout_s, options=options)
        return partial(run_launched, timeout_s=decision.hang_timeout_s, options=options)
    wrappers: list[Wrapper] = []
    if options.device == "cpu":
        wrappers.append(_run_on_cpu)
    if decision.is_serial:
        wrappers.append(_run_as_one_process)
    if options.scratch is not None:
        wrappers.append(partial(_run_in_scratch, scratch=options.scratch))
    return _nested(wrappers, as_it_is)


def _kind(decision: Decision) -> Kind:
    if decision.runs_once:
        return "once"
    return "serial" if decision.is_serial else "native"


def _run_as_one_process(run: Callable[[], Ending], *, around: Around) -> Ending:
    """Run a serial script in `around`, without the variables of a rank."""
    with env.hidden(RANK_VARIABLES):
        return around(run)


def _run_in_scratch(run: Callable[[], Ending], *, around: Around, scratch: Path) -> Ending:
    """Run a worker's program in `around`, and redirect what it writes to one folder of all workers."""
    from samestep.autopilot.files.overlay_files import writing_to

    with writing_to(scratch / "0"):
        return around(run)


def _run_bound(run: Callable[[], Ending], *, around: Around, kind: str) -> Ending:
    """Run a spawned worker's program in `around`, bound to the worker's cores."""
    environment = env.snapshot()
    bind(kind, detect(environment).place, environment, shared=True)
    return around(run)


def _run_on_cpu(run: Callable[[], Ending], *, around: Around, gpus: int | None = None) -> Ending:
    """Run a native program in `around`; names of GPUs and of NCCL mean the CPU and Gloo."""
    from samestep.autopilot.script.devices import gloo_on_cpu

    with gloo_on_cpu(gpus=gpus):
        return around(run)
