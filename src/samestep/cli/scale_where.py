"""Where the runs of a study happen: who starts their workers, and how many of them can compute at once."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine import cpu_share
from samestep.base.units import counted
from samestep.cli.running import tell
from samestep.cli.scale_study import finish, new_folder
from samestep.launch.accelerators import accelerator_count
from samestep.launch.room import Room, room
from samestep.scaling.study import Study
from samestep.trials import launchers
from samestep.trials.collect import Frame
from samestep.trials.load import Load
from samestep.trials.local import Local
from samestep.trials.plan import in_lines
from samestep.trials.steps import Steps, step
from samestep.trials.trial import Trial
from samestep.world.compute_threads import threads_per_rank
from samestep.world.detect import detect


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A place for runs.

    Args:
        runner: runs them.
        command: returns what starts one.
        places: workers that can compute at the same time.
        what: they compute on, in words.
        threads: of each worker; None where that is not for this command to say.
        per_node: workers on a node at most; None for one node.
    """

    runner: Local
    command: Callable[[Trial], Sequence[str]]
    places: int
    what: str
    threads: int | None = None
    per_node: int | None = None

    def shown(self, frame: Frame, trials: Sequence[Trial]) -> str:  # noqa: ARG002 - that of jobs needs it
        """Return what would be run, as lines."""
        return "\n".join(in_lines(trials, self.command))

    def made(self, frame: Frame, trials: Sequence[Trial]) -> tuple[Study, int]:
        """Run trials; return the study of them and the exit code."""
        with new_folder(frame.request.folder):
            _warn_of(self.runner.background_load())
            return finish(frame, trials, self.runner)


def _warn_of(others: Load | None) -> None:
    """Say what other programs do, before any time is spent on runs beside them."""
    if others is not None and others.is_much:
        tell(
            f"other programs keep {others.in_words()} busy: rates may be less than on a quiet machine, and "
            "differ from run to run."
        )


def here(numbers: Sequence[int], *, threads: int | None, compared: Sequence[int], on_cpu: bool) -> Where:
    """Return this host, or the Slurm allocation that this process has.

    Args:
        numbers: of workers.
        threads: of each, if the user said.
        compared: threads of each in the variants, where these differ in them.
        on_cpu: whether accelerators are left alone.

    Raises:
        UsageError: this process is one of several workers already, or the number of threads is none.
    """
    environment = env.snapshot()
    if detect(environment).place.size > 1:
        raise UsageError("scale starts its own runs: call it in one process, not as the tasks of a launcher.")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: a worker computes with at least one.")
    held = room(environment)
    each = max(compared, default=threads) or _threads_of_environment(environment)
    if held is not None and (held.nodes > 1 or shutil.which("srun")):
        where = _in_allocation(replace(held, gpus=None) if on_cpu else held, max(numbers), each=each)
        return replace(where, threads=threads)  # else what a step gives each worker, the same in all
    accelerators = 0 if on_cpu else accelerator_count()
    if accelerators:
        return Where(
            runner=Local(),
            command=launchers.command,
            places=accelerators,
            what=counted(accelerators, "accelerator"),
            threads=threads,
        )
    share = cpu_share()
    cores = f"{counted(share.usable, 'core')} ({share.limited_by})"
    if each is None:
        # The same for each, however many there are: with all cores at one worker, more could bring nothing.
        each = threads = max(1, share.usable // max(numbers))
    return Where(
        runner=Local(),
        command=launchers.command,
        places=max(1, share.usable // each),
        what=_shared_by(cores, each),
        threads=threads,
    )


def _threads_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the threads of a worker that the user's variables say; None where they do not."""
    if not environment.get("OMP_NUM_THREADS", "").strip():
        return None
    return threads_per_rank(environment, cpu_share(), local_size=1, sharing=1).count


def _shared_by(what: str, each: int) -> str:
    return what if each == 1 else f"{what}, {each} threads each"


def _in_allocation(held: Room, largest: int, *, each: int | None) -> Where:
    """Return an allocation, where a worker on processors has room for its threads, if somebody said them."""
    if shutil.which("srun") is None:
        raise UsageError(f"{held.in_words()} needs srun to start workers on its nodes, which is not here.")
    tell(f"each run is a step of {held.in_words()}")
    places, what = held.places, held.in_words()
    if each is not None and held.gpus is None:
        places = min(places, held.nodes * max(1, held.processors // each))
        what = _shared_by(what, each)
    return Where(
        runner=Steps(held, largest),
        command=partial(step, room=held, largest=largest),
        places=places,
        what=what,
        per_node=held.per_node(largest),
    )
