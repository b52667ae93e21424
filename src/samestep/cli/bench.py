"""Implements ``samestep bench``, which measures collectives and training steps."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base.console import inform, log, progress_bar
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.record import json_line
from samestep.base.units import bytes_text, check_seconds
from samestep.cli.help_text import help_of
from samestep.cli.options import launch, results
from samestep.cli.options.declare import RESULTS_PANEL, as_arguments, grouped, option, switch
from samestep.launch.job import Job
from samestep.launch.plan import Spawn
from samestep.ranks.collectives.algorithm_choice import Measured
from samestep.run.decision import Decision
from samestep.run.execution import OWN_PROGRAM, bind_worker, decide_own, start_own
from samestep.studies.bench.request import (
    ALONE,
    COLLECTIVES,
    DTYPES,
    SYNCS,
    Request,
    chosen,
    names_of,
    sizes_of,
)
from samestep.studies.bench.time_limit import Limit, exit_on_timeout
from samestep.studies.report.write import write_figures, write_text

if TYPE_CHECKING:
    from samestep.ranks.world.protocol import World
    from samestep.studies.bench.measurement import Report
    from samestep.studies.bench.synchronizers import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """The options of the duration of a measurement."""

    seconds: Annotated[float, option("S", "Seconds to measure (a collective: each size).")] = 2.0
    hang_timeout: Annotated[float, option("S", "Seconds after which a call is reported as stuck.")] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(results.Output):
    """The options of the results of a collective."""

    save: Annotated[
        bool,
        switch("Store the fastest all-reduce for each size, for --algorithm auto.", RESULTS_PANEL, "--save"),
    ] = False
    plot: Annotated[Path | None, option("FILE.svg", "Plot times over sizes.", RESULTS_PANEL)] = None

    def check_for(self, request: Request) -> None:
        """Raise an error if the results of `request` cannot be stored like this."""
        if self.save and request.collective != "all_reduce":
            raise UsageError("--save is for all-reduce, the only collective with a choice of algorithm.")
        if self.save and request.dtype != "float32":
            raise UsageError(f"--save needs --dtype float32, not {request.dtype}; leave out one of the two.")
        if self.plot is not None and (self.plot.suffix != ".svg" or not self.plot.parent.is_dir()):
            raise UsageError(
                f"--plot {self.plot} is not a .svg file in an existing folder; give another name."
            )


_STEP_DURATION = Duration(seconds=60.0, hang_timeout=120.0)

bench = typer.Typer(help="Measure the time of collectives and of training steps on the present workers.")


def command_for(collective: str) -> Callable[..., None]:
    """Return the command that measures one collective."""
    spelled = collective.replace("_", "-")

    def command(
        *,
        start: launch.Workers,
        sizes: Annotated[str | None, option("SIZE,..", "Sizes to measure, such as 4,64K,25MiB.")] = None,
        min_size: Annotated[str | None, option("SIZE", "Smallest size. Default: 4 B.", "", "--min")] = None,
        max_size: Annotated[
            str | None, option("SIZE", "Largest size. Default: 256 MiB.", "", "--max")
        ] = None,
        algorithm: Annotated[
            str | None, option("NAME,..", "Algorithms to measure. Default: all that the workers can run.")
        ] = None,
        dtype: Annotated[str, option("", f"Type of the elements: {', '.join(DTYPES)}.")] = "float32",
        rounds: Annotated[
            int | None, option("R", "Rounds per size. Default: as many as fit into --seconds.")
        ] = None,
        duration: Duration,
        output: Output,
        quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    ) -> None:
        request = Request(
            collective=collective,
            sizes=sizes_of(sizes, min_size, max_size),
            algorithms=names_of(algorithm),
            dtype=dtype,
            rounds=rounds,
            seconds=duration.seconds,
            timeout_s=duration.hang_timeout,
        )
        output.check_for(request)
        flags = {
            "sizes": ",".join(map(str, request.sizes)),
            "algorithm": ",".join(request.algorithms) or None,
            "dtype": dtype,
            "rounds": rounds,
            **asdict(duration),
            "plot": output.plot,
            "figures": output.figures,
            "save": output.save or None,
            "json": output.as_json or None,
        }
        decision = _decide(start)
        if decision.is_main:
            output.check()
        if isinstance(decision.plan, Spawn):
            _refuse_unknown(request)
        _start_or_bind(decision, ["bench", spelled, *as_arguments(flags)])
        _work(request, output, threads=start.threads)

    command.__doc__ = f"""Measure the algorithms of {spelled}, interleaved.

    Results are first compared with float64; an algorithm with wrong results is not timed, and the exit code
    is 1. Under srun, mpirun or torchrun the launcher's tasks are the workers; otherwise -n of them start
    here. --json prints one object per line, for each algorithm and size.
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
            "NAME,..", f"Synchronizers to measure: {', '.join(SYNCS)}. Default: all that the workers can run."
        ),
    ] = None,
    duration: Duration = _STEP_DURATION,
    as_json: results.AsJson = False,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
) -> None:
    """Measure training steps with each gradient synchronizer, interleaved.

    Efficiency compares with the same workers computing at the same time without communication, in the same
    run. Batch norm is local, as in torch's DDP. Under srun, mpirun or torchrun the launcher's tasks are the
    workers; otherwise -n of them start here. --json prints one object per line, for each synchronizer.
    """
    names = [] if sync is None else [name.strip() for name in sync.split(",")]
    if unknown := next((name for name in names if name not in SYNCS), None):
        raise UsageError(f"--sync {unknown!r} is not one of {', '.join(SYNCS)}.")
    check_seconds("--seconds", duration.seconds)
    check_seconds("--hang-timeout", duration.hang_timeout)
    decision = _decide(start)
    from samestep.studies.bench.synchronizers import Problem

    problem = Problem(model=model, batch_per_worker=batch_per_worker)
    if isinstance(decision.plan, Spawn):
        _refuse_without_gpus(names, decision.size)
    flags = {"model": model, "batch_per_worker": batch_per_worker, "sync": sync, **asdict(duration)}
    _start_or_bind(decision, ["bench", "step", *as_arguments(flags | {"json": as_json or None})])
    _measure_steps(problem, names, duration, threads=start.threads, as_json=as_json)


for _name in COLLECTIVES:
    _spelled = _name.replace("_", "-")
    _command = command_for(_name)
    bench.command(_spelled, help=help_of(_command), short_help=f"Measure {_spelled}.")(_command)
_summary = "Measure training steps with each gradient synchronizer."
bench.command(help=help_of(step), short_help=_summary)(step)


def _decide(start: launch.Workers) -> Decision:
    """Decide how a benchmark runs; it needs two workers."""
    job = Job(program=OWN_PROGRAM, workers=start.workers)
    decision = decide_own(job, threads=start.threads, bind=start.bind)
    if decision.size < 2:
        raise UsageError("one worker has no communication; give -n 2 or more, or start several tasks.")
    return decision


def _start_or_bind(decision: Decision, arguments: Sequence[str]) -> None:
    """Start the workers with `arguments` and exit, or bind this process, which is one of them."""
    if isinstance(decision.plan, Spawn):
        raise typer.Exit(start_own(decision, arguments))
    bind_worker(decision, decision.detected.place)


def _refuse_unknown(request: Request) -> None:
    """Refuse an unknown algorithm here, before each worker does."""
    from samestep.studies.bench.cases import COLLECTIVES as CASES

    chosen(request.algorithms, list(CASES[request.collective].algorithms), request.collective)


def _refuse_without_gpus(names: list[str], size: int) -> None:
    """Refuse data_parallel without a GPU for each worker here, before each worker does."""
    from samestep.studies.bench.synchronizers import NEEDS

    if "data_parallel" in names and (found := accelerator_count()) < size:
        raise UsageError(
            f"--sync data_parallel needs {NEEDS['data_parallel']}. This node has {found} for {size} workers; "
            "choose another synchronizer."
        )


def _work(request: Request, output: Output, *, threads: int | None) -> None:
    """Measure a collective, as one of the workers."""
    from samestep.ranks.world.join import join
    from samestep.studies.bench.measurement import perform, pieces

    with join(threads=threads) as world:
        with progress_bar(pieces(request), shown=world.place.is_main) as done:
            end = partial(exit_on_timeout, place=world.place, timeout_s=request.timeout_s)
            report = perform(world, request, done=done, give_up=end)
        # The other ranks wait for this: the first exit code of 1 stops all ranks, also one that still prints.
        world.on_main(lambda: _output(report, request, world, output))
    if report.wrong:
        raise typer.Exit(1)


def _output(report: "Report", request: Request, world: "World", output: Output) -> None:
    from samestep.studies.bench.figures import crossovers
    from samestep.studies.bench.text import chart, report_text

    if report.rows and output.as_json:
        print("\n".join(json_line(row.as_dict()) for row in report.rows), flush=True)
    elif report.rows:
        print(report_text(report, request, world.place.size), flush=True)
    for one in report.wrong:
        log(f"{one.algorithm} is wrong at {bytes_text(one.bytes)}, and was not timed: {one.problem}")
    if output.plot is not None and report.rows:
        inform(f"plot: {write_text(output.plot, chart(report, request, world.place.size).svg())}")
    if output.figures is not None and report.rows:
        inform(write_figures([chart(report, request, world.place.size)], output.figures))
    if output.save and report.rows:
        measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
        first = [(nbytes, names[0]) for nbytes, names in crossovers(report.rows)]
        inform(f"stored for --algorithm auto: {measured.save(first)}")


def _measure_steps(
    problem: "Problem", names: list[str], duration: Duration, *, threads: int | None, as_json: bool
) -> None:
    """Measure training steps, as one of the workers."""
    from samestep.ranks.world.join import join
    from samestep.studies.bench.step_times import measure
    from samestep.studies.bench.text import STEP_HEAD, step_answer, step_cells
    from samestep.studies.report.page import text_table

    with join(threads=threads) as world:
        names = chosen_synchronizers(world, names)
        if not names:  # on every rank; rank 0 has logged the reason
            raise typer.Exit(2)
        end = partial(exit_on_timeout, place=world.place, timeout_s=duration.hang_timeout)
        with (
            progress_bar(None, shown=world.place.is_main) as done,
            Limit(duration.hang_timeout, end) as limit,
        ):
            rows = measure(
                world,
                problem,
                names,
                seconds=duration.seconds,
                done=done,
                around=lambda name: limit.of(f"steps with {name}"),
            )
        lines = [json_line(asdict(row)) for row in rows]
        if not as_json:
            each = f"{problem.model}, {problem.batch_per_worker} samples each on {world.place.size} workers"
            lines = [each, *text_table(STEP_HEAD, step_cells(rows)), step_answer(rows)]
        world.print("\n".join(lines))


def chosen_synchronizers(world: "World", names: list[str]) -> list[str]:
    """Return the synchronizers to measure: those in `names`, or all that the workers can run.

    If they cannot run one of them, rank 0 logs an error and the result is empty. All workers call this.
    """
    from samestep.studies.bench.synchronizers import NEEDS, ways_here

    can = [name for name in ways_here(world) if name != ALONE]
    missing = next((name for name in names if name not in can), None)
    if missing is None:
        return names or can
    error = f"error: --sync {missing} needs {NEEDS[missing]}. These workers can run: {', '.join(can)}."
    world.on_main(lambda: log(error))
    return []
