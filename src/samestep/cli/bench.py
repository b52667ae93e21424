"""``samestep bench``: what collectives take among the workers there are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import bytes_text
from samestep.bench.request import COLLECTIVES, DTYPES, Request, chosen, names_of, sizes_of
from samestep.cli.bench_step import step
from samestep.cli.giving_up import give_up
from samestep.cli.outside import went_in
from samestep.cli.progress import progress_bar
from samestep.cli.running import Decision, act, decide, headline, tell
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments
from samestep.cli.shares import bind_worker, bound
from samestep.collectives.crossovers import Measured
from samestep.launch.job import Job, Program
from samestep.launch.plan import Spawn
from samestep.report.write import write_text

if TYPE_CHECKING:
    from samestep.bench.perform import Report
    from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What is done with what was measured."""

    plot: Path | None
    as_json: bool
    save: bool


bench = typer.Typer(
    help="Measure what collectives and training steps take, in turns, on the workers there are."
)


def measured(collective: str) -> Callable[..., None]:
    """Return the command that measures one collective."""

    def command(
        *,
        workers: Annotated[int | None, typer.Option("-n", metavar="N", help="Workers in total.")] = None,
        threads: Annotated[
            int | None,
            typer.Option(metavar="T", help="Compute threads of each worker; by default its share."),
        ] = None,
        bind: Annotated[
            str,
            typer.Option(help="core: each worker has cores of its own, near its GPU; numa: a node; none."),
        ] = "none",
        sizes: Annotated[
            str | None, typer.Option(metavar="SIZE,..", help="Sizes to measure, such as 4,64K,25MiB.")
        ] = None,
        min_size: Annotated[
            str | None, typer.Option("--min", metavar="SIZE", help="The smallest; else 4 B.")
        ] = None,
        max_size: Annotated[
            str | None, typer.Option("--max", metavar="SIZE", help="The largest; else 256 MiB.")
        ] = None,
        algorithm: Annotated[
            str | None, typer.Option(metavar="NAME,..", help="Which; else all that the workers can run.")
        ] = None,
        dtype: Annotated[str, typer.Option(help=f"Of the elements: {', '.join(DTYPES)}.")] = "float32",
        rounds: Annotated[
            int | None, typer.Option(metavar="R", help="Of each size; else as many as --seconds hold.")
        ] = None,
        seconds: Annotated[float, typer.Option(metavar="S", help="To measure each size for.")] = 2.0,
        timeout: Annotated[
            float, typer.Option(metavar="S", help="After which a call that does not end is named.")
        ] = 30.0,
        save: Annotated[
            bool, typer.Option("--save", help="Keep which all-reduce wins where, for --algorithm auto.")
        ] = False,
        plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw times over sizes.")] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print one object a line for each algorithm and size.")
        ] = False,
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
            raise UsageError(
                "--save keeps which all-reduce wins where: there is no choice of others to make."
            )
        if save and dtype != "float32":
            raise UsageError(
                f"--save keeps what gradients go by, which are measured in float32: leave --dtype {dtype} or "
                "--save out."
            )
        if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
            raise UsageError(f"--plot {plot}: give a name that ends in .svg, in a folder that there is.")
        job = Job(program=Program(target="samestep", kind="module"), workers=workers)
        went_in(job)
        decision = bound(decide(job, mode="native", threads=threads, environment=env.snapshot()), bind)
        if decision.size < 2:
            raise UsageError("one worker exchanges nothing: give -n 2 or more, or start several tasks.")
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
            }
            said = as_arguments(flags) + ["--json"] * as_json + ["--save"] * save
            raise typer.Exit(_start(decision, ("bench", _spelled(collective), *said)))
        bind_worker(decision, decision.found.place)
        _work(request, Telling(plot=plot, as_json=as_json, save=save), threads=threads)

    command.__doc__ = f"""Measure the algorithms of {_spelled(collective)}, in turns.

    Results are compared with float64 first; an algorithm that is wrong is not timed, and the exit code is 1.
    Under srun, mpirun or torchrun the launcher's tasks are the workers; elsewhere -n of them start here.
    """
    return with_secret_file(command)


def _spelled(collective: str) -> str:
    return collective.replace("_", "-")


for _name in COLLECTIVES:
    bench.command(_spelled(_name), short_help=f"What {_spelled(_name)} takes.")(measured(_name))
bench.command("step", short_help="What training steps take, by how gradients are exchanged.")(step)


def _refuse_unknown(request: Request) -> None:
    """Refuse an algorithm that no ranks have, before each worker does."""
    from samestep.bench.cases import COLLECTIVES as CASES

    chosen(request.algorithms, list(CASES[request.collective].algorithms), request.collective)


def _start(decision: Decision, arguments: tuple[str, ...]) -> int:
    tell(headline(decision))
    program = replace(decision.job.program, args=arguments)
    return act(replace(decision, job=replace(decision.job, program=program)))


def _work(request: Request, telling: Telling, *, threads: int | None) -> None:
    """Be a worker."""
    from samestep.bench.perform import perform, pieces
    from samestep.world.join import join

    with join(threads=threads) as world:
        with progress_bar(pieces(request), shown=world.place.is_main) as done:
            end = partial(give_up, place=world.place, timeout_s=request.timeout_s)
            report = perform(world, request, done=done, give_up=end)
        # The others wait for the end of it: with an exit code of 1 they would have rank 0 stopped.
        world.on_main(lambda: _tell(report, request, world, telling))
    if report.wrong:
        raise typer.Exit(1)


def _tell(report: "Report", request: Request, world: "World", telling: Telling) -> None:
    ranks = world.place.size
    if report.rows:
        print(_text(report, request, ranks, as_json=telling.as_json), flush=True)
    for one in report.wrong:
        tell(f"{one.algorithm} is wrong at {bytes_text(one.bytes)}, and was not timed: {one.problem}")
    if telling.plot is not None and report.rows:
        tell(f"picture: {write_text(telling.plot, _picture(report, request, ranks))}")
    if telling.save and report.rows:
        tell(f"kept for --algorithm auto: {_saved(report, world)}")


def _saved(report: "Report", world: "World") -> Path:
    """Keep which algorithm wins from where on, and return the file."""
    from samestep.bench.fit import crossovers
    from samestep.bench.words import times_of

    measured = Measured(ranks=world.place.size, hosts=world.place.nodes, device=world.device.type)
    return measured.save(crossovers(times_of(report.rows)))


def _text(report: "Report", request: Request, ranks: int, *, as_json: bool) -> str:
    """Return what is printed."""
    from samestep.bench.words import answer, fastest, fits, table, times_of

    if as_json:
        return "".join(json_line(row.as_dict()) for row in report.rows).rstrip()
    times = times_of(report.rows)
    largest = max(report.copying)
    rounds = sorted({min(report.rounds.values()), max(report.rounds.values())})
    head = (
        f"{_title(request, ranks)}, {' to '.join(map(str, rounds))} rounds of each size; each rank copies "
        f"memory at {report.copying[largest] / 1e9:.3g} GB/s while all do ({bytes_text(largest)})"
    )
    ends = [f"fastest: {fastest(times)}", answer(times)]
    paragraphs = ([head], table(report.rows), fits(times), ends)
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def _picture(report: "Report", request: Request, ranks: int) -> str:
    from samestep.bench.figures import bus_factor
    from samestep.bench.plot import render
    from samestep.bench.words import times_of

    factor = bus_factor(request.collective, ranks)
    copying = {nbytes: factor * nbytes / speed for nbytes, speed in report.copying.items()}
    return render(times_of(report.rows), copying=copying, title=_title(request, ranks))


def _title(request: Request, ranks: int) -> str:
    return f"{_spelled(request.collective)} of {request.dtype} among {ranks} ranks"
