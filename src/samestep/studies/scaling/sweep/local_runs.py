"""Executes the runs of a scaling study on this host, or in the Slurm allocation of this process."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from samestep.base import env
from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count
from samestep.base.machine.description import cpu_share
from samestep.base.units import counted
from samestep.launchers.compute_threads import threads_per_rank
from samestep.launchers.detect import detect
from samestep.launchers.slurm_capacity import Room, room
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.sweep.collect import Frame
from samestep.studies.scaling.sweep.execution import finish, new_folder
from samestep.studies.scaling.sweep.local import Local, step
from samestep.studies.scaling.sweep.plan import in_lines
from samestep.studies.scaling.sweep.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRuns:
    """The runs of a study on this host or in an allocation.

    Args:
        runner: executes the runs.
        places: number of workers that can compute at the same time.
        what: the resources behind `places`, in words.
        threads: compute threads of each worker; None if this command does not set them.
        per_node: maximum number of workers per node; None for a single node.
    """

    runner: Local
    places: int
    what: str
    threads: int | None = None
    per_node: int | None = None

    def describe(self, frame: Frame, trials: Sequence[Trial]) -> str:  # noqa: ARG002 - SlurmRuns needs it
        """Return the commands of the runs, as lines."""
        return "\n".join(in_lines(trials, self.runner.command))

    def execute(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int]:
        """Execute the runs, and return their study and the exit code."""
        with new_folder(frame.request.folder):
            others = self.runner.background_load()
            if others is not None and others.is_much:  # before time is spent on runs beside them
                log(
                    f"other programs keep {others.in_words()} busy; rates may be lower than on an idle "
                    "machine, and differ between runs."
                )
            return finish(frame, trials, self.runner)


def local_runs(
    numbers: Sequence[int], *, threads: int | None, compared: Sequence[int], on_cpu: bool
) -> LocalRuns:
    """Return the runs on this host, or in the Slurm allocation of this process.

    Args:
        numbers: numbers of workers.
        threads: compute threads of each worker, if the user gave a number.
        compared: compute threads in the variants, if these differ in them.
        on_cpu: whether accelerators are not used.

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
    held = room(environment)
    each = max(compared, default=threads) or _threads_of_environment(environment)
    if held is not None and (held.nodes > 1 or shutil.which("srun")):
        where = _in_allocation(replace(held, gpus=None) if on_cpu else held, max(numbers), each=each)
        return replace(where, threads=threads)  # None: each Slurm step gives its workers the same share
    if accelerators := 0 if on_cpu else accelerator_count():
        what = counted(accelerators, "accelerator")
        return LocalRuns(runner=Local(), places=accelerators, what=what, threads=threads)
    share = cpu_share()
    if each is None:
        # The same number at each -n: if one worker used all cores, more workers could not be faster.
        each = threads = max(1, share.usable // max(numbers))
    what = _shared_by(f"{counted(share.usable, 'core')} ({share.limited_by})", each)
    return LocalRuns(runner=Local(), places=max(1, share.usable // each), what=what, threads=threads)


def _threads_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the threads that the user's environment sets for a worker; None if it sets none."""
    if not environment.get("OMP_NUM_THREADS", "").strip():
        return None
    return threads_per_rank(environment, cpu_share(), local_size=1, sharing=1).count


def _shared_by(what: str, each: int) -> str:
    return what if each == 1 else f"{what}, {each} threads each"


def _in_allocation(held: Room, largest: int, *, each: int | None) -> LocalRuns:
    """Return the runs in an allocation; `each` is the threads of a CPU worker, if the user set them."""
    if shutil.which("srun") is None:
        raise UsageError(
            f"{held.in_words()} needs srun to start workers on its nodes, and there is no srun here."
        )
    log(f"each run is a step of {held.in_words()}")
    places, what = held.places, held.in_words()
    if each is not None and held.gpus is None:
        places = min(places, held.nodes * max(1, held.processors // each))
        what = _shared_by(what, each)
    runner = Local(partial(step, room=held, largest=largest), is_here=False)
    return LocalRuns(runner=runner, places=places, what=what, per_node=held.per_node(largest))
