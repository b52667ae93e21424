"""``samestep doctor``: what was detected, on all ranks, and what will hurt a run."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samestep import __version__
from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.units import LONGEST_S
from samestep.cli.outside import went_in
from samestep.cli.running import act, decide
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.setting_flags import as_arguments
from samestep.doctor.clean import clean as clean_up
from samestep.doctor.consult import Told, Wishes, consult
from samestep.doctor.report import Report, lines, record
from samestep.doctor.ticket import Mask
from samestep.doctor.within import any_stuck
from samestep.launch.job import Job, Program
from samestep.world.detect import detect


@with_secret_file
def doctor(
    *,
    workers: Annotated[
        int | None, typer.Option("-n", metavar="N", help="Start N workers and ask them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ticket: Annotated[
        bool, typer.Option("--ticket", help="Print a text to paste: with the variables, secrets masked.")
    ] = False,
    devices: Annotated[
        bool, typer.Option(help="Look for devices and back ends, and join as a training does.")
    ] = True,
    run_folder: Annotated[Path, typer.Option(metavar="DIR", help="The run folder to try.")] = Path("runs"),
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what dead runs have left on this host, and nothing else.")
    ] = False,
    wait: Annotated[float, typer.Option(metavar="S", help="How long to wait for the other ranks.")] = 60.0,
) -> int:
    """Say what was detected, on all ranks, from which variables, and what will hurt a run.

    Started as several ranks (srun, mpirun, torchrun, or here with -n), each looks at itself, links and clocks
    between them are measured, and rank 0 reports. Exits with 1 if something found will hurt a run, and with 2
    if the launcher's variables contradict each other.
    """
    if clean:
        print("\n".join(clean_up()))
        return 0
    if as_json and ticket:
        raise UsageError("--json is for machines and --ticket to be pasted: give one of the two.")
    if not 0 < wait <= LONGEST_S:
        raise UsageError(f"--wait {wait:g} is no time to wait for the other ranks: give seconds.")
    flags = {"json": as_json or None, "ticket": ticket or None, "devices": devices, "run_folder": run_folder}
    environment = env.snapshot()
    if workers not in (None, detect(environment).place.size):
        arguments = ("doctor", *as_arguments({**flags, "wait": wait}))
        job = Job(program=Program(target="samestep", kind="module", args=arguments), workers=workers)
        went_in(job)
        decision = decide(job, mode="native", threads=None, environment=environment)
        return act(replace(decision, exit_code_is_told=True))
    told = consult(environment, Wishes(runs=run_folder, devices=devices, ticket=ticket, wait_s=wait))
    _tell(told, as_json=as_json, ticket=Mask.of(environment) if ticket else None)
    code = told.settle()
    if any_stuck():  # the interpreter would wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell(told: Told, *, as_json: bool, ticket: Mask | None) -> None:
    report = told.report
    if report is None:
        return
    if told.alone and told.rank:
        _tell_problems(report)
    elif as_json:
        print(json.dumps(record(report)), flush=True)
    elif ticket is not None:
        text = "\n".join(
            (f"samestep {__version__}: {ticket.text(' '.join(sys.argv[1:]))}", "", *lines(report))
        )
        print(f"```\n{text}\n```", flush=True)
    else:
        print("\n".join(lines(report)), flush=True)


def _tell_problems(report: Report) -> None:
    """Say on stderr what is wrong with a rank that rank 0 cannot speak for."""
    (one,) = report.examinations
    who = f"rank {one.rank} on {one.host}"
    found = [finding.text for _, finding in report.findings if finding.hurts]
    sys.stderr.write("".join(f"{who}: problem: {text}\n" for text in found))
