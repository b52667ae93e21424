"""Implements ``samestep scale``, which measures speedup and efficiency on several numbers of workers."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.base.record import json_line, repository_of
from samestep.base.units import check_hang_timeout
from samestep.cli.main import application, usage_text
from samestep.cli.options import launch, results, script_words
from samestep.cli.options.declare import (
    JOBS_PANEL,
    RESULTS_PANEL,
    as_arguments,
    given_settings,
    grouped,
    option,
    with_flags_of,
)
from samestep.cli.options.serial import OF_ALL, SPLIT, Mode, checked_mode, not_serial
from samestep.cli.other_names import dashed
from samestep.launch.job import Program
from samestep.launchers.processors import checked as checked_binding
from samestep.report.run_page import NAME
from samestep.run.decision import recognize_script, refuse_own_workers
from samestep.scaling.analysis.study import Study, seen_from_here
from samestep.scaling.report.page import charts
from samestep.scaling.report.tables import study_text, terminal_width
from samestep.scaling.sweep.execution import Frame, default_folder, own_folder, refuse_taken
from samestep.scaling.sweep.local_runs import LocalRuns, local_runs
from samestep.scaling.sweep.plan import (
    SCALINGS,
    Kind,
    Request,
    Scaling,
    Variant,
    compared_threads,
    plan,
    refuse_too_many,
    variants,
)
from samestep.scaling.sweep.slurm_runs import SlurmRuns, collect
from samestep.scaling.sweep.trial import SAMESTEP, Trial
from samestep.submit.site_defaults import SITE_PANEL, SIZE_PANEL, SOFTWARE_PANEL, SlurmSite, site_of

SETTINGS = script_words.SETTINGS

_SWEEP, _MEASUREMENT = "Sweep", "Measurement"
_JOB_PANELS = (JOBS_PANEL, SIZE_PANEL, SITE_PANEL, SOFTWARE_PANEL)

_NOT_COMPARED = ("explain", "scratch", "seed")
_OF_JOB = ("bind", "threads")
_OF_SCRIPTS = ("mode", "short_calls", "device")
_OF_TRAIN = ("--seed",)
"""Options with another meaning in train; the other ones that train and scale share mean the same."""

_NEW_TRAINING = "a new training in each run; leave it out"
_OWN_RUNS = {
    "--resume": _NEW_TRAINING,
    "--eval-only": _NEW_TRAINING,
    "--from": _NEW_TRAINING,
    "--batch-per-worker": "the global batch; give --scaling weak instead",
    "--clock": "each run's clock in the folder of the study; leave it out",
    "--clock-steps": "the same number of steps in each run; give --steps instead",
    "--clock-warm-up": "the same number in each run; give --warm-up instead",
}
"""Options of train that do not start a new training, or that scale sets itself, with what scale needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The program that a study runs."""

    name: str  # the path of a script, or the name of a module or of a recipe
    kind: Kind  # the kind of target
    arguments: tuple[str, ...]  # its arguments
    mode: str | None  # the value of ``--mode``; None if it was not given

    @classmethod
    def of(cls, name: str, arguments: Sequence[str], *, module: bool, mode: str | None) -> "Target":
        """Return the target with this name.

        Raises:
            UsageError: it cannot run on several numbers of workers.
        """
        if name in launch.LAUNCHERS and not Path(name).exists():
            raise UsageError(
                f"{name} is a launcher, but scale starts the workers itself; give the script. To compare "
                "launchers, give --compare launcher=samestep,torchrun."
            )
        is_path = "/" in name or Path(name).suffix or Path(name).exists()
        kind: Kind = "module" if module else "script" if is_path else "recipe"
        target = cls(name=name, kind=kind, arguments=tuple(arguments), mode=mode)
        if kind == "recipe":
            target._check_recipe()
        elif (program := target.program()) and mode in (None, "auto"):
            refuse_own_workers(program, recognize_script(program), verb="scale")
        return target

    def program(self) -> Program:
        """Return the script or module as a program."""
        return launch.program(self.name, self.arguments, module=self.kind == "module")

    def refuse_ambiguous(self, words: Sequence[str], flags: Collection[str]) -> None:
        """Refuse one of scale's `flags` after the target, in the words of a command, that is possibly both's.

        Raises:
            UsageError: there is such an option; the message shows how to make the command unambiguous.
        """
        names = script_words.names_after(self.name, words)
        if self.kind == "recipe":
            both = "samestep train and samestep scale have it"
            claims = [(name, both) for name in names if dashed(name) in flags and name in _OF_TRAIN]
            script_words.refuse_ambiguous(claims, self.name, of="train", verb="scale")
        else:
            script_words.refuse_unclear(self.program(), names, flags, verb="scale")

    def refuse_misplaced(self, flags: Mapping[str, Any], compares: Sequence[str]) -> None:
        """Refuse options of ``run`` or in ``--compare`` that have no effect on the target, and wrong values.

        Raises:
            UsageError: there is such an option; the message names it.
        """
        set_options = [name for name, value in flags.items() if value is not None]
        of_scripts = [name for name in set_options if name in _OF_SCRIPTS]
        if self.kind == "recipe" and of_scripts:
            raise UsageError(
                f"--{dashed(of_scripts[0])} is for scripts, and {self.name} is a recipe; leave it out."
            )
        checked_mode(flags["mode"])
        if flags["bind"] is not None:
            checked_binding(str(flags["bind"]))
        Options(**{name: flags[name] for name in set_options if name in SPLIT})
        names = [*set_options, *(text.partition("=")[0].replace("-", "_") for text in compares)]
        for_serial = {field.name for field in fields(Options)}.difference(_NOT_COMPARED, OF_ALL)
        of_serial = [name for name in names if name in for_serial]
        if self.kind != "recipe" and of_serial and not self._is_serial():
            raise UsageError(not_serial(of_serial[0], self.name))

    def compared(self, texts: Sequence[str]) -> tuple[Variant, ...]:
        """Return the variants of ``--compare``.

        Raises:
            UsageError: a variant is wrong.
        """
        compared = self._variants(texts)
        if not self._spawns():
            return compared
        launchers = [variant.launcher for variant in compared if variant.launcher not in ("", SAMESTEP)]
        if launchers:
            raise UsageError(
                f"--compare launcher={launchers[0]}: {self.name} starts its own workers, and several tasks "
                "of another launcher would each start them. Leave it out."
            )
        return tuple(replace(variant, launcher=SAMESTEP) for variant in compared)

    def limits_gpus(self) -> bool:
        """Return whether a run should see one GPU for each worker, since their number decides on workers."""
        return self._spawns() and not any("n}" in argument for argument in self.arguments)

    def refuse_jobs(self) -> None:
        """Refuse to submit jobs, whose tasks are the workers, for a script that starts its own workers.

        Raises:
            UsageError: it is such a script.
        """
        if self._spawns():
            raise UsageError(
                f"{self.name} starts its own workers, and the workers of --submit are tasks of Slurm. Call "
                "samestep scale in an allocation (salloc, or a job script)."
            )

    def _variants(self, texts: Sequence[str]) -> tuple[Variant, ...]:
        if not texts:
            return (Variant(),)
        verb = "train" if self.kind == "recipe" else "run"
        return variants(texts, verb=verb, flags=self.comparable_flags())

    def comparable_flags(self) -> list[str]:
        """Return the flags of the target's verb, without dashes before them, that ``--compare`` varies."""
        kinds, left_out = (_settings(), ()) if self.kind == "recipe" else ((Options,), _NOT_COMPARED)
        names = [field.name for kind in kinds for field in fields(kind) if field.name not in left_out]
        return [*(name.replace("_", "-") for name in names), *_OF_JOB]

    def batch(self, scaling: str) -> int | None:
        """Return the batch size of a recipe that grows with the workers; None for strong scaling.

        Raises:
            UsageError: the batch size is set in a file that only train reads.
        """
        if self.kind != "recipe" or scaling not in ("weak", "both"):
            return None
        size = _value("--batch-size", self.arguments)
        if size is not None:
            if not size.isdecimal() or not int(size):
                raise UsageError(f"--batch-size {size!r} is not a number of samples, at least 1.")
            return int(size)
        if _value("--config", self.arguments) is not None:
            raise UsageError(f"--scaling {scaling} does not read --config; give --batch-size too.")
        from samestep.training.recipes.registry import find

        return find(self.name, fast="--fast" in self.arguments).settings.batch_size

    def _spawns(self) -> bool:
        is_detected = self.kind != "recipe" and self.mode in (None, "auto")
        return is_detected and recognize_script(self.program()).has_forkable_workers

    def _is_serial(self) -> bool:
        if self.mode in ("native", "autopilot"):
            return self.mode == "autopilot"
        return recognize_script(self.program()).kind == "serial"

    def _check_recipe(self) -> None:
        from samestep.training.recipes.registry import RECIPES

        if self.name not in RECIPES:
            known = ", ".join(RECIPES)
            raise UsageError(
                f"{self.name} is neither an existing script nor a recipe; the recipes are {known}."
            )
        for flag, instead in _OWN_RUNS.items():
            if any(word == flag or word.startswith(f"{flag}=") for word in self.arguments):
                raise UsageError(f"{flag} does not go with samestep scale, which needs {instead}.")


def refuse_wrong_flags(trials: Sequence[Trial], verb: str) -> None:
    """Refuse flags that `verb` does not have, and values that it refuses: each run would fail on them.

    Checks that need the data set or the model are left to the runs, because they take long.

    Raises:
        UsageError: a flag or a value is wrong; the message names it.
    """
    group: Any = typer.main.get_command(application(verb))
    for trial in trials:
        if trial.repeat:  # it has the command of the first run
            continue
        try:
            context = group.get_command(None, verb).make_context(verb, list(trial.command[1:]))
        except typer.TyperException as error:
            raise UsageError(f"samestep {verb}: {usage_text(error)}") from None
        if verb == "train":
            _check_settings(context.params, trial.workers)


def _check_settings(flags: Mapping[str, Any], workers: int) -> None:
    from samestep.training.recipes.registry import find
    from samestep.training.recipes.request import Request, configuration, part_of

    settings, options = _settings()
    values = {field.name: flags[field.name] for kind in (settings, options) for field in fields(kind)}
    changes = given_settings(values, settings, options)
    config, _ = configuration(Request(recipe=flags["recipe"], config=flags["config"], changes=changes))
    recipe = find(flags["recipe"], fast=bool(flags["fast"] or config.get("fast")))
    replace(recipe.settings, **part_of(config, settings)).check_workers(workers)
    replace(recipe.options, **part_of(config, options))


def _settings() -> tuple[type[Any], type[Any]]:
    """Return the dataclasses of the settings of a training, whose import takes long."""
    from samestep.training.settings import RunOptions, Settings

    return Settings, RunOptions


def _value(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option among `words`, the last one if it occurs twice."""
    value = None
    for at, word in enumerate(words):
        if word == flag:
            value = "".join(words[at + 1 : at + 2])
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The options of the runs and their order."""

    steps: Annotated[int, option("K", "Measured steps of each run.", _MEASUREMENT)] = 30
    warm_up: Annotated[int, option("W", "Steps before the measured ones.", _MEASUREMENT)] = 5
    repeats: Annotated[int, option("R", "Runs of each configuration, interleaved.", _MEASUREMENT)] = 3
    seed: Annotated[int, option("", "Seed of the order of the runs.", _MEASUREMENT)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJobs:
    """The options of a study whose runs are Slurm jobs."""

    submit: Annotated[
        str | None, option("", "Submit one job per number of workers.", JOBS_PANEL, choices=("slurm",))
    ] = None
    detach: launch.Detach = False
    collect: Annotated[Path | None, option("DIR", "Collect the runs of a submitted study.", JOBS_PANEL)] = (
        None
    )
    nproc_per_node: Annotated[
        int | None, option("K", "Maximum workers per node. Default: all.", JOBS_PANEL)
    ] = None
    gpus_per_node: launch.GpusPerNode = 0

    def runs(self, site: SlurmSite, largest: int, threads: int | None) -> SlurmRuns:
        """Return Slurm jobs for runs of up to `largest` workers."""
        each = self.gpus_per_node or largest
        return SlurmRuns(
            site=site,
            places=largest,
            per_node=each if self.nproc_per_node is None else self.nproc_per_node,
            gpus=self.gpus_per_node,
            threads=threads,
            detach=self.detach,
        )


@grouped
@with_flags_of(Options, only=SPLIT)
@with_flags_of(SlurmSite)
def scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A script, a recipe, or with -m a module.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS",
            help="Arguments of the target; {n}, {local}, {nodes}, {256/n}, {32*n} are replaced. All words "
            "after -- are arguments.",
        ),
    ] = None,
    *,
    workers: launch.WorkerCounts = "1,2",
    scaling: Annotated[
        str,
        option(
            "",
            "strong: constant global batch; weak: constant batch per worker; both; auto: as the "
            "arguments are.",
            _SWEEP,
            choices=SCALINGS,
        ),
    ] = "auto",
    compare: Annotated[
        list[str] | None,
        option(
            "WHAT=A,B",
            "Variants to compare: launcher=samestep,torchrun, sync=ddp,flat, env:NAME=1,2. Repeatable.",
            _SWEEP,
        ),
    ] = None,
    module: launch.Module = False,
    measurement: Measurement,
    oversubscribe: launch.Oversubscribe = False,
    threads: launch.Threads = None,
    bind: Annotated[str | None, launch.BIND] = None,
    hang_timeout: Annotated[float | None, launch.HANG_TIMEOUT] = None,
    mode: Mode = None,
    worth: results.Worth = None,
    out: Annotated[
        Path | None, option("DIR", "Folder of the study. Default: studies/NAME-TIME.", RESULTS_PANEL)
    ] = None,
    output: results.PageOutput,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    dry_run: launch.DryRun = False,
    submission: StudyJobs,
    **settings: Any,
) -> int:
    """Measure a training on several numbers of workers: speedup, efficiency, and the causes of its loss.

    Each run is a separate command that is stopped after some steps; files that it writes are discarded. The
    exit code is 0 if every number of workers was measured, and 1 if a run failed and the others are reported.
    """
    output.check()
    _refuse_unused(context, submission)
    if submission.collect is not None:
        if target is not None:
            raise UsageError(f"--collect {submission.collect} has its own target; leave {target} out.")
        return _print_study(collect(submission.collect, bar=worth), submission.collect, output)
    if target is None:
        raise UsageError("no target is given; give a script or a recipe.")
    own_flags = {name for parameter in context.command.params for name in parameter.opts}
    script_words.refuse_target(target, own_flags, verb="scale")
    program = Target.of(target, arguments or (), module=module, mode=mode)
    program.refuse_ambiguous(context.obj, own_flags)
    numbers = _numbers(workers)
    check_hang_timeout(hang_timeout or 0.0)
    flags = {"mode": mode, **given_settings(settings, Options), "bind": bind, "hang_timeout": hang_timeout}
    program.refuse_misplaced(flags, compare or ())
    variants = program.compared(compare or ())
    each = compared_threads(variants)
    runs: LocalRuns | SlurmRuns
    if submission.submit is None:
        runs = local_runs(numbers, threads=threads, compared=each, on_cpu=settings["device"] == "cpu")
    else:
        program.refuse_jobs()
        runs = submission.runs(site_of(SlurmSite, given_settings(settings, SlurmSite)), numbers[-1], threads)
    if not oversubscribe:
        refuse_too_many(numbers, places=runs.places, resources=runs.resources)
    request = Request(
        target=target,
        kind=program.kind,
        arguments=program.arguments,
        workers=numbers,
        scaling=cast("Scaling", scaling),
        batch=program.batch(scaling),
        flags=tuple(
            as_arguments(
                {
                    **flags,
                    "threads": None if each else runs.threads,
                    "oversubscribe": oversubscribe or None,
                }
            )
        ),
        variants=variants,
        per_node=runs.per_node,
        limits_gpus=program.limits_gpus(),
        threads=runs.each,
        on_cores=runs.on_cores,
        folder=out or default_folder(target),
        **asdict(measurement),
    )
    trials = plan(request)
    refuse_wrong_flags(trials, "train" if program.kind == "recipe" else "run")
    frame = Frame(request=request, bar=worth, places=runs.places)
    refuse_taken(request.folder)
    if dry_run:
        text = runs.describe(frame, trials)
        print(json_line({"text": text}) if output.as_json else text)
        return 0
    if program.kind == "script":
        frame = replace(frame, source=repository_of(Path(target)))
    with own_folder(request.folder) if out is None else nullcontext(out) as folder:
        request = replace(request, folder=folder)
        result = runs.execute(replace(frame, request=request), plan(request))
    return _print_study(result, folder, output)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of workers of ``-n``, each once."""
    numbers = tuple(launch.worker_counts(text))
    if twice := next((number for number in numbers if numbers.count(number) > 1), None):
        raise UsageError(
            f"-n {text} has {twice} twice; give each number once, and the number of runs with --repeats."
        )
    return numbers


def _refuse_unused(context: typer.Context, submission: StudyJobs) -> None:
    """Refuse options of jobs without ``--submit``."""
    if submission.submit not in (None, "slurm"):
        raise UsageError(f"--submit {submission.submit!r} is not supported; give slurm.")
    for parameter in context.command.params if submission.submit is None else ():
        name, flag = parameter.name or "", max(parameter.opts, key=len)
        is_of_job = getattr(parameter, "rich_help_panel", "") in _JOB_PANELS and flag != "--collect"
        if is_of_job and script_words.is_typed(name, context) and context.params[name]:
            raise UsageError(
                f"{flag} needs --submit slurm; give that too, or put an option of the script after --."
            )


def _print_study(result: tuple[Study, int] | list[str], folder: Path, output: results.PageOutput) -> int:
    """Print a study and save its charts, or print the numbers of its jobs; return the exit code."""
    if isinstance(result, list):
        record = {"jobs": result, "study": str(folder)}
        print(json_line(record) if output.as_json else "\n".join(result))
        return 0
    study, code = result
    if output.as_json:
        print(json_line(asdict(study)))
    else:
        print(study_text(seen_from_here(study, folder), terminal_width()))
    output.save(folder / NAME, partial(charts, study))
    return code
