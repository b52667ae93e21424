"""``samestep run``: a program on N workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.cli import job_flags
from samestep.cli.hash_seed import fix_hash_seed
from samestep.cli.job_flags import Meeting
from samestep.cli.outside import went_in
from samestep.cli.running import act, banner, decide, tell, watched
from samestep.cli.running import dry_run as dry_run_of
from samestep.cli.scratch import with_scratch
from samestep.cli.secret_flag import with_secret_file
from samestep.cli.serial_flags import with_options
from samestep.cli.shares import bound
from samestep.collectives.crossovers import ALGORITHMS
from samestep.launch.hosting import leave
from samestep.launch.job import Job

SETTINGS: Mapping[str, Any] = {
    # What stands behind the program is the program's, whatever it looks like.
    "allow_interspersed_args": False,
    # torchrun takes its flags with dashes and with underscores.
    "token_normalize_func": lambda name: name.replace("_", "-"),
}

_JOB, _NODES, _OUTPUT = "Workers", "Several nodes (torchrun's flags)", "Output"
_SERIAL = "Serial scripts"


@with_secret_file
def run(
    target: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, or what -m or --no-python say.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Handed to the program untouched.")
    ] = None,
    *,
    workers: Annotated[
        int | None,
        typer.Option("-n", metavar="N", help="Workers in total, on all nodes.", rich_help_panel=_JOB),
    ] = None,
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="Workers on each node: a number, gpu, cpu, auto.", rich_help_panel=_JOB
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="T", help="Compute threads of each worker.", rich_help_panel=_JOB)
    ] = None,
    bind: Annotated[
        str,
        typer.Option(
            help="core: each worker has cores of its own, near its GPU; numa: a node; none.",
            rich_help_panel=_JOB,
        ),
    ] = "none",
    max_restarts: Annotated[
        int, typer.Option(help="How often all workers start afresh after one failed.", rich_help_panel=_JOB)
    ] = 0,
    hang_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long a worker may wait in a collective for one that does not come; 0 is without end.",
            rich_help_panel=_JOB,
        ),
    ] = 60.0,
    count: Annotated[
        bool,
        typer.Option(
            "--count",
            help="Say at the end how many steps and samples there were, and where the time went.",
            rich_help_panel=_JOB,
        ),
    ] = False,
    clock: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write down each worker's steps there: how long each took, and each part of it.",
            rich_help_panel=_JOB,
        ),
    ] = None,
    clock_steps: Annotated[
        int | None,
        typer.Option(metavar="K", help="Stop the run after so many clocked steps.", rich_help_panel=_JOB),
    ] = None,
    clock_warm_up: Annotated[
        int, typer.Option(metavar="W", help="Steps before the first that is clocked.", rich_help_panel=_JOB)
    ] = 5,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Compare the workers in every step: weights, steps, samples, random numbers, NaN. Slower.",
            rich_help_panel=_JOB,
        ),
    ] = False,
    mode: Annotated[
        str,
        typer.Option(
            help="auto: look at the script; autopilot: it is serial; native: start it N times as it is.",
            rich_help_panel=_JOB,
        ),
    ] = "auto",
    module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a Python module.")] = False,
    no_python: Annotated[bool, typer.Option("--no-python", help="PROGRAM is any executable.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Run a serial script's first steps, report what is split, keep nothing."
        ),
    ] = False,
    batch_norm: Annotated[
        str,
        typer.Option(
            help="Of a serial script: global, over the whole batch, or local, over each worker's slice.",
            rich_help_panel=_SERIAL,
        ),
    ] = "global",
    split: Annotated[
        str,
        typer.Option(
            help="Of a serial script: call, its models' calls are cut, or loader, its batches are.",
            rich_help_panel=_SERIAL,
        ),
    ] = "call",
    load: Annotated[
        str,
        typer.Option(
            help="Of a serial script: shared, each worker loads its share of a batch, replicated, all of it.",
            rich_help_panel=_SERIAL,
        ),
    ] = "auto",
    random: Annotated[
        str,
        typer.Option(
            help="Of a serial script: global, the whole batch's numbers, or per-worker, each its own.",
            rich_help_panel=_SERIAL,
        ),
    ] = "global",
    device: Annotated[
        str,
        typer.Option(
            help="Of a serial script: auto, or cpu, also for one that says cuda.", rich_help_panel=_SERIAL
        ),
    ] = "auto",
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Of a serial script: the all-reduce of gradients, {', '.join(ALGORITHMS)}, such as "
            "tree,ring:64K, or auto, as samestep bench all-reduce --save found.",
            rich_help_panel=_SERIAL,
        ),
    ] = None,
    check_every: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Of a serial script: compute every K-th split call unsplit too, and compare; 0 for never. "
            "By default ever fewer, at about 1 % of the time.",
            rich_help_panel=_SERIAL,
        ),
    ] = None,
    all_output: Annotated[
        bool,
        typer.Option(
            "--all-output",
            help="What all workers of a serial script print, prefixed with the rank.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What Python, torch and numpy write goes there, and the files stay as they are.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep each worker's output there.", rich_help_panel=_OUTPUT),
    ] = None,
    redirects: Annotated[
        str,
        typer.Option(
            "-r",
            "--redirects",
            help="Streams to files only: 1 stdout, 2 stderr, 3 both, or RANK:S,..",
            rich_help_panel=_OUTPUT,
        ),
    ] = "0",
    tee: Annotated[
        str,
        typer.Option(
            "-t",
            "--tee",
            help="Streams to files and, prefixed with the rank, to the console.",
            rich_help_panel=_OUTPUT,
        ),
    ] = "0",
    nnodes: Annotated[str, typer.Option(help="Number of nodes.", rich_help_panel=_NODES)] = "1",
    node_rank: Annotated[
        int | None, typer.Option(help="Which node this is, from 0.", rich_help_panel=_NODES)
    ] = None,
    master_addr: Annotated[
        str, typer.Option(help="A host name or address of node 0.", rich_help_panel=_NODES)
    ] = "",
    master_port: Annotated[
        int | None, typer.Option(help="A free port on it.", rich_help_panel=_NODES)
    ] = None,
    rdzv_backend: Annotated[
        str, typer.Option(help="static (the flags above) or c10d.", rich_help_panel=_NODES)
    ] = "",
    rdzv_endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where c10d meets.", rich_help_panel=_NODES)
    ] = "",
    rdzv_id: Annotated[str, typer.Option(help="Names the run.", rich_help_panel=_NODES)] = "",
    rdzv_conf: Annotated[
        str, typer.Option(metavar="K=V,..", help="Options of the rendezvous.", rich_help_panel=_NODES)
    ] = "",
    standalone: Annotated[
        bool, typer.Option("--standalone", help="This node alone (the default).", rich_help_panel=_NODES)
    ] = False,
    role: Annotated[str, typer.Option(help="Told to the workers.", rich_help_panel=_NODES)] = "default",
    monitor_interval: Annotated[
        float, typer.Option(help="Seconds between two looks at the other nodes.", rich_help_panel=_NODES)
    ] = 0.1,
) -> None:
    """Run a program on N workers.

    A script that sets up torch.distributed (or uses Accelerate, Lightning, samestep.join, ...) runs as it
    would under torchrun; one that starts its own workers is started once. Of a serial script the models'
    calls are split. Under srun, mpirun or torchrun the launcher's tasks are the workers.
    """
    meeting = Meeting(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        backend=rdzv_backend,
        endpoint=rdzv_endpoint,
        options=rdzv_conf,
        standalone=standalone,
    )
    job = Job(
        program=job_flags.program(target, arguments or [], module=module, no_python=no_python),
        workers=workers,
        per_node=job_flags.per_node(nproc_per_node),
        nodes=job_flags.nodes(meeting),
        max_restarts=max_restarts,
        logs=job_flags.logs(log_dir, redirects, tee),
        run_id=rdzv_id,
        role=role,
        monitor_interval_s=monitor_interval,
    )
    if went_in(job, dry_run=dry_run):
        return
    mode = _checked(mode)
    if not dry_run:
        fix_hash_seed(job, mode)
    decision = decide(
        job,
        mode=mode,
        threads=threads,
        master=job_flags.master(meeting),
        environment=env.snapshot(),
    )
    decision = with_options(
        bound(decision, bind),
        explain=explain,
        batch_norm=batch_norm,
        load=load,
        split=split,
        random=random,
        device=device,
        algorithm=algorithm,
        check_every=check_every,
        all_output=all_output,
    )
    clocking = job_flags.clocking(clock, steps=clock_steps, warm_up=clock_warm_up)
    decision = watched(decision, hang_timeout=hang_timeout, sanitize=sanitize, count=count, clocking=clocking)
    decision = with_scratch(decision, scratch)
    job_flags.refuse_unused(job, decision.plan, meeting, launcher=decision.found.launcher)
    if dry_run:
        print("\n".join(dry_run_of(decision)))
        return
    if decision.speaks:
        for line in banner(decision):
            tell(line)
    code = act(decision)
    # The interpreter would take 0.4 s to take torch apart.
    leave(code)


def _checked(mode: str) -> str:
    if mode not in ("auto", "autopilot", "native"):
        raise UsageError(f"--mode {mode!r} is none of auto, autopilot and native.")
    return mode
