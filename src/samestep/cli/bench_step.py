"""Implements ``samestep bench step``, which measures training steps with each gradient synchronizer."""

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.record import json_line
from samestep.base.units import check_seconds
from samestep.cli import options
from samestep.cli.bench_common import decide_bench, exit_on_timeout
from samestep.cli.options import option
from samestep.cli.progress import progress_bar
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments
from samestep.launch.plan import Spawn
from samestep.run.execution import start_own
from samestep.run.worker_binding import bind_worker
from samestep.studies.bench.request import SYNCS

if TYPE_CHECKING:
    from samestep.ranks.world.protocol import World
    from samestep.studies.bench.synchronizers import Problem


@with_secret_file
def step(
    *,
    workers: options.Workers = None,
    threads: options.Threads = None,
    bind: options.Bind = "none",
    model: Annotated[str, options.MODEL] = "convnet",
    batch_per_worker: Annotated[int, options.BATCH_PER_WORKER] = 16,
    sync: Annotated[
        str | None,
        option(
            "NAME,..", f"Synchronizers to measure: {', '.join(SYNCS)}. Default: all that the workers can run."
        ),
    ] = None,
    seconds: Annotated[float, option("S", "Seconds to measure.")] = 60.0,
    timeout: Annotated[float, option("S", "Seconds after which a measurement is reported as stuck.")] = 120.0,
    as_json: options.AsJson = False,
) -> None:
    """Measure training steps with each gradient synchronizer, interleaved.

    Efficiency compares with the same workers computing at the same time without communication, in the same
    run. Batch norm is local, as in torch's DDP. Under srun, mpirun or torchrun the launcher's tasks are the
    workers; otherwise -n of them start here. --json prints one object per line, for each synchronizer.
    """
    names = _names(sync)
    check_seconds("--seconds", seconds)
    check_seconds("--timeout", timeout)
    decision = decide_bench(workers, threads, bind)
    from samestep.studies.bench.synchronizers import Problem

    problem = Problem(model=model, batch_per_worker=batch_per_worker)
    if isinstance(decision.plan, Spawn):
        _refuse_without_gpus(names, decision.size)
        flags = {
            "model": model,
            "batch_per_worker": batch_per_worker,
            "sync": sync,
            "seconds": seconds,
            "timeout": timeout,
        }
        arguments = ["bench", "step", *as_arguments(flags), *(["--json"] if as_json else [])]
        raise typer.Exit(start_own(decision, arguments))
    bind_worker(decision, decision.detected.place)
    _work(problem, names, seconds=seconds, timeout_s=timeout, threads=threads, as_json=as_json)


def _names(sync: str | None) -> list[str]:
    names = [] if sync is None else [name.strip() for name in sync.split(",")]
    for name in names:
        if name not in SYNCS:
            raise UsageError(f"--sync {name!r} is not one of {', '.join(SYNCS)}.")
    return names


def _refuse_without_gpus(names: list[str], size: int) -> None:
    """Refuse data_parallel without a GPU for each worker here, before each worker does."""
    from samestep.studies.bench.synchronizers import NEEDS

    if "data_parallel" in names and (found := accelerator_count()) < size:
        raise UsageError(
            f"--sync data_parallel needs {NEEDS['data_parallel']}. This node has {found} for {size} workers; "
            "choose another synchronizer."
        )


def chosen(world: "World", names: list[str]) -> list[str]:
    """Return the synchronizers to measure: those in `names`, or all that the workers can run.

    If the workers cannot run one of them, rank 0 logs an error and the result is empty.

    Args:
        world: the workers; all of them call this.
        names: the user's choice; empty for all.
    """
    from samestep.studies.bench.synchronizers import ALONE, NEEDS, ways_here

    can = [name for name in ways_here(world) if name != ALONE]
    missing = next((name for name in names if name not in can), None)
    if missing is None:
        return names or can
    error = f"error: --sync {missing} needs {NEEDS[missing]}. These workers can run: {', '.join(can)}."
    world.on_main(lambda: log(error))
    return []


def _work(
    problem: "Problem",
    names: list[str],
    *,
    seconds: float,
    timeout_s: float,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure, as one of the workers."""
    from samestep.ranks.world.join import join
    from samestep.studies.bench.step_text import step_answer, step_table
    from samestep.studies.bench.step_times import measure
    from samestep.studies.bench.time_limit import Limit

    with join(threads=threads) as world:
        names = chosen(world, names)
        if not names:  # on every rank; rank 0 has logged the reason
            raise typer.Exit(2)
        end = partial(exit_on_timeout, place=world.place, timeout_s=timeout_s)
        with progress_bar(None, shown=world.place.is_main) as done, Limit(timeout_s, end) as limit:
            rows = measure(
                world,
                problem,
                names,
                seconds=seconds,
                done=done,
                around=lambda name: limit.of(f"steps with {name}"),
            )
        lines = [json_line(asdict(row)).rstrip() for row in rows]
        if not as_json:
            each = f"{problem.model}, {problem.batch_per_worker} samples each on {world.place.size} workers"
            lines = [each, *step_table(rows), step_answer(rows)]
        world.print("\n".join(lines))
        sys.stdout.flush()
