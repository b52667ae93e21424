"""``samestep bench step``: what whole training steps take, by how gradients are exchanged."""

import sys
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.base.units import LONGEST_S
from samestep.bench.request import SYNCS
from samestep.cli.giving_up import give_up
from samestep.cli.outside import went_in
from samestep.cli.progress import progress_bar
from samestep.cli.running import Decision, act, decide, headline, tell
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments
from samestep.cli.shares import bind_worker, bound
from samestep.launch.accelerators import accelerator_count
from samestep.launch.job import Job, Program
from samestep.launch.plan import Spawn

if TYPE_CHECKING:
    from samestep.bench.ways import Problem
    from samestep.world.world import World


@with_secret_file
def step(
    *,
    workers: Annotated[int | None, typer.Option("-n", metavar="N", help="Workers in total.")] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="T", help="Compute threads of each worker; by default its share.")
    ] = None,
    bind: Annotated[
        str, typer.Option(help="core: each worker has cores of its own, near its GPU; numa: a node; none.")
    ] = "none",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="convnet, resnet9, resnet18 ... resnet152.")
    ] = "convnet",
    batch_per_worker: Annotated[
        int, typer.Option(metavar="B", help="Samples of each worker's part of a step.")
    ] = 16,
    sync: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,..",
            help=f"Which exchanges: {', '.join(SYNCS)}; else all that can be.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="To measure for.")] = 60.0,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="After which a turn that does not end is named.")
    ] = 120.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object a line for each exchange.")
    ] = False,
) -> None:
    """Measure whole training steps by how their gradients are exchanged, in turns.

    Efficiency is against the same workers computing side by side without any exchange, in the same run. Batch
    norm is local throughout, as in torch's DDP. Under srun, mpirun or torchrun the launcher's tasks are the
    workers; elsewhere -n of them start here.
    """
    names = _names(sync)
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"--seconds {seconds:g} is no time to measure for: give some, such as 60.")
    if not 0 < timeout <= LONGEST_S:
        raise UsageError(f"--timeout {timeout:g} is no time to wait: give seconds, such as 120.")
    job = Job(program=Program(target="samestep", kind="module"), workers=workers)
    went_in(job)
    decision = bound(decide(job, mode="native", threads=threads, environment=env.snapshot()), bind)
    if decision.size < 2:
        raise UsageError("one worker exchanges nothing: give -n 2 or more, or start several tasks.")
    from samestep.bench.ways import Problem

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
        raise typer.Exit(_start(decision, flags, as_json=as_json))
    bind_worker(decision, decision.found.place)
    _work(problem, names, seconds=seconds, timeout_s=timeout, threads=threads, as_json=as_json)


def _names(sync: str | None) -> list[str]:
    names = [] if sync is None else [name.strip() for name in sync.split(",")]
    for name in names:
        if name not in SYNCS:
            raise UsageError(f"--sync {name!r} is none of {', '.join(SYNCS)}.")
    return names


def _refuse_without_gpus(names: list[str], size: int) -> None:
    """Refuse what takes more GPUs than there are, before each worker finds that."""
    from samestep.bench.ways import NEEDS

    if "data_parallel" in names and (found := accelerator_count()) < size:
        raise UsageError(
            f"--sync data_parallel needs {NEEDS['data_parallel']}. This node has {found} for {size} workers: "
            "choose another one."
        )


def chosen(world: "World", names: list[str]) -> list[str]:
    """Return the exchanges to measure: those asked for, or all that the workers have.

    Where they do not have one of them, there is nothing to measure, and rank 0 has said so.

    Args:
        world: the workers; all of them call this.
        names: the user's choice.
    """
    from samestep.bench.ways import ALONE, NEEDS, ways_here

    can = [name for name in ways_here(world) if name != ALONE]
    missing = next((name for name in names if name not in can), None)
    if missing is None:
        return names or can
    there = ", ".join(can)
    world.on_main(lambda: tell(f"error: --sync {missing} needs {NEEDS[missing]}. Here can: {there}."))
    return []


def _start(decision: Decision, flags: dict[str, object], *, as_json: bool) -> int:
    tell(headline(decision))
    arguments = ("bench", "step", *as_arguments(flags), *(["--json"] if as_json else []))
    program = replace(decision.job.program, args=arguments)
    return act(replace(decision, job=replace(decision.job, program=program)))


def _work(
    problem: "Problem",
    names: list[str],
    *,
    seconds: float,
    timeout_s: float,
    threads: int | None,
    as_json: bool,
) -> None:
    """Be a worker."""
    from samestep.bench.limit import Limit
    from samestep.bench.step_words import step_answer, step_table
    from samestep.bench.steps import measure
    from samestep.world.join import join

    with join(threads=threads) as world:
        names = chosen(world, names)
        if not names:  # all of them end with it, and rank 0 alone has said why
            raise typer.Exit(2)
        end = partial(give_up, place=world.place, timeout_s=timeout_s)
        with progress_bar(None, shown=world.place.is_main) as done, Limit(timeout_s, end) as limit:
            rows = measure(
                world,
                problem,
                names,
                seconds=seconds,
                done=done,
                around=lambda name: limit.of(f"a turn of {name}"),
            )
        lines = [json_line(asdict(row)).rstrip() for row in rows]
        if not as_json:
            each = f"{problem.model}, {problem.batch_per_worker} samples each on {world.place.size} workers"
            lines = [each, *step_table(rows), step_answer(rows)]
        world.print("\n".join(lines))
        sys.stdout.flush()
