"""Implements ``samestep lab``, which runs experiments of tutorials, and grades solutions of exercises."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.console import BAD, DOUBTFUL, GOOD, inform, print_verdict
from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable_file
from samestep.base.record import json_line
from samestep.base.signals import ended_by_interrupt
from samestep.base.units import counted
from samestep.cli.help_text import help_of
from samestep.cli.options import launch, results
from samestep.cli.options.declare import RESULTS_PANEL, completing, option
from samestep.report.page import write_text
from samestep_lab.exercises.starters import EXERCISES, write_starter
from samestep_lab.experiments.experiment import Experiment, Setup
from samestep_lab.experiments.registry import EXPERIMENTS, check_workers
from samestep_lab.experiments.text import (
    in_columns,
    listed,
    listing,
    outcome_page,
    outcome_record,
    outcome_text,
)

_MOST_RANKS = 8
_HANG_S = 20.0
"""Seconds after which a training script that waits is ended."""

lab = typer.Typer(help="Run experiments that answer the questions of tutorials by measurements.")


@lab.callback(invoke_without_command=True)
def list_experiments(context: typer.Context, *, as_json: results.AsJson = False) -> None:
    """List the experiments with the questions that they answer, and the exercises.

    samestep lab NAME runs an experiment, and samestep lab start NAME DIR begins an exercise.
    """
    name = context.invoked_subcommand
    if name is None:
        _print_lists(as_json=as_json)
    elif as_json:
        raise UsageError(f"--json before {name} is for the list of experiments; put it after {name}.")


def _print_lists(*, as_json: bool) -> None:
    exercises = {name: exercise.summary for name, exercise in EXERCISES.items()}
    if as_json:
        named = [{"name": name, "summary": summary} for name, summary in exercises.items()]
        print(json_line({"experiments": listed(), "exercises": named}))
        return
    print(f"Experiments, samestep lab NAME:\n\n{listing()}")
    print(f"\nExercises, samestep lab start NAME DIR:\n\n{in_columns(exercises.items())}")


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
        with ended_by_interrupt():
            import torch.distributed  # noqa: F401
        outcome = experiment.run(Setup(workers=size, ranks=spawn, data=data or "digits", data_dir=data_dir))
        if as_json:
            print(json_line(outcome_record(experiment, outcome, workers=size)))
        else:
            print(outcome_text(experiment, outcome))
        if page is not None:
            inform(f"page: {write_text(page, outcome_page(experiment, outcome, workers=size))}")

    command.__doc__ = f"""{experiment.question}

    {experiment.does} {experiment.expect} -n is {experiment.workers} by default.
    """
    return command


def start(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"One of {', '.join(EXERCISES)}.", autocompletion=completing(EXERCISES)
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files.")],
    *,
    as_json: results.AsJson = False,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
) -> None:
    """Write the starter file of an exercise: plain PyTorch with gaps, and a serial script if it has one."""
    files = write_starter(name, folder)
    if as_json:
        print(json_line({"exercise": name, "files": [str(path) for path in files]}))
    for path in files:
        inform(f"wrote {path}")
    inform(f"fill the gaps, then: samestep lab grade {files[0]}")


def grade(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Functions such as all_reduce, or a training script.")
    ],
    ranks: Annotated[str, option("N-M", "Numbers of ranks to run it on, such as 2,4 or 1-5.")] = "1-5",
    as_json: results.AsJson = False,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
) -> int:
    """Run a solution on several numbers of ranks, and report what is wrong.

    A function named broadcast, gather, reduce, all_reduce or ring_all_reduce is called with many tensors.
    Any other file is a training script, whose steps are compared with those of the serial
    script beside it: trainer.py with trainer_serial.py. The exit code is 0 for a right solution, else 1.
    """
    sizes = rank_counts(ranks)
    from samestep.cli.verify import verified
    from samestep_lab.exercises.grading import grade_file

    grades = grade_file(
        file, sizes, verify=lambda script, serial, of: verified(script, serial, of, hang_timeout=_HANG_S)
    )
    passed = all(graded.passed for graded in grades)
    if as_json:
        results_of = [graded.as_json() for graded in grades]
        print(json_line({"file": str(file), "passed": passed, "grades": results_of}))
    else:
        for graded in grades:
            verdict = (counted(len(graded.faults), "fault"), BAD) if graded.faults else ("passed", GOOD)
            print_verdict(f"{graded.name} on {_in_words(sizes)}: ", verdict)
            for fault in graded.faults:
                more = f" ({fault.count - 1} more)" if fault.count > 1 else ""
                print_verdict("  ", (fault.code, BAD), f": {fault.text}{more}")
            for remark in graded.remarks:
                print_verdict("  ", ("remark", DOUBTFUL), f": {remark}")
    return 0 if passed else 1


def rank_counts(text: str) -> list[int]:
    """Return the numbers in a text such as ``1-5`` or ``2,4``, sorted.

    Raises:
        UsageError: the text has another form, or a number is below 1 or too large.
    """
    counts: set[int] = set()
    for part in text.split(","):
        if not (matched := re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip())):
            raise UsageError(f"--ranks is {text!r}; give numbers of ranks, such as 1-5 or 2,4.")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        counts.update(range(first, last + 1))
    if not counts or not 1 <= min(counts) <= max(counts) <= _MOST_RANKS:
        raise UsageError(f"--ranks is {text!r}; give numbers from 1 to {_MOST_RANKS}, such as 1-5.")
    return sorted(counts)


def _in_words(sizes: Sequence[int]) -> str:
    return f"{', '.join(map(str, sizes))} {'rank' if sizes == [1] else 'ranks'}"


for _one in EXPERIMENTS.values():
    _run = command_for(_one)
    lab.command(_one.name, help=help_of(_run), short_help=_one.question)(_run)
for _command in (start, grade):
    lab.command(help=help_of(_command))(_command)
