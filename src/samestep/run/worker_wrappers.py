"""Chooses the wrappers around each worker's program, from the outside to the script.

::

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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from samestep.base import env
from samestep.launch.local.child import Around, Watch, as_it_is, unwatched
from samestep.launch.local.hosting import Ending
from samestep.launch.plan import Spawn
from samestep.launchers.detect import detect
from samestep.launchers.processors import bind
from samestep.launchers.registry import RANK_VARIABLES
from samestep.observe.clock.clock_file import ClockOptions, Kind, has_recorded_its_steps, has_steps
from samestep.run.decision import Decision

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
