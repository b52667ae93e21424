"""Implements ``samestep lab``, which runs experiments that answer the questions of tutorials."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.console import inform
from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable_file
from samestep.base.record import json_line
from samestep.cli.help_text import flowing
from samestep.cli.lab_exercises import grade, start
from samestep.cli.options import launch, results
from samestep.cli.options.declare import RESULTS_PANEL, option
from samestep.lab.experiment import Experiment, Setup
from samestep.lab.registry import EXPERIMENTS, check_workers
from samestep.lab.text import listed, listing, outcome_page, outcome_record, outcome_text
from samestep.studies.report.write import write_text

lab = typer.Typer(help="Run experiments that answer the questions of tutorials by measurements.")


@lab.callback(invoke_without_command=True)
def list_experiments(context: typer.Context, *, as_json: results.AsJson = False) -> None:
    """List the experiments with the questions that they answer; samestep lab NAME runs one."""
    name = context.invoked_subcommand
    if name is None:
        print(json_line({"experiments": listed()}).rstrip() if as_json else listing())
    elif as_json:
        raise UsageError(f"--json before {name} is for the list of experiments; put it after {name}.")


def command_for(experiment: Experiment) -> Callable[..., None]:
    """Return the command that runs one experiment."""

    def command(
        *,
        workers: launch.WorkerCount = None,
        data: results.Data = None,
        data_dir: results.DataDir = None,
        as_json: results.AsJson = False,
        quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
        page: Annotated[Path | None, option("FILE", "Write a page with figures too.", RESULTS_PANEL)] = None,
    ) -> None:
        from samestep.launch.local.spawn import spawn

        size = experiment.workers if workers is None else workers
        check_workers(experiment, size)
        refuse_unwritable_file("--page", page)
        outcome = experiment.run(Setup(workers=size, ranks=spawn, data=data or "digits", data_dir=data_dir))
        if as_json:
            print(json_line(outcome_record(experiment, outcome, workers=size)).rstrip())
        else:
            print(outcome_text(experiment, outcome))
        if page is not None:
            inform(f"page: {write_text(page, outcome_page(experiment, outcome, workers=size))}")

    command.__doc__ = f"""{experiment.question}

    {experiment.does} {experiment.expect} -n is {experiment.workers} by default.
    """
    return command


for _one in EXPERIMENTS.values():
    _run = command_for(_one)
    lab.command(_one.name, help=flowing(_run.__doc__), short_help=_one.question)(_run)
for _command in (start, grade):
    lab.command(help=flowing(_command.__doc__))(_command)
