"""Implements ``samestep doctor``, which reports what each rank detects, and the problems of a run here."""

import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from samestep import __version__
from samestep.base import env
from samestep.base.console import BAD, DOUBTFUL, print_verdict
from samestep.base.units import check_seconds
from samestep.cli.options import launch, results
from samestep.cli.options.declare import RESULTS_PANEL, as_arguments, grouped, option, switch
from samestep.launch.job import Job
from samestep.launchers.detect import detect
from samestep.run.execution import OWN_PROGRAM, decide_own, execute
from samestep.studies.doctor.checks import Options, Outcome, any_stuck, run_checks
from samestep.studies.doctor.masking import Mask
from samestep.studies.doctor.orphans import clean as clean_up
from samestep.studies.doctor.report import Report, lines, record

_STYLES = {"problem": BAD, "note": DOUBTFUL}
"""The styles of the words that begin a finding."""


@grouped
def doctor(
    *,
    start: launch.Ranks,
    as_json: results.AsJson = False,
    ticket: Annotated[
        bool,
        switch(
            "Print a text for a support request, with the variables; secrets are masked.",
            RESULTS_PANEL,
            "--ticket",
        ),
    ] = False,
    devices: Annotated[
        bool, option("", "Detect devices and back ends, and form a process group as a training does.")
    ] = True,
    run_folder: Annotated[Path, option("DIR", "The run folder to test.")] = Path("runs"),
    clean: Annotated[
        bool, switch("Only remove what dead runs have left on this host.", "", "--clean")
    ] = False,
    wait: Annotated[float, option("S", "Seconds to wait for the other ranks.")] = 60.0,
) -> int:
    """Report what is detected here and from which variables, and find problems.

    Started as several ranks (srun, mpirun, torchrun, or here with -n), each rank inspects itself, links and
    clocks between them are measured, and rank 0 prints the report. The exit code is 1 if a run would have a
    problem, and 2 if the launcher's variables contradict each other.
    """
    if clean:
        _clean(as_json=as_json)
        return 0
    check_seconds("--wait", wait)
    flags = {"json": as_json or None, "ticket": ticket or None, "devices": devices, "run_folder": run_folder}
    environment = env.snapshot()
    if start.workers not in (None, detect(environment).place.size):
        arguments = ("doctor", *as_arguments({**flags, "wait": wait}))
        decision = decide_own(Job(program=replace(OWN_PROGRAM, args=arguments), workers=start.workers))
        return execute(replace(decision, explains_exit_1=True))
    chosen = Options(run_folder=run_folder, devices=devices, ticket=ticket, wait_s=wait)
    outcome = run_checks(environment, chosen)
    _print(outcome, as_json=as_json, mask=Mask.of(environment) if ticket else None)
    code = outcome.agree_on_exit_code()
    if any_stuck():  # the interpreter would wait for the stuck thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _clean(*, as_json: bool) -> None:
    """Remove what dead runs have left on this host, and print it."""
    found = clean_up()
    if as_json:
        print(json.dumps({"cleaned": [asdict(one) for one in found]}))
    else:
        print("\n".join(one.in_words() for one in found) or "no files of dead runs found")


def _print(outcome: Outcome, *, as_json: bool, mask: Mask | None) -> None:
    report = outcome.report
    if report is None:
        return
    if outcome.unreached and outcome.rank:
        _log_problems(report)
    elif as_json:
        print(json.dumps(record(report)), flush=True)
    elif mask is not None:
        text = "\n".join((f"samestep {__version__}: {mask.text(' '.join(sys.argv[1:]))}", "", *lines(report)))
        print(f"```\n{text}\n```", flush=True)
    else:
        for line in lines(report):
            word = re.split(r"\W", line)[0]
            print_verdict((word, _STYLES.get(word, "")), line.removeprefix(word))


def _log_problems(report: Report) -> None:
    """Print the problems of this rank on stderr, because it could not send them to rank 0."""
    (one,) = report.ranks
    found = [finding.text for _, finding in report.findings if finding.hurts]
    sys.stderr.write("".join(f"rank {one.rank} on {one.host}: problem: {text}\n" for text in found))
