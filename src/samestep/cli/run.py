"""Implements ``samestep run``, which runs a program on N workers, and the defaults of its options."""

import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.autopilot.script.options import DEFAULTS, Options
from samestep.base import env
from samestep.base.config import read_toml, suggestion
from samestep.base.console import inform, log
from samestep.base.errors import UsageError
from samestep.base.folders import user_cache
from samestep.base.machine.accelerators import accelerator_count, can_have_accelerators, workers_per_node
from samestep.base.machine.description import cpu_share
from samestep.cli.options import launch, script_words
from samestep.cli.options.declare import (
    CLOCK_PANEL,
    WORKERS_PANEL,
    as_arguments,
    grouped,
    option,
    switch,
    with_flags_of,
)
from samestep.cli.options.nodes import Rendezvous, refuse_unused
from samestep.cli.options.serial import SPLIT, Mode, checked_mode, with_options
from samestep.cli.other_names import own_name
from samestep.launch.job import Job, Logs, Program, Std
from samestep.launch.local.hosting import leave
from samestep.launch.local.output import check_writable
from samestep.launch.plan import Spawn
from samestep.launchers.detect import UNLAUNCHED, detect
from samestep.run.decision import (
    Decision,
    banner,
    decide,
    dry_run_lines,
    oversubscription,
    recognize_script,
    with_binding,
    with_checks,
    with_scratch,
)
from samestep.run.execution import execute
from samestep.run.rerun import allocation, rerun_in_allocation

PROJECT = "pyproject.toml"
_TABLE = "tool.samestep"


def defaults_in(path: Path, table: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return the values of `table` by the parameters of the context's command.

    Raises:
        UsageError: a key is not an option, or the option does not take its value.
    """
    options = {
        name.lstrip("-"): parameter
        for parameter in context.command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
        if parameter.name != "config"  # it names such a file
        for name in parameter.opts
    }
    values = {}
    for key, value in table.items():
        parameter: Any = options.get(own_name(key))
        if parameter is None:
            names = [name for name in options if len(name) > 1]
            raise UsageError(f"{path}: there is no option {key!r}. {suggestion(own_name(key), names)}")
        values[parameter.name] = _as_typed(value) if parameter.is_flag is isinstance(value, bool) else None
        try:
            if values[parameter.name] is None:
                raise typer.BadParameter("give true or false" if parameter.is_flag else "give a value")
            parameter.process_value(context, values[parameter.name])
        except typer.TyperException as error:
            text = str(getattr(error, "message", error)).rstrip(".")
            raise UsageError(
                f"{path}: {key} = {value!r} is not a value of --{own_name(key)}: {text}."
            ) from None
    return values


def _as_typed(value: Any) -> Any:
    """Return a value of the file as it is typed after a flag; None if it cannot be typed."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [str(item) for item in value]
    return None if isinstance(value, Mapping) else str(value)


def _set_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Give the options of a command the defaults of the project; return the file that they are in."""
    if context.resilient_parsing:  # words are completed
        return file
    path = file or _project()
    if path is None:
        return None
    table = read_toml(path)
    if path.name == PROJECT:
        tools = table.get("tool", {})
        table = tools.get("samestep", {}) if isinstance(tools, Mapping) else {}
        if not isinstance(table, Mapping):
            raise UsageError(f"{path}: samestep is a table: write [{_TABLE}] on a line of its own.")
    context.default_map = defaults_in(path, table, context)
    return path if table else None


def _project() -> Path | None:
    """Return the nearest ``pyproject.toml`` of the working folder, if it can have a table for samestep."""
    here = Path.cwd()
    path = next((folder / PROJECT for folder in (here, *here.parents) if (folder / PROJECT).is_file()), None)
    with suppress(OSError, ValueError):
        # TOML has several notations of a table. Only a file that possibly has this one must be valid.
        if path is not None and "samestep" in path.read_text(encoding="utf-8"):
            return path
    return None


Config = Annotated[
    Path | None,
    option(
        "FILE",
        "Defaults of these options, a TOML file. Without it: the table tool.samestep of pyproject.toml.",
        "",
        is_eager=True,
        callback=_set_defaults,
    ),
]
"""The option of a file with defaults; its value is the file that has given some."""


SETTINGS: Mapping[str, Any] = {
    # Everything after the program belongs to the program, even if it resembles an option of samestep.
    "allow_interspersed_args": False
}

_OUTPUT = "Output"


@grouped
@with_flags_of(Options, defaults=True)
def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(metavar="PROGRAM", help="A script; a module with -m, an executable with --no-python."),
    ],
    arguments: launch.Arguments = None,
    *,
    start: launch.RunWorkers,
    nproc_per_node: Annotated[
        str | None, option("K", "Workers on each node: a number, gpu, cpu or auto.", WORKERS_PANEL)
    ] = None,
    sanitize: Annotated[
        bool,
        switch(
            "Compare the workers in every step: weights, steps, samples, random numbers, NaN. Slower.",
            WORKERS_PANEL,
            "--sanitize",
        ),
    ] = False,
    count: Annotated[
        bool,
        switch(
            "Print the number of steps and samples at the end, and where the time went.",
            CLOCK_PANEL,
            "--count",
        ),
    ] = False,
    recording: launch.Clock,
    mode: Mode = "auto",
    module: launch.Module = False,
    no_python: Annotated[
        bool, switch("The program is an executable of any kind.", WORKERS_PANEL, "--no-python")
    ] = False,
    config: Config = None,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
    dry_run: launch.DryRun = False,
    scratch: Annotated[
        Path | None,
        option("DIR", "Redirect the files that Python, torch and numpy write to this folder.", _OUTPUT),
    ] = None,
    log_dir: Annotated[Path | None, option("DIR", "Folder for each worker's output.", _OUTPUT)] = None,
    redirects: Annotated[
        str,
        option(
            "STREAMS",
            "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:S,..",
            _OUTPUT,
            "-r",
            "--redirects",
        ),
    ] = "0",
    tee: Annotated[
        str,
        option(
            "STREAMS",
            "Streams, as of --redirects, that go to files and, prefixed with the rank, to the console.",
            _OUTPUT,
            "-t",
            "--tee",
        ),
    ] = "0",
    rendezvous: Rendezvous,
    **settings: Any,
) -> None:
    """Run a program on N workers.

    A script that sets up torch.distributed (or uses Accelerate, Lightning, samestep.join, ...) runs as it
    does under torchrun. A script that starts its own workers is started once. In a serial script each model
    call is split across the workers. Under srun, mpirun or torchrun the launcher's tasks are the workers.
    """
    start, nproc_per_node = _without_replaced(start, nproc_per_node, context)
    logs = Logs(folder=log_dir, redirects=Std.parse("--redirects", redirects), tee=Std.parse("--tee", tee))
    job = Job(
        program=launch.program(target, arguments or (), module=module, no_python=no_python),
        workers=start.number,
        per_node=None
        if nproc_per_node is None
        else workers_per_node(nproc_per_node, cpus=cpu_share().usable),
        nodes=rendezvous.nodes(),
        max_restarts=start.max_restarts,
        logs=logs,
        run_id=rendezvous.rdzv_id,
        role=rendezvous.role,
        monitor_interval_s=rendezvous.monitor_interval,
    )
    _refuse_misplaced(job.program, context)
    check_writable(logs)
    mode, threads = checked_mode(mode), start.threads
    if start.workers == launch.AUTO:
        flags = {"mode": mode, "bind": start.bind, "hang_timeout": start.hang_timeout}
        job, threads = _fastest_workers(job, flags, settings, dry_run=dry_run)
    if rerun_in_allocation(job, dry_run=dry_run):
        return
    decision = decide(job, mode=mode, threads=threads, master=rendezvous.master(), environment=env.snapshot())
    decision = with_options(with_binding(decision, start.bind), **settings)
    decision = with_checks(
        decision,
        hang_timeout=start.hang_timeout,
        sanitize=sanitize,
        count=count,
        clocking=recording.checked(),
        oversubscribe=start.oversubscribe,
    )
    decision = with_scratch(decision, scratch)
    refuse_unused(job, decision.plan, rendezvous, launcher=decision.detected.launcher)
    if dry_run:
        warning = oversubscription(decision)
        print("\n".join(dry_run_lines(decision)))
        if warning:
            log(warning)
        return
    if decision.is_main:
        _print_banner(decision, config)
    code = execute(decision)
    if code == 0 and (hint := scale_hint(decision)):
        inform(hint)
    # Without this the interpreter takes 0.4 s to unload torch.
    leave(code)


def _without_replaced(
    start: launch.RunWorkers, per_node: str | None, context: typer.Context
) -> tuple[launch.RunWorkers, str | None]:
    """Return the options of the number of workers, without a default that the other, typed one replaces."""
    typed = tuple(script_words.is_typed(name, context) for name in ("workers", "nproc_per_node"))
    if typed == (False, True):
        return replace(start, workers=None), per_node
    return start, None if typed == (True, False) else per_node


def _print_banner(decision: Decision, config: Path | None) -> None:
    warning = oversubscription(decision)
    for line in banner(decision):
        inform(line)
    if config is not None:
        inform(f"options that are not given are read from {config}")
    if warning:
        log(warning)


def _refuse_misplaced(program: Program, context: typer.Context) -> None:
    """Refuse an option of ``run`` after the program, if the program does not read it.

    One that is given before the program too is meant for the program.

    Raises:
        UsageError: there is one; the message shows the command that is probably meant.
    """
    own_flags: dict[str, Any] = {
        name: parameter
        for parameter in context.command.params
        if parameter.param_type_name == "option" and not script_words.is_typed(parameter.name, context)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    names = script_words.names_after(program.target, context.obj)
    typed = next((name for name in names if _own_flag(name) in own_flags), None)
    if typed is None or program.kind == "executable" or program.target == "samestep":
        return
    known = script_words.program_flags(program)
    if known is None or script_words.can_have(known, typed):
        return
    at = next(at for at, word in enumerate(program.args) if word.partition("=")[0] == typed)
    has_value = "=" not in program.args[at] and not own_flags[_own_flag(typed)].is_flag
    flag = program.args[at : at + 1 + has_value]
    words, rest = context.obj, program.args[at + len(flag) :]
    begin = words.index("run") + 1
    before = words[begin : len(words) - len(program.args) + at]
    raise UsageError(
        f"{typed} after {program.target} is passed to {program.target}, which has no such option. Put it "
        f"before: samestep run {shlex.join([*flag, *before, *rest])}"
    )


def _own_flag(name: str) -> str:
    """Return the name that samestep has for an option as it is typed."""
    return f"--{own_name(name[2:])}" if name.startswith("--") else name


def _fastest_workers(
    job: Job, flags: Mapping[str, Any], settings: Mapping[str, Any], *, dry_run: bool
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
    among = auto_workers.candidates(cpu_share().usable)
    of_script = {name: settings[name] for name in SPLIT if settings[name] != getattr(DEFAULTS, name)}
    module = ["-m"] * (job.program.kind == "module")
    words = [*as_arguments({**flags, **of_script}), *module, job.program.target, *job.program.args]
    with tempfile.TemporaryDirectory(prefix="samestep-auto-", ignore_cleanup_errors=True) as folder:
        trials = auto_workers.runs(among, words, Path(folder))
        if dry_run:
            print("\n".join(in_lines([trial for _, trial in trials], command)))
            raise typer.Exit
        measured = auto_workers.measure(
            trials, lambda trial, limit_s: executed(trial, command(trial), limit_s=limit_s), inform
        )
    inform(auto_workers.in_words(among, measured))
    chosen = auto_workers.fastest(among, measured)
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


HINT_FILE = "scale-hint"
"""The name of the file in the user's cache folder that records that the line was printed."""


def scale_hint(decision: Decision) -> str:
    """Return the line that names the command which compares several workers with one process, and record it.

    Without samestep, one process computes on all cores, and can be as fast as several workers that share
    them. The line is empty after the first time, where that cannot be recorded, where stderr is not a
    terminal, for several nodes, and on a machine that can have GPUs, unless ``--device cpu`` is given.
    """
    if not (_has_hint(decision) and sys.stderr.isatty() and _is_first_hint(user_cache() / HINT_FILE)):
        return ""
    program = decision.job.program
    module = "-m " if program.kind == "module" else ""
    command = f"samestep scale -n 1,{decision.size} {module}-- {shlex.join([program.target, *program.args])}"
    return (
        f"{command} measures whether {decision.size} workers are faster than one process with all of their "
        "cores. This line is printed once."
    )


def _has_hint(decision: Decision) -> bool:
    plan, program = decision.plan, decision.job.program
    if not isinstance(plan, Spawn) or plan.nodes.count > 1 or decision.size == 1 or not decision.is_main:
        return False
    is_measurable = program.kind != "executable" and program.target != "samestep"
    if not is_measurable or decision.starts_workers_alone:
        return False
    return decision.options.device == "cpu" or not can_have_accelerators()


def _is_first_hint(record: Path) -> bool:
    """Create the file `record`; return whether it is new."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch(exist_ok=False)
    except OSError:  # it exists, or cannot be written
        return False
    return True
