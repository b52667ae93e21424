"""Implements ``samestep run -n auto``: a serial script's workers and threads are measured on this host."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from samestep.autopilot.script.options import DEFAULTS
from samestep.base import env
from samestep.base.console import inform
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.machine.description import cpu_share
from samestep.cli.options.declare import as_arguments
from samestep.cli.options.serial import SPLIT
from samestep.launch.job import Job
from samestep.launchers.detect import UNLAUNCHED, detect
from samestep.run.decision import recognize_script
from samestep.run.rerun import allocation


def choose(
    job: Job,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    dry_run: bool,
) -> tuple[Job, int]:
    """Return the job with the workers that are fastest, and their threads; exit after a dry run.

    Args:
        job: the job, without a number of workers.
        flags: of the runs, such as the mode.
        settings: the options for serial scripts.
        dry_run: whether to print the runs, and start none.

    Raises:
        UsageError: there is more to choose than workers on one host's cores, or nothing could be measured.
    """
    # These modules read clock files, and start late.
    from samestep.scaling.sweep import auto_workers
    from samestep.scaling.sweep.local_runs import command, executed
    from samestep.scaling.sweep.plan import in_lines

    _refuse_tasks()
    _refuse_other_programs(job, str(flags["mode"]))
    if settings["device"] != "cpu" and (gpus := accelerator_count()):
        raise UsageError(
            f"-n auto chooses between processor cores, and this host has {gpus} GPUs. Give -n {gpus}, or "
            "--device cpu."
        )
    found = auto_workers.candidates(cpu_share().usable)
    names = SPLIT
    of_script = {name: settings[name] for name in names if settings[name] != getattr(DEFAULTS, name)}
    module = ["-m"] * (job.program.kind == "module")
    words = [*as_arguments({**flags, **of_script}), *module, job.program.target, *job.program.args]
    with tempfile.TemporaryDirectory(prefix="samestep-auto-", ignore_cleanup_errors=True) as folder:
        trials = auto_workers.runs(found, words, Path(folder))
        if dry_run:
            print("\n".join(in_lines([trial for _, trial in trials], command)))
            raise typer.Exit
        measured = auto_workers.measure(
            trials, lambda trial, limit_s: executed(trial, command(trial), limit_s=limit_s), inform
        )
    inform(auto_workers.in_words(found, measured))
    chosen = auto_workers.fastest(found, measured)
    return replace(job, workers=chosen.workers), chosen.threads


def _refuse_tasks() -> None:
    """Refuse tasks of a launcher, which are the workers."""
    variables = env.snapshot()
    launcher = detect(variables).launcher
    if launcher != UNLAUNCHED or allocation(variables) is not None:
        name = "Slurm" if launcher == UNLAUNCHED else launcher
        raise UsageError(f"-n auto measures one host, and the tasks of {name} are the workers. Leave -n out.")


def _refuse_other_programs(job: Job, mode: str) -> None:
    """Refuse programs that are not a serial script, whose training changes with the number of workers."""
    program = job.program
    is_serial = mode == "autopilot"
    if mode == "auto" and program.kind != "executable":
        is_serial = recognize_script(program).kind == "serial"
    if not is_serial:
        raise UsageError(
            f"-n auto is for serial scripts, whose training is the same on any number of workers, and "
            f"{program.target} was not detected as one. Give -n a number."
        )
