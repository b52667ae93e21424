"""Implements ``samestep bench``, which measures collectives and training steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import bytes_text
from samestep.cli import options
from samestep.cli.bench_common import decide_bench, exit_on_timeout
from samestep.cli.bench_step import step
from samestep.cli.options import option, switch
from samestep.cli.progress import progress_bar
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments
from samestep.launch.plan import Spawn
from samestep.ranks.collectives.algorithm_choice import Measured
from samestep.run.execution import start_own
from samestep.run.worker_binding import bind_worker
from samestep.studies.bench.request import COLLECTIVES, DTYPES, Request, chosen, names_of, sizes_of
from samestep.studies.report.drawing import Chart
from samestep.studies.report.write import write_figures, write_text

if TYPE_CHECKING:
    from samestep.ranks.world.protocol import World
    from samestep.studies.bench.measurement import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The forms in which measurements are printed and stored.

    Args:
        plot: file for a chart; None for no chart.
        figures: folder for a chart as SVG, PDF and PNG; None for none.
        as_json: whether JSON is printed instead of a table.
        save: whether the fastest algorithms are stored for ``--algorithm auto``.
    """

    plot: Path | None
    figures: Path | None
    as_json: bool
    save: bool


bench = typer.Typer(help="Measure the time of collectives and of training steps on the present workers.")


def command_for(collective: str) -> Callable[..., None]:
    """Return the command that measures one collective."""

    def command(
        *,
        workers: options.Workers = None,
        threads: options.Threads = None,
        bind: options.Bind = "none",
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
        seconds: Annotated[float, option("S", "Seconds to measure each size.")] = 2.0,
        timeout: Annotated[float, option("S", "Seconds after which a call is reported as stuck.")] = 30.0,
        save: Annotated[
            bool,
            switch(
                "Store the fastest all-reduce for each size, for --algorithm auto.",
                options.RESULTS_PANEL,
                "--save",
            ),
        ] = False,
        plot: Annotated[
            Path | None, option("FILE.svg", "Plot times over sizes.", options.RESULTS_PANEL)
        ] = None,
        figures: options.Figures = None,
        as_json: options.AsJson = False,
    ) -> None:
        request = Request(
            collective=collective,
            sizes=sizes_of(sizes, min_size, max_size),
            algorithms=names_of(algorithm),
            dtype=dtype,
            rounds=rounds,
            seconds=seconds,
            timeout_s=timeout,
        )
        if save and collective != "all_reduce":
            raise UsageError("--save is for all-reduce, the only collective with a choice of algorithm.")
        if save and dtype != "float32":
            raise UsageError(f"--save needs --dtype float32, not {dtype}; leave out one of the two.")
        if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
            raise UsageError(f"--plot {plot} is not a .svg file in an existing folder; give another name.")
        decision = decide_bench(workers, threads, bind)
        if decision.is_main:
            options.refuse_unwritable("--figures", figures)
        if isinstance(decision.plan, Spawn):
            _refuse_unknown(request)
            flags = {
                "sizes": ",".join(map(str, request.sizes)),
                "algorithm": ",".join(request.algorithms) or None,
                "dtype": dtype,
                "rounds": rounds,
                "seconds": seconds,
                "timeout": timeout,
                "plot": plot,
                "figures": figures,
            }
            words = as_arguments(flags) + ["--json"] * as_json + ["--save"] * save
            raise typer.Exit(start_own(decision, ["bench", _spelled(collective), *words]))
        bind_worker(decision, decision.detected.place)
        output = Output(plot=plot, figures=figures, as_json=as_json, save=save)
        _work(request, output, threads=threads)

    command.__doc__ = f"""Measure the algorithms of {_spelled(collective)}, interleaved.

    Results are first compared with float64; an algorithm with wrong results is not timed, and the exit code
    is 1. Under srun, mpirun or torchrun the launcher's tasks are the workers; otherwise -n of them start
    here. --json prints one object per line, for each algorithm and size.
    """
    return with_secret_file(command)


def _spelled(collective: str) -> str:
    return collective.replace("_", "-")


for _name in COLLECTIVES:
    bench.command(_spelled(_name), short_help=f"Measure {_spelled(_name)}.")(command_for(_name))
bench.command("step", short_help="Measure training steps with each gradient synchronizer.")(step)


def _refuse_unknown(request: Request) -> None:
    """Refuse an unknown algorithm here, before each worker does."""
    from samestep.studies.bench.cases import COLLECTIVES as CASES

    chosen(request.algorithms, list(CASES[request.collective].algorithms), request.collective)


def _work(request: Request, output: Output, *, threads: int | None) -> None:
    """Measure, as one of the workers."""
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
    ranks = world.place.size
    if report.rows:
        print(_text(report, request, ranks, as_json=output.as_json), flush=True)
    for one in report.wrong:
        log(f"{one.algorithm} is wrong at {bytes_text(one.bytes)}, and was not timed: {one.problem}")
    if output.plot is not None and report.rows:
        log(f"plot: {write_text(output.plot, _chart(report, request, ranks).svg())}")
    if output.figures is not None and report.rows:
        log(write_figures([_chart(report, request, ranks)], output.figures))
    if output.save and report.rows:
        log(f"stored for --algorithm auto: {_saved(report, world)}")


def _saved(report: "Report", world: "World") -> Path:
    """Store from which size on each algorithm is the fastest, and return the file."""
    from samestep.studies.bench.cost_fit import crossovers
    from samestep.studies.bench.text import times_of

    measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
    return measured.save(crossovers(times_of(report.rows)))


def _text(report: "Report", request: Request, ranks: int, *, as_json: bool) -> str:
    """Return the text to print."""
    from samestep.studies.bench.text import answer, fastest, fits, table, times_of

    if as_json:
        return "".join(json_line(row.as_dict()) for row in report.rows).rstrip()
    times = times_of(report.rows)
    largest = max(report.copying)
    rounds = sorted({min(report.rounds.values()), max(report.rounds.values())})
    head = (
        f"{_title(request, ranks)}, {' to '.join(map(str, rounds))} rounds of each size; all ranks at once "
        f"copy memory at {report.copying[largest] / 1e9:.3g} GB/s each ({bytes_text(largest)})"
    )
    ends = [f"fastest: {fastest(times)}", answer(times)]
    paragraphs = ([head], table(report.rows), fits(times), ends)
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def _chart(report: "Report", request: Request, ranks: int) -> Chart:
    from samestep.studies.bench.figures import bus_factor
    from samestep.studies.bench.plot import times_chart
    from samestep.studies.bench.text import times_of

    factor = bus_factor(request.collective, ranks)
    copying = {nbytes: factor * nbytes / speed for nbytes, speed in report.copying.items()}
    name = _spelled(request.collective)
    return times_chart(times_of(report.rows), copying=copying, title=_title(request, ranks), name=name)


def _title(request: Request, ranks: int) -> str:
    return f"{_spelled(request.collective)} of {request.dtype} among {ranks} ranks"
