"""``samestep train``: a built-in recipe on N workers."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

import typer

from samestep.base import env
from samestep.base.record import json_line
from samestep.cli.running import act, decide, headline, tell
from samestep.launch.job import Job, Program
from samestep.launch.plan import Spawn

_SETTINGS, _DATA = "Training", "Data and results"


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="digits (comes along) or mnist.")
    ] = "digits",
    *,
    workers: Annotated[int | None, typer.Option("-n", metavar="N", help="Workers in total.")] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="T", help="Compute threads of each worker; by default its share.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training set.", rich_help_panel=_SETTINGS)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per step, over all workers.", rich_help_panel=_SETTINGS)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; the schedule's peak.", rich_help_panel=_SETTINGS)
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adamw.", rich_help_panel=_SETTINGS)] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.", rich_help_panel=_SETTINGS)] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of either optimizer.", rich_help_panel=_SETTINGS)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, cosine, one-cycle.", rich_help_panel=_SETTINGS)
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(help="global: over the global batch; local: over shares.", rich_help_panel=_SETTINGS),
    ] = None,
    sync: Annotated[
        str | None, typer.Option(help="bucketed, reference, ddp.", rich_help_panel=_SETTINGS)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float64.", rich_help_panel=_SETTINGS)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of first weights and order.", rich_help_panel=_SETTINGS)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set.", rich_help_panel=_DATA)
    ] = None,
    subset: Annotated[
        int | None, typer.Option(metavar="K", help="Train on the first K samples.", rich_help_panel=_DATA)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder; else runs/RECIPE-TIME.", rich_help_panel=_DATA),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_DATA)
    ] = False,
) -> None:
    """Train a built-in recipe on N workers, with the result of one.

    Everything is checked before a worker starts. Under srun, mpirun or torchrun the launcher's tasks are
    the workers; elsewhere -n of them start here.
    """
    changes = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "batch_norm": batch_norm,
        "sync": sync,
        "dtype": dtype,
        "seed": seed,
    }
    from samestep.recipes.cook import cook, prepare, take_order
    from samestep.world.join import join

    settings = {name: value for name, value in changes.items() if value is not None}
    out = out or Path("runs") / f"{recipe}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    again = _arguments(
        recipe, {**settings, "data_dir": data_dir, "subset": subset, "out": out}, as_json=as_json
    )
    decision = decide(
        Job(program=Program(target="samestep", kind="module", args=again), workers=workers),
        mode="native",
        threads=threads,
        environment=env.snapshot(),
    )
    order = take_order(recipe, settings, workers=decision.size, out=out, data_dir=data_dir, subset=subset)
    if decision.size > 1 and isinstance(decision.plan, Spawn):
        prepare(order)
        if (advice := order.settings.advice(decision.size)) is not None:
            tell(advice)
        tell(headline(decision))
        raise typer.Exit(act(decision))
    try:
        with join(threads=threads) as world:
            result = cook(world, order)
    except KeyboardInterrupt:
        if decision.size == 1:  # of several, the launcher says it
            tell(f"ended by signal {SIGINT:d}.")
        raise
    told = json_line(result.as_dict()).rstrip() if as_json else f"{result.summary()}\nrun folder: {order.out}"
    world.print(told)


def _arguments(recipe: str, options: Mapping[str, Any], *, as_json: bool) -> tuple[str, ...]:
    """Return the arguments with which each worker is started: all that was asked for, the folder settled."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    return ("train", recipe, *flags, *(["--json"] if as_json else []))
