"""Executes the runs of a study one after another: on this host, or as steps of a Slurm allocation.

Each run is its own command. In an allocation the workers are tasks of srun. If launchers are compared, one
task on each node starts them.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, sleep

from samestep.base import env
from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.machine.description import cpu_share
from samestep.base.signals import held, interruptible
from samestep.base.units import counted
from samestep.launch.local.orphans import end_all, family
from samestep.launchers.detect import detect
from samestep.launchers.processors import threads_per_rank
from samestep.launchers.slurm_capacity import Launched, SlurmCapacity, slurm_capacity
from samestep.scaling.analysis.study import Study
from samestep.scaling.sweep.execution import Frame, finish, new_folder
from samestep.scaling.sweep.host_load import Load, sample_load
from samestep.scaling.sweep.plan import in_lines
from samestep.scaling.sweep.trial import (
    LATE_S,
    SAMESTEP,
    Outcome,
    Report,
    Trial,
    is_complete,
    is_usage_error,
    outcome_of,
)

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
