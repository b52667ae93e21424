"""Implements ``samestep bench``, which measures collectives and training steps."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base.console import log, progress_bar
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import check_seconds
from samestep.bench.figures import ALONE, COLLECTIVES, SYNCS, Request, sizes_of
from samestep.cli.failures import exit_with
from samestep.cli.help_text import help_of
from samestep.cli.options import launch, results
from samestep.cli.options.declare import as_arguments, grouped, option
from samestep.launch.job import Job
from samestep.launch.plan import Spawn
from samestep.run.decision import Decision, with_checks
from samestep.run.execution import OWN_PROGRAM, bind_worker, decide_own, run_monitored, start_own

if TYPE_CHECKING:
    from samestep.bench.step_times import Problem
    from samestep.ranks.world.protocol import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """The options of the duration of a measurement."""

    seconds: Annotated[float, option("S", "Seconds to measure: a collective at each size, or all steps.")] = (
        2.0
    )
    hang_timeout: Annotated[float, launch.HANG_TIMEOUT] = 60.0


_STEP_DURATION = Duration(seconds=60.0)  # a step takes far longer than a collective

bench = typer.Typer(help="Measure the time of collectives and of training steps on the present workers.")


def command_for(collective: str) -> Callable[..., None]:
    """Return the command that measures one collective."""
    spelled = collective.replace("_", "-")

    def command(
        *,
        start: launch.Workers,
        sizes: Annotated[str | None, option("SIZE,..", "Sizes to measure, such as 4,64K,25MiB.")] = None,
        duration: Duration,
        as_json: results.AsJson = False,
        quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    ) -> None:
        request = Request(collective=collective, sizes=sizes_of(sizes), seconds=duration.seconds)
        decision = _decide(start, duration)
        flags = {"sizes": sizes, **asdict(duration), "json": as_json or None}
        work = partial(_measure_collective, request, threads=start.threads, as_json=as_json)
        _start_or_work(decision, ["bench", spelled, *as_arguments(flags)], work, as_json=as_json)

    command.__doc__ = f"""Measure the algorithms of {spelled}, interleaved.

    Under srun, mpirun or torchrun the launcher's tasks are the workers; otherwise -n of them start here.
    --json prints one array, with an object for each algorithm and size.
    """
    return grouped(command)


@grouped
def step(
    *,
    start: launch.Workers,
    model: Annotated[str, results.MODEL] = "convnet",
    batch_per_worker: Annotated[int, results.BATCH_PER_WORKER] = 16,
    sync: Annotated[
        str | None,
        option(
            "NAME,..",
            f"Synchronizers to measure: {', '.join(SYNCS)}. Default: all that the workers can run.",
            choices=SYNCS,
        ),
    ] = None,
    duration: Duration = _STEP_DURATION,
    as_json: results.AsJson = False,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
) -> None:
    """Measure training steps with each gradient synchronizer, interleaved.

    Efficiency compares with the same workers computing at the same time without communication, in the same
    run. Batch norm is local, as in torch's DDP. Under srun, mpirun or torchrun the launcher's tasks are the
    workers; otherwise -n of them start here. --json prints one array, with an object for each synchronizer.
    """
    names = [] if sync is None else [name.strip() for name in sync.split(",")]
    if unknown := next((name for name in names if name not in SYNCS), None):
        raise UsageError(f"--sync {unknown!r} is not one of {', '.join(SYNCS)}.")
    check_seconds("--seconds", duration.seconds)
    decision = _decide(start, duration)
    from samestep.bench.step_times import Problem

    problem = Problem(model=model, batch_per_worker=batch_per_worker)
    flags = {"model": model, "batch_per_worker": batch_per_worker, "sync": sync, **asdict(duration)}
    arguments = ["bench", "step", *as_arguments(flags | {"json": as_json or None})]
    work = partial(
        _measure_steps, problem, names, seconds=duration.seconds, threads=start.threads, as_json=as_json
    )
    _start_or_work(decision, arguments, work, as_json=as_json)


for _name in COLLECTIVES:
    _spelled = _name.replace("_", "-")
    _command = command_for(_name)
    bench.command(_spelled, help=help_of(_command), short_help=f"Measure {_spelled}.")(_command)
_summary = "Measure training steps with each gradient synchronizer."
bench.command(help=help_of(step), short_help=_summary)(step)


def _decide(start: launch.Workers, duration: Duration) -> Decision:
    """Decide how a benchmark runs; it needs two workers."""
    job = Job(program=OWN_PROGRAM, workers=start.workers)
    decision = decide_own(job, threads=start.threads, bind=start.bind)
    if decision.size < 2:
        raise UsageError("one worker has no communication; give -n 2 or more, or start several tasks.")
    return with_checks(decision, hang_timeout=duration.hang_timeout, oversubscribe=start.oversubscribe)


def _start_or_work(
    decision: Decision, arguments: Sequence[str], work: Callable[[], None], *, as_json: bool
) -> None:
    """Start the workers with `arguments` and exit, or call `work` in this process, which is one of them."""
    if isinstance(decision.plan, Spawn):
        exit_with(start_own(decision, arguments), as_json=as_json)
    bind_worker(decision, decision.detected.place)
    run_monitored(decision, work)


def _measure_collective(request: Request, *, threads: int | None, as_json: bool) -> None:
    """Measure a collective, as one of the workers."""
    from samestep.bench.figures import report_text
    from samestep.bench.measurement import perform
    from samestep.ranks.world.join import join

    with join(threads=threads) as world:
        with progress_bar(len(request.sizes), shown=world.place.is_main) as done:
            rows = perform(world, request, done=done)
        world.print(json_line([row.as_dict() for row in rows]) if as_json else report_text(rows))


def _measure_steps(
    problem: "Problem", names: list[str], *, seconds: float, threads: int | None, as_json: bool
) -> None:
    """Measure training steps, as one of the workers."""
    from samestep.bench.figures import STEP_HEAD, fastest_synchronizer, step_cells
    from samestep.bench.step_times import measure
    from samestep.ranks.world.join import join
    from samestep.report.page import text_table

    with join(threads=threads) as world:
        names = chosen_synchronizers(world, names)
        if not names:  # on every rank; rank 0 has logged the reason
            exit_with(UsageError.exit_code, as_json=as_json)
        with progress_bar(None, shown=world.place.is_main) as done:
            rows = measure(world, problem, names, seconds=seconds, done=done)
        if as_json:
            world.print(json_line([asdict(row) for row in rows]))
            return
        lines = [*text_table(STEP_HEAD, step_cells(rows)), "", f"fastest: {fastest_synchronizer(rows)}"]
        world.print("\n".join(lines))


def chosen_synchronizers(world: "World", names: list[str]) -> list[str]:
    """Return the synchronizers to measure: those in `names`, or all that the workers can run.

    If they cannot run one of them, rank 0 logs an error and the result is empty. All workers call this.
    """
    from samestep.bench.step_times import NEEDS, ways_here

    can = [name for name in ways_here(world) if name != ALONE]
    missing = next((name for name in names if name not in can), None)
    if missing is None:
        return names or can
    error = f"error: --sync {missing} needs {NEEDS[missing]}. These workers can run: {', '.join(can)}."
    world.on_main(lambda: log(error))
    return []
