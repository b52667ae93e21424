"""Implements ``samestep doctor``, which reports what each rank detects, and the problems of a run here."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from samestep.base import env
from samestep.base.console import BAD, DOUBTFUL, print_verdict
from samestep.base.units import check_seconds
from samestep.cli.failures import exit_with
from samestep.cli.options import launch, results
from samestep.cli.options.declare import as_arguments, grouped, option
from samestep.doctor.checks import Options, Outcome, any_stuck, run_checks
from samestep.doctor.report import Report, lines, record
from samestep.launch.job import Job
from samestep.launchers.detect import detect
from samestep.run.execution import OWN_PROGRAM, decide_own, execute

_OF_REPORT = (0, 1)
"""The exit codes of a report of several ranks, which has been printed."""
_STYLES = {"problem": BAD, "note": DOUBTFUL}
"""The styles of the words that begin a finding."""


@grouped
def doctor(
    *,
    start: launch.Ranks,
    as_json: results.AsJson = False,
    devices: Annotated[
        bool, option("", "Detect devices and back ends, and form a process group as a training does.")
    ] = True,
    run_folder: Annotated[Path, option("DIR", "The run folder to test.")] = Path("runs"),
    wait: Annotated[float, option("S", "Seconds to wait for the other ranks.")] = 60.0,
) -> int:
    """Report what is detected here and from which variables, and find problems.

    Started as several ranks (srun, mpirun, torchrun, or here with -n), each rank inspects itself, they join
    once as a training does, and rank 0 prints the report. The exit code is 1 if a run would have a problem,
    and 2 if the launcher's variables contradict each other.
    """
    check_seconds("--wait", wait)
    flags = {"json": as_json or None, "devices": devices, "run_folder": run_folder}
    environment = env.snapshot()
    if start.workers not in (None, detect(environment).place.size):
        arguments = ("doctor", *as_arguments({**flags, "wait": wait}))
        decision = decide_own(Job(program=replace(OWN_PROGRAM, args=arguments), workers=start.workers))
        code = execute(replace(decision, explains_exit_1=True))
        exit_with(code, as_json=as_json and code not in _OF_REPORT)
    chosen = Options(run_folder=run_folder, devices=devices, wait_s=wait)
    outcome = run_checks(environment, chosen)
    _print(outcome, as_json=as_json)
    code = outcome.agree_on_exit_code()
    if any_stuck():  # the interpreter would wait for the stuck thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _print(outcome: Outcome, *, as_json: bool) -> None:
    report = outcome.report
    if report is None:
        return
    if outcome.unreached and outcome.rank:
        _log_problems(report)
    elif as_json:
        print(json.dumps(record(report)), flush=True)
    else:
        for line in lines(report):
            word = re.split(r"\W", line)[0]
            print_verdict((word, _STYLES.get(word, "")), line.removeprefix(word))


def _log_problems(report: Report) -> None:
    """Print the problems of this rank on stderr, because it could not send them to rank 0."""
    (rank,) = report.ranks
    problems = [finding.text for _, finding in report.findings if finding.hurts]
    sys.stderr.write("".join(f"rank {rank.rank} on {rank.host}: problem: {text}\n" for text in problems))
