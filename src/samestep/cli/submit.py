"""Implements ``samestep submit``, which writes a job for Slurm or Kubernetes, submits and follows it."""

import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from samestep.base.console import StatusLine, inform, log
from samestep.base.errors import INTERRUPTED, UsageError
from samestep.base.record import json_line
from samestep.base.signals import held, interruptible
from samestep.base.units import counted
from samestep.cli import main
from samestep.cli.help_text import help_of
from samestep.cli.options import launch, results, script_words
from samestep.cli.options.declare import WORKERS_PANEL, grouped, option, switch, with_flags_of
from samestep.cli.run import SETTINGS
from samestep.launch.job import Program
from samestep.run.decision import recognize_script, refuse_several_tasks
from samestep.submit.follow import FollowedJob, LogStart, follow
from samestep.submit.job_command import VERBS, JobCommand, parse_command, per_node
from samestep.submit.kubernetes import OPERATORS, FollowedKubernetesJob, KubernetesJob, manifest, service_name
from samestep.submit.kubernetes import submit as submit_to_kubernetes
from samestep.submit.shell import slug
from samestep.submit.site_defaults import POD_PANEL, SIZE_PANEL, KubernetesSite, SlurmSite, site_of
from samestep.submit.slurm import LAUNCHES, FollowedSlurmJob, Launch, SlurmJob, refuse_without_sbatch
from samestep.submit.slurm import script as slurm_script
from samestep.submit.slurm import submit as submit_to_slurm
from samestep.training.recipes import registry


class _Console:
    """Prints the output of a job to a stream, and the times of the job below it on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = StatusLine()
        self._is_at_start = True  # whether the job's output ends with a whole line

    def log(self, text: str) -> None:
        """Log a change of the job's state."""
        self._line.show("")
        inform(text)

    def write(self, output: bytes) -> None:
        """Print output of the job."""
        self._line.show("")
        _write(output, self._stream)
        self._is_at_start = output.endswith(b"\n")

    def show_times(self, text: str) -> None:
        """Show the times of the job; a line that its output has begun stays as it is."""
        if self._is_at_start:
            self._line.show(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The options of the submission of a job, and of its result."""

    dry_run: launch.DryRun = False
    detach: launch.Detach = False
    as_json: results.AsJson = False
    quiet: launch.Quiet = False

    def show(self, text: str) -> int:
        """Print the script of a job that is not submitted, and return the exit code."""
        if self.as_json:
            print(json_line({"text": text}))
        else:
            _write(encoded(text), sys.stdout)
        return 0

    def follow(self, job: FollowedJob, file: Path, *, appends: bool = False) -> int:
        """Follow a job to its end, and return its exit code.

        Ctrl-C, a closed terminal and SIGTERM end the following, not the job.
        `file` is the script of the job, which is older than its log; `appends`: see `LogStart`.
        With ``--json`` the job's output goes to stderr, since stdout has the record of the job.
        """
        code = None
        console = _Console(sys.stderr if self.as_json else sys.stdout)
        try:
            if not self.detach:
                start = LogStart(since_ns=file.stat().st_mtime_ns, appends=appends)
                with interruptible():
                    code = follow(
                        job,
                        start=start,
                        log=console.log,
                        show=console.write,
                        show_times=console.show_times,
                    )
        except KeyboardInterrupt:
            code = INTERRUPTED
            console.show_times("")
            log(f"{job.name} continues, and is no longer followed. To stop it: {job.stop}")
        finally:
            job.close()
        if self.as_json:
            ended = None if code == INTERRUPTED else code
            print(json_line({"job": job.number, "file": str(file), "stop": job.stop, "exit_code": ended}))
        elif self.detach:
            print(job.number)
        return code or 0


def encoded(text: str) -> bytes:
    """Return a script as bytes; arguments that are not UTF-8 keep theirs."""
    return text.encode("utf-8", errors="surrogateescape")


def _write(text: bytes, stream: TextIO) -> None:
    stream.flush()
    stream.buffer.write(text)
    stream.buffer.flush()


FOLDER = Path("jobs")
"""The folder for jobs and their logs, in the working folder."""

WARNING_S = 120
"""Seconds before the time limit; Slurm checks limits every half minute or so."""

Target = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="A script, or a verb: run, train, bench or doctor.")
]
JobName = Annotated[
    str | None, option("NAME", "Name of the job. Default: that of the program.", "", "--job-name", "-J")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The options of the nodes of a job, and of the workers on them."""

    nodes: Annotated[int, option("N", "Number of nodes, or of pods.", SIZE_PANEL)] = 1
    gpus_per_node: launch.GpusPerNode = 0
    workers: launch.WorkerCount = None
    nproc_per_node: Annotated[int | None, option("K", "Workers on each node.", WORKERS_PANEL)] = None


# Options of the job that are often typed after its program.
_MISPLACED = {"--nodes", "--gpus-per-node", "--dry-run"}


@grouped
@with_flags_of(SlurmSite)
def slurm(
    target: Target,
    arguments: launch.Arguments = None,
    *,
    size: Size,
    requeue: Annotated[
        bool,
        switch("Before the time limit, write a checkpoint and requeue the job.", SIZE_PANEL, "--requeue"),
    ] = False,
    warning: Annotated[
        int | None,
        option("S", f"With --requeue: seconds before the time limit. Default: {WARNING_S}.", SIZE_PANEL),
    ] = None,
    launcher: Annotated[
        str,
        option(
            "",
            "tasks: Slurm starts each worker; node: Slurm starts samestep once on each node.",
            WORKERS_PANEL,
            "--launch",
            choices=LAUNCHES,
        ),
    ] = "tasks",
    job_name: JobName = None,
    output: Annotated[
        str | None, option("FILE", "The log; %j is the number of the job.", "", "--output", "-o")
    ] = None,
    submission: Submission,
    **settings: Any,
) -> int:
    """Write a Slurm job, submit it, and follow its state and its log to the end.

    The job is stored in jobs/, so that it can be read, changed and submitted again. Ctrl-C ends the
    following, not the job. The exit code is that of the job. Defaults for all jobs of a site are read from
    the slurm table of ~/.config/samestep/config.toml; flags override them.
    """
    site = site_of(SlurmSite, settings)
    command, script = _work(target, arguments or [], size)
    name = job_name or command.name
    job = SlurmJob(
        command=command,
        name=name,
        nodes=size.nodes,
        per_node=per_node(**asdict(size), in_command=command.workers),
        gpus_per_node=size.gpus_per_node,
        site=site,
        launch=cast("Launch", launcher),
        warning_s=(WARNING_S if warning is None else warning) if requeue else None,
        output=output or str(FOLDER / f"{slug(name)}-%j.log"),
        python=sys.executable,
    )
    tasks = 1 if launcher == "node" else job.workers  # each node's start knows the number of workers
    _refuse_own_workers(script, tasks=tasks, remedy="Submit it with --launch node")
    text = slurm_script(job)
    if submission.dry_run:
        return submission.show(text)
    refuse_without_sbatch()
    file = _store(name, text, suffix=".sbatch")
    with held() as signals:  # a Ctrl-C waits until the number of an accepted job is printed
        submitted = FollowedSlurmJob(submit_to_slurm(file))
        where = f"{counted(job.workers, 'worker')} on {counted(size.nodes, 'node')}"
        log(f"{submitted.name} is submitted: {where}. Its script is {file}.")
    signals.heed()
    return submission.follow(submitted, file, appends=requeue)


@grouped
@with_flags_of(KubernetesSite)
def kubernetes(
    target: Target,
    arguments: launch.Arguments = None,
    *,
    size: Size,
    operator: Annotated[
        str, option("", "Custom resource in place of a Job.", POD_PANEL, choices=OPERATORS)
    ] = "none",
    job_name: JobName = None,
    submission: Submission,
    **settings: Any,
) -> int:
    """Write a Kubernetes job, create it by kubectl, and follow its pods and the log of rank 0 to the end.

    It is an Indexed Job with a headless Service, or with --operator a JobSet or a PyTorchJob. The manifest
    is stored in jobs/. The image or the claim has the script at the same relative path as this folder.
    Ctrl-C ends the following, not the job. Defaults are read from the kubernetes table of
    ~/.config/samestep/config.toml; flags override them.
    """
    site = site_of(KubernetesSite, settings)
    command, script = _work(target, arguments or [], size)
    job = KubernetesJob(
        command=command,
        name=job_name or service_name(command.name),
        nodes=size.nodes,
        per_node=per_node(**asdict(size), in_command=command.workers),
        gpus_per_node=size.gpus_per_node,
        operator=operator,
        site=site,
    )
    # With several workers in a pod, the start of each pod knows their number.
    tasks = size.nodes if job.per_node == 1 else 1
    _refuse_own_workers(script, tasks=tasks, remedy="Give it several workers in each pod")
    text = manifest(job)
    if submission.dry_run:
        return submission.show(text)
    file = _store(job.name, text, suffix=".yaml")
    submit_to_kubernetes(job, file)
    log(
        f"{job.resource} is created: {counted(job.workers, 'worker')} in {counted(size.nodes, 'pod')}. "
        f"Its manifest is {file}."
    )
    return submission.follow(FollowedKubernetesJob(job, file), file)


submit = typer.Typer(help="Write the job for Slurm or Kubernetes, submit it, and follow it to its end.")
for _command, _summary in ((slurm, "Submit a Slurm job."), (kubernetes, "Create a Kubernetes job.")):
    _help = help_of(_command)
    submit.command(help=_help, context_settings=dict(SETTINGS), short_help=_summary)(_command)


def _work(target: str, arguments: list[str], size: Size) -> tuple[JobCommand, Program | None]:
    """Return the command that the job runs, and its script, if it has one whose kind must be detected.

    Raises:
        UsageError: the script does not exist, or the verb cannot run on several workers.
    """
    if target in main.VERBS and target not in VERBS and not Path(target).exists():
        raise UsageError(
            f"samestep {target} does not run on several workers; submit a script, or one of the verbs "
            f"{', '.join(VERBS)}."
        )
    misplaced = [word for word in arguments if word.partition("=")[0] in _MISPLACED]
    is_checked = target in VERBS and target != "run"
    if misplaced and is_checked:
        raise UsageError(f"{misplaced[0]} after {target} is an option of the job; put it before {target}.")
    words = arguments if target in VERBS else [target, *arguments]
    context = _context(target if target in VERBS else "run", words)
    script = None if is_checked else _script(context)
    known = script_words.program_flags(script) if misplaced and script is not None else None
    if known is not None and not script_words.can_have(known, misplaced[0]):
        raise UsageError(
            f"{misplaced[0]} after {target} is passed to the script, which has no such option. Put it before "
            f"{target}."
        )
    if misplaced:
        log(f"`{misplaced[0]}` after {target} was passed to it; an option of the job goes before {target}.")
    flags = 0 if is_checked else len(words) - 1 - len(context.params["arguments"] or ())
    workers = _typed_workers(context)
    configured = None if workers is not None else _configured_workers(context, size)
    return parse_command([target, *arguments], flags=flags, workers=workers, configured=configured), script


def _context(verb: str, words: list[str]) -> typer.Context:
    """Return the context of a verb's command with its options, before the job waits in a queue.

    Raises:
        UsageError: there is no such recipe, or no command of a verb with several.
        TyperException: the verb has no such command or option, or an option does not take its value.
    """
    command: Any = typer.main.get_group(main.application(verb)).commands[verb]
    below = getattr(command, "commands", {})
    if below and not words:
        raise UsageError(f"{verb} needs one of its commands: {', '.join(below)}.")
    context: typer.Context = command.make_context(f"samestep {verb}", list(words))
    if below:
        name, subcommand, rest = command.resolve_command(context, list(words))
        context = subcommand.make_context(name, rest, parent=context)
    elif verb == "train" and context.params["recipe"] is not None:
        registry.find(context.params["recipe"])
    return context


def _typed_workers(context: typer.Context) -> int | None:
    """Return the number of workers that the words of a job's command give; None without one.

    Raises:
        UsageError: they start workers for which the job has no resources.
    """
    if script_words.is_typed("nproc_per_node", context):
        raise UsageError(
            f"--nproc-per-node after {context.info_name} starts workers for which the job has no resources. "
            f"Give it to the job: submit slurm --nproc-per-node 4 {context.info_name} ..."
        )
    return _number(context.params["workers"]) if script_words.is_typed("workers", context) else None


def _number(workers: Any) -> int:
    if workers == launch.AUTO:
        raise UsageError(f"-n {workers} measures one host before a run; give the job a number of workers.")
    return cast("int", workers)


def _configured_workers(context: typer.Context, size: Size) -> int | None:
    """Return the number of workers of a job for whose command a file has a default; None without one."""
    default = context.params.get("workers")
    if default is None:
        return None
    if size.workers is not None:
        return size.workers
    return _number(default) if size.nproc_per_node is None else size.nproc_per_node * size.nodes


def _script(context: typer.Context) -> Program | None:
    """Return the script of a ``samestep run``, unless it has ``--mode``.

    Modules and executables may exist on the nodes only: they are not checked.

    Raises:
        UsageError: there is no such script, or it is a launcher.
    """
    values = context.params
    if values["module"] or values["no_python"]:
        launch.refuse_launcher(values["target"], "module" if values["module"] else "executable")
        return None
    program = launch.program(values["target"], values["arguments"] or (), module=False)
    return program if values["mode"] == "auto" else None


def _refuse_own_workers(script: Program | None, *, tasks: int, remedy: str) -> None:
    """Refuse a script that each of the job's tasks would refuse, before the job waits in a queue.

    Raises:
        UsageError: the script starts its own workers.
    """
    if script is not None and tasks > 1:
        refuse_several_tasks(script, recognize_script(script), remedy=remedy)


def _store(name: str, text: str, *, suffix: str) -> Path:
    """Write a job's script to a new file, and return it.

    Raises:
        UsageError: the file cannot be written.
    """
    stem = f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"  # noqa: DTZ005 - local time, for readers
    file, count = FOLDER / f"{stem}{suffix}", 1
    try:
        FOLDER.mkdir(exist_ok=True)
        while not _writes_new(file, encoded(text)):
            count += 1
            file = FOLDER / f"{stem}-{count}{suffix}"
    except OSError as error:
        raise UsageError(
            f"cannot write the job to {FOLDER}/: {error.strerror}. Submit it from another folder."
        ) from None
    return file


def _writes_new(file: Path, data: bytes) -> bool:
    """Write a file, and return whether it did not exist: another command can begin in the same second."""
    with suppress(FileExistsError), file.open("xb") as stream:
        stream.write(data)
        return True
    return False
