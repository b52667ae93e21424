"""Executes the runs of a study one after another: on this host, or as steps of a Slurm allocation.

Each run is its own command. In an allocation the workers are tasks of srun. If launchers are compared, one
task on each node starts them. The steps of several sizes fill the nodes in the layout of the request, and a
worker has the same number of processors for every size::

    salloc --nodes=2 --ntasks-per-node=2        1 worker   node0: 0
                                                2 workers  node0: 0 1
                                                4 workers  node0: 0 1   node1: 2 3
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, sleep
from typing import Literal, TypeAlias

from samestep.base import env
from samestep.base.console import log
from samestep.base.env import Environment, integer
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.machine.description import cpu_share
from samestep.base.signals import held, interruptible
from samestep.base.units import counted
from samestep.launch.local.orphans import end_all, family
from samestep.launchers.detect import UNLAUNCHED, detect
from samestep.launchers.hostlist import hosts, tasks_per_node
from samestep.launchers.processors import threads_per_rank
from samestep.scaling.analysis.study import Study
from samestep.scaling.sweep.execution import Frame, finish, new_folder
from samestep.scaling.sweep.plan import in_lines
from samestep.scaling.sweep.trial import (
    LATE_S,
    SAMESTEP,
    Load,
    Outcome,
    Report,
    Trial,
    is_complete,
    is_usage_error,
    outcome_of,
    sample_load,
)

Launched: TypeAlias = Literal["tasks", "node"]
_GPUS = re.compile(r"(\d+)(?:,|$)")  # pattern of the counts in ``4``, ``a100:4`` and ``a100:2,v100:2``


_OF_GPUS = ("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES")
_OF_TASKS = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables of an allocation that srun reads as flags: it refuses those that contradict a step's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCapacity:
    """Capacity of an allocation for the steps that are started in it, from its nodes or from outside."""

    job: str  # its job ID
    nodes: int  # number of nodes
    tasks: int  # requested workers on the node with the fewest
    processors: int  # processors of the node with the fewest: all nodes take equally many workers
    cpus_per_task: int | None = None  # processors requested for each worker; None if not given
    gpus: int | None = None  # GPUs of each node; None if Slurm does not give them
    first: str = "localhost"  # the first of the nodes
    inherited: tuple[str, ...] = ()  # variables that may contradict a step's own flags

    @property
    def places(self) -> int:
        """Number of workers that can compute at the same time, on separate processors and separate GPUs."""
        each = max(self.tasks, self.processors // (self.cpus_per_task or 1))
        return self.nodes * (each if self.gpus is None else min(each, self.gpus))

    def per_node(self, largest: int) -> int:
        """Return the workers of a node if steps have up to `largest` workers."""
        asked = self.tasks if self.gpus is None else min(self.tasks, self.gpus)
        return max(asked, -(-largest // self.nodes))

    def in_words(self) -> str:
        """Return a description of the allocation."""
        each = f", {self.cpus_per_task} for each worker" if self.cpus_per_task else ""
        gpus = "" if self.gpus is None else f" and {self.gpus} GPU(s)"
        there = f"{self.nodes} node(s) with {self.processors} processor(s){each}{gpus}"
        return f"Slurm allocation {self.job} ({there}: room for {self.places})"

    def step(
        self, workers: int, *, nodes: int, largest: int, launched: Launched = "tasks", cores_of: int = 1
    ) -> list[str]:
        """Return the srun that starts workers; the command of each task follows it.

        Each of `nodes` gets equally many of the `workers`; `largest` is the number of workers of the largest
        step. With `launched` ``node``, one task per node starts its workers. Each task has the processors of
        `cores_of` tasks.
        """
        tasks = workers if launched == "tasks" else nodes
        # Starts at the first node, which has the rendezvous of a launcher's workers.
        size = [
            f"--nodes={nodes}",
            "--relative=0",
            f"--ntasks={tasks}",
            f"--ntasks-per-node={tasks // nodes}",
        ]
        each = self.cpus_per_task or self.processors // self.per_node(largest)
        has_places = workers <= self.places
        share = ["--overcommit"]
        if (each or cores_of > 1) and has_places:
            # Without --exact a worker would have more processors the fewer workers there are.
            share = [f"--cpus-per-task={max(1, each) * cores_of * workers // tasks}", "--exact"]
        gpus = []
        if self.gpus is not None:
            # Otherwise a step would request the GPUs of the whole allocation, which fewer nodes do not have.
            per_node = min(workers // nodes, self.gpus)
            gpus = [f"--gpus={nodes * per_node}", f"--gpus-per-node={per_node}"]
        # The allocation's flags per task apply only if each task is a worker with separate processors.
        dropped = _OF_GPUS if has_places and launched == "tasks" else (*_OF_GPUS, *_OF_TASKS)
        unset = [word for name in self.inherited if name in dropped for word in ("-u", name)]
        return [*(["env", *unset] if unset else ()), "srun", *size, *share, *gpus, "--kill-on-bad-exit=1"]


def slurm_capacity(env: Environment) -> SlurmCapacity | None:
    """Return the capacity of this process's allocation; None without one, or for a step's task."""
    if not env.get("SLURM_JOB_ID") or detect(env).launcher != UNLAUNCHED:
        return None
    one_each = f"1(x{integer(env, 'SLURM_JOB_NUM_NODES') or 1})"
    tasks = tasks_per_node(env.get("SLURM_TASKS_PER_NODE") or one_each)
    processors = tasks_per_node(env.get("SLURM_JOB_CPUS_PER_NODE") or one_each)
    return SlurmCapacity(
        job=env["SLURM_JOB_ID"],
        nodes=len(tasks),
        tasks=min(tasks),
        processors=min(processors),
        cpus_per_task=integer(env, "SLURM_CPUS_PER_TASK"),
        gpus=_gpus(env, nodes=len(tasks), tasks=min(tasks)),
        first=next(iter(hosts(env.get("SLURM_JOB_NODELIST", ""))), "localhost"),
        inherited=tuple(name for name in (*_OF_GPUS, *_OF_TASKS) if env.get(name)),
    )


def _gpus(env: Environment, *, nodes: int, tasks: int) -> int | None:
    """Return the GPUs of each node, from the variables of salloc and sbatch; None if they give none."""
    for name, share in (
        ("SLURM_GPUS_ON_NODE", 1.0),
        ("SLURM_GPUS_PER_NODE", 1.0),
        ("SLURM_GPUS", 1 / nodes),
        ("SLURM_GPUS_PER_TASK", tasks),
    ):
        counts = _GPUS.findall(env.get(name, ""))
        if counts:
            return int(sum(map(int, counts)) * share)
    return None


_FILES_S = 0.1  # the interval at which the files of a run are polled
_GRACE_S = 20.0  # the time that a terminated run has to end its workers before it is killed

# The first rendezvous port of torchrun; steps have different ports, since one can be in use for a while.
_PORT = 29400


def command(trial: Trial) -> list[str]:
    """Return the command that starts the workers of `trial` on this host and waits for them.

    Raises:
        UsageError: its launcher is not available here.
    """
    if trial.launcher in ("", SAMESTEP):
        return trial.launch_command(sys.executable)
    if trial.launcher == "torchrun":
        return _torchrun(trial, "--standalone")
    hint = "" if shutil.which("srun") is None else " Start this command in an allocation (salloc, sbatch)."
    raise UsageError(f"--compare launcher={trial.launcher} needs a Slurm allocation, and this is none.{hint}")


def step(trial: Trial, *, room: SlurmCapacity, largest: int) -> list[str]:
    """Return the command that starts the workers of `trial` as a step of an allocation, and waits for them.

    The allocation has the capacity `room`, and the largest run has `largest` workers.
    """
    launched: Launched = "tasks" if trial.launcher in ("", "srun") else "node"
    srun = room.step(
        trial.workers, nodes=trial.nodes, largest=largest, launched=launched, cores_of=trial.cores_of
    )
    if launched == "tasks":
        return [*srun, *trial.task_command(sys.executable)]
    if trial.launcher == SAMESTEP:
        return [*srun, *trial.launch_command(sys.executable)]
    endpoint = f"{room.first}:{_PORT + trial.number % 500}"
    several = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={room.job}.{trial.number}")
    return [*srun, *_torchrun(trial, *(("--standalone",) if trial.nodes == 1 else several))]


def _torchrun(trial: Trial, *rendezvous: str) -> list[str]:
    """Return the torchrun command that starts the workers of a node."""
    size = (f"--nnodes={trial.nodes}", f"--nproc-per-node={trial.workers // trial.nodes}")
    logs = f"--log-dir={trial.scratch / 'torchrun'}"  # the default leaves a folder in the temporary directory
    torchrun = [sys.executable, "-m", "torch.distributed.run", *size, logs, *rendezvous]
    return [*torchrun, *trial.task_command(sys.executable)[1:]]


class Local:
    """A runner of commands on this host, which executes one run at a time.

    Args:
        command: returns the command that starts the workers of a run and waits for them.
        is_here: whether the workers run on this host, so that its load is sampled.
    """

    def __init__(self, command: Callable[[Trial], list[str]] = command, *, is_here: bool = True) -> None:
        self.command = command
        self._is_here = is_here

    def background_load(self) -> Load | None:
        """Return the load of other programs on the machine of the runs; None if unknown."""
        return sample_load() if self._is_here else None

    def run(self, trials: Sequence[Trial], report: Report) -> Iterator[Outcome]:
        """Execute runs one after another and yield the outcome of each.

        The repeats of a failed run are skipped, since they fail as well.

        Raises:
            UsageError: a run had wrong arguments or could not be started, and there is no result yet.
        """
        commands = [self.command(trial) for trial in trials]
        failed: set[object] = set()
        measured = False
        for trial, words in zip(trials, commands, strict=True):
            if trial.case in failed:
                continue
            background = self.background_load()
            report(trial.in_words())
            outcome = replace(executed(trial, words), background=background)
            measured = measured or not outcome.error
            if not measured and (outcome.exit_code is None or is_usage_error(outcome)):
                # No result is lost, and all other runs have the same arguments.
                why = outcome.error.removesuffix(".")
                log = f" Its log: {trial.log}" if trial.log.exists() else ""
                raise UsageError(f"{trial.in_words()}: {why}. Nothing was measured.{log}")
            if outcome.error:
                failed.add(trial.case)
            yield outcome


def prepare(trial: Trial) -> None:
    """Create the folders of a run, empty."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    for folder in (trial.clock, trial.scratch):
        folder.mkdir(parents=True)


def executed(trial: Trial, words: Sequence[str], *, limit_s: float | None = None) -> Outcome:
    """Execute a run; one that cannot be started, as on a full disk, has failed.

    A run is ended after `limit_s` seconds, if that is given.
    """
    begun = monotonic()
    try:
        code = _ended(trial, words, limit_s)
    except subprocess.TimeoutExpired:
        return Outcome(trial=trial, exit_code=None, error="it took too long", is_late=True)
    except OSError as error:
        return Outcome(trial=trial, exit_code=None, error=f"it could not be started: {error.strerror}")
    took = monotonic() - begun
    if code == 0 and trial.nodes > 1:
        since = monotonic()  # a network file system delays the files of other nodes
        while not is_complete(trial) and monotonic() - since < LATE_S:
            sleep(_FILES_S)
    return replace(outcome_of(trial, code), seconds=took)


def _ended(trial: Trial, words: Sequence[str], limit_s: float | None) -> int:
    """Execute a command and return its exit code; no process of it is left in any case.

    Raises:
        TimeoutExpired: it took longer than `limit_s` seconds.
    """
    prepare(trial)
    with trial.log.open("wb") as log, held() as signals:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**env.snapshot(), **trial.environment},
        )
        try:
            with interruptible():
                signals.heed()
                code = process.wait(limit_s)
        finally:
            _end(process)  # a second Ctrl-C must not leave it running
            shutil.rmtree(trial.scratch, ignore_errors=True)
    signals.heed()
    return 128 - code if code < 0 else code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run with its workers: terminate it, which ends them, and kill all of them after a time."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        started = family({process.pid})
        process.kill()
        process.wait()
        end_all(started, ended={process.pid})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRuns:
    """The runs of a study on this host or in an allocation."""

    runner: Local  # executes the runs
    places: int  # number of workers that can compute at the same time
    resources: str  # the resources behind `places`, in words
    threads: int | None = None  # compute threads of each worker; None if this command does not set them
    per_node: int | None = None  # maximum number of workers per node; None for a single node
    # compute threads of each worker on CPUs, whichever command sets them; None if unknown
    each: int | None = None
    on_cores: int = 1  # the most workers of a node that compute on separate cores; 1 for accelerators

    def describe(self, frame: Frame, trials: Sequence[Trial]) -> str:  # noqa: ARG002 - SlurmRuns needs it
        """Return the commands of the runs, as lines."""
        return "\n".join(in_lines(trials, self.runner.command))

    def execute(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int]:
        """Execute the runs, and return their study and the exit code."""
        with new_folder(frame.request.folder):
            background = self.runner.background_load()
            if background is not None and background.is_much:  # before time is spent on runs beside them
                log(
                    f"other programs keep {background.in_words()} busy; rates may be lower than on an idle "
                    "machine, and differ between runs."
                )
            return finish(frame, trials, self.runner)


def local_runs(
    numbers: Sequence[int], *, threads: int | None, compared: Sequence[int], on_cpu: bool
) -> LocalRuns:
    """Return the runs on this host, or in the Slurm allocation of this process.

    `threads` are the compute threads of each worker, if the user gave a number, and `compared` those in the
    variants, if these differ in them.

    Raises:
        UsageError: this process is one of several tasks, or the number of threads is below 1.
    """
    environment = env.snapshot()
    if detect(environment).place.size > 1:
        raise UsageError(
            "scale starts its own runs; start it in one process, not as several tasks of a launcher."
        )
    if threads is not None and threads < 1:
        raise UsageError(f"--threads is {threads}; give at least 1.")
    capacity = slurm_capacity(environment)
    each = max(compared, default=threads) or _threads_of_environment(environment)
    if capacity is not None and (capacity.nodes > 1 or shutil.which("srun")):
        where = _in_allocation(replace(capacity, gpus=None) if on_cpu else capacity, max(numbers), each=each)
        return replace(where, threads=threads)  # None: each Slurm step gives its workers the same share
    if accelerators := 0 if on_cpu else accelerator_count():
        resources = counted(accelerators, "accelerator")
        return LocalRuns(runner=Local(), places=accelerators, resources=resources, threads=threads)
    share = cpu_share()
    if each is None:
        # The same number at each -n; one worker with all cores is measured beside them.
        each = threads = max(1, share.usable // max(numbers))
    resources = _shared_by(f"{counted(share.usable, 'core')} ({share.limited_by})", each)
    places = max(1, share.usable // each)
    return LocalRuns(
        runner=Local(), places=places, resources=resources, threads=threads, each=each, on_cores=places
    )


def _threads_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the threads that the user's environment sets for a worker; None if it sets none."""
    if not environment.get("OMP_NUM_THREADS", "").strip():
        return None
    return threads_per_rank(environment, cpu_share(), local_size=1, sharing=1).count


def _shared_by(resources: str, each: int) -> str:
    return resources if each == 1 else f"{resources}, {each} threads each"


def _in_allocation(capacity: SlurmCapacity, largest: int, *, each: int | None) -> LocalRuns:
    """Return the runs in an allocation; `each` is the threads of a CPU worker, if the user set them."""
    if shutil.which("srun") is None:
        raise UsageError(
            f"{capacity.in_words()} needs srun to start workers on its nodes, and there is no srun here."
        )
    log(f"each run is a step of {capacity.in_words()}")
    places, resources = capacity.places, capacity.in_words()
    if each is not None and capacity.gpus is None:
        places = min(places, capacity.nodes * max(1, capacity.processors // each))
        resources = _shared_by(resources, each)
    runner = Local(partial(step, room=capacity, largest=largest), is_here=False)
    on_cores = max(1, places // capacity.nodes) if capacity.gpus is None else 1
    per_node = capacity.per_node(largest)
    return LocalRuns(
        runner=runner, places=places, resources=resources, per_node=per_node, each=each, on_cores=on_cores
    )
