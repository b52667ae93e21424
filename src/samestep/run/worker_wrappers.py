"""Chooses the wrappers around each worker's program: splitting, counting, the clock and the checks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from samestep.base import env
from samestep.launch.local.hosting import Ending
from samestep.launch.local.programs import Around, Watch, as_it_is, unwatched
from samestep.launch.plan import Spawn
from samestep.launchers.binding import bind
from samestep.launchers.detect import detect
from samestep.launchers.registry import RANK_VARIABLES
from samestep.observe.clock.clock_file import ClockOptions, Kind, has_recorded_its_steps, has_steps
from samestep.run.decision import Decision

# Modules that import torch are imported where they are used: the launcher may run without them.


def wrapper(decision: Decision) -> Around:
    """Return the function that runs each program that is started, with all that the decision asks for."""
    if not decision.forks_workers:
        return _of_worker(decision)
    # The workers are forked within these.
    around = _of_spawning_script(decision)
    if decision.options.scratch is not None:
        around = partial(_run_in_scratch, around=around, scratch=decision.options.scratch)
    if decision.options.device == "cpu":
        around = partial(_run_on_cpu, around=around, gpus=_local(decision))
    return around


def _of_spawning_script(decision: Decision) -> Around:
    """Return the function that runs a script which spawns its workers, and starts these."""
    from samestep.run.spawning_script import SpawnedRuns, with_own_workers

    options, clocking = decision.options, decision.clocking
    if clocking is not None:
        clocking = replace(clocking, folder=clocking.folder.absolute())  # the script may change its folder
    given = {
        "--sanitize": decision.sanitize,
        "--count": decision.count,
        "--clock": clocking,
        "--device cpu": options.device == "cpu",
        "--scratch": options.scratch,
        f"--bind {decision.bind}": decision.bind != "none",
    }
    inner = replace(decision, options=replace(options, device="auto", scratch=None))
    how = SpawnedRuns(
        asked=None if decision.job.asked() is None else _local(decision),
        needs_fork=next((name for name, value in given.items() if value), ""),
        must_spawn=decision.count or clocking is not None,
        around=partial(_run_bound, around=_of_worker(inner), kind=decision.bind),
        again=partial(_run_bound, around=_of_worker(replace(inner, clocking=None)), kind=decision.bind),
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
        found = any(map(has_steps, files))
        for file in () if found else files:
            file.unlink(missing_ok=True)
    return found


def _was_stopped(clocking: ClockOptions, rank: int) -> bool:
    """Return whether a worker was ended after its last recorded step."""
    return has_recorded_its_steps(clocking.file_of(rank))


def _monitor_of_spawned(decision: Decision, count: int) -> Watch:
    """Return the function that runs and watches each of the workers that a script spawns."""
    nodes = decision.plan.nodes.count if isinstance(decision.plan, Spawn) else 1
    return unwatched if count * nodes == 1 else _watched(decision, forked=count if nodes == 1 else None)


def _local(decision: Decision) -> int:
    """Return the number of workers of this node."""
    return decision.plan.local if isinstance(decision.plan, Spawn) else decision.plan.place.local_size


def _of_worker(decision: Decision) -> Around:
    """Return the function that runs each worker's program, with all that the decision asks for around it."""
    inner = _running(decision)
    if decision.runs_once and not decision.has_helpers:
        return partial(_on_main_rank, around=_observed(decision, inner), as_helper=inner)
    return _observed(decision, inner)


def _on_main_rank(run: Callable[[], Ending], *, around: Around, as_helper: Around) -> Ending:
    """Run a script that runs once in `around` on rank 0, and help it on the other ranks."""
    is_main = detect(env.snapshot()).place.is_main
    return around(run) if is_main else as_helper(run)


def _observed(decision: Decision, inner: Around) -> Around:
    """Return `inner` within the checks and records that the user asked for."""
    if decision.count:
        from samestep.run.worker_monitors import counted

        inner = partial(counted, around=inner, native=not decision.runs_once)
    if decision.clocking is not None:
        from samestep.run.worker_clock import clocked

        kind = _kind(decision)
        inner = partial(clocked, around=inner, clocking=decision.clocking, kind=kind, size=decision.size)
    if decision.must_have_group:
        from samestep.run.worker_monitors import checked_group

        reads = decision.script.reads if decision.script else ()
        inner = partial(checked_group, around=inner, reads=reads)
    if not decision.sanitize:
        return inner
    from samestep.run.worker_monitors import sanitized

    return partial(sanitized, around=inner)


def monitor(decision: Decision, *, forked: int | None = None) -> Watch:
    """Return the function that runs each worker's program under the watchdog, if there is one.

    `forked` is the number of workers that are forked from this process, if these are all.
    """
    if decision.size == 1 or decision.starts_own_workers or decision.runs_once:
        return unwatched
    return _watched(decision, forked=forked)


def _watched(decision: Decision, *, forked: int | None) -> Watch:
    if not decision.hang_timeout_s:
        return unwatched
    from samestep.run.worker_monitors import watchdog

    return watchdog(limit_s=decision.hang_timeout_s, forked=forked)


def _running(decision: Decision) -> Around:
    """Return the function that runs a serial script with its helpers, and other programs as they are."""
    options = decision.options
    as_given = as_it_is
    if options.scratch is not None:
        as_given = partial(_run_in_scratch, around=as_it_is, scratch=options.scratch)
    if not decision.is_serial:
        return partial(_run_on_cpu, around=as_given) if options.device == "cpu" else as_given
    if not decision.runs_once and options.device == "auto":
        return partial(_run_as_one_process, around=as_given)
    from samestep.autopilot.once_script import run_launched, run_once

    if decision.has_helpers or decision.size == 1:
        return partial(run_once, size=decision.size, timeout_s=decision.hang_timeout_s, options=options)
    return partial(run_launched, timeout_s=decision.hang_timeout_s, options=options)


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
    from samestep.autopilot.script.redirected_output import writing_to

    with writing_to(scratch / "0"):
        return around(run)


def _run_bound(run: Callable[[], Ending], *, around: Around, kind: str) -> Ending:
    """Run a spawned worker's program in `around`, bound to the worker's cores."""
    environment = env.snapshot()
    bind(kind, detect(environment).place, environment, shared=True)
    return around(run)


def _run_on_cpu(run: Callable[[], Ending], *, around: Around, gpus: int | None = None) -> Ending:
    """Run a native program in `around`; names of GPUs and of NCCL mean the CPU and Gloo."""
    from samestep.autopilot.script.gloo_on_cpu import gloo_on_cpu

    with gloo_on_cpu(gpus=gpus):
        return around(run)
