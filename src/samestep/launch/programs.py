"""What a worker does with a job's program, and what it can say about it afterwards."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from samestep.base.errors import Error
from samestep.launch.child import Entry, Start
from samestep.launch.hosting import Ending, host, told
from samestep.launch.job import Program
from samestep.launch.report import Report, Word
from samestep.world.math_kernels import settle_math_kernels

_OTHER_WAYS = ("samestep.world.join", "mpi4py", "horovod", "ray", "jax")
"""Ways for processes to meet that leave no trace in torch.distributed, or not the one looked for."""


Around: TypeAlias = Callable[[Callable[[], Ending]], Ending]
"""Runs a worker's program, which it is given, in whatever it needs around it."""


Watch: TypeAlias = Callable[[Callable[[], Ending], Callable[[Ending], None]], Ending]
"""Runs a worker's program, which it is given, and watches it.

Its second argument takes how the program has ended, should the worker end without another word.
"""


def as_it_is(run: Callable[[], Ending]) -> Ending:
    """Run a program with nothing around it."""
    return run()


def unwatched(run: Callable[[], Ending], _: Callable[[Ending], None]) -> Ending:
    """Run a program with nothing beside it."""
    return run()


def entry_of(
    program: Program, *, hosted: bool = True, around: Around = as_it_is, watch: Watch = unwatched
) -> Entry:
    """Return what each worker runs; its report's result is `has_met`.

    Args:
        program: what to run.
        hosted: whether Python code runs in the forked worker; otherwise a fresh interpreter takes its place.
        around: runs a hosted program.
        watch: runs and watches a hosted program, with what is around it.
    """

    def run(start: Start, word: Word) -> Report:
        if program.kind == "executable" or not hosted:
            return become(program)
        _draw_apart()
        settle_math_kernels()
        if start.place.size > 1:
            _protect_rendezvous()
        ending = watch(partial(_ending, around, partial(host, program, word.foretell)), word.foretell)
        return Report(ending=ending, result=has_met(start.place.size))

    return run


def _protect_rendezvous() -> None:
    from samestep.world.torch_rendezvous import protect_rendezvous

    protect_rendezvous()


def _ending(around: Around, run: Callable[[], Ending]) -> Ending:
    """Run a program in what it needs around it, which may refuse it."""
    try:
        return around(run)
    except Error as error:
        return told(error)


def has_met(size: int) -> bool:
    """Return whether this process ever met its peers, as far as can be known; when in doubt, it has.

    Args:
        size: workers of the job.
    """
    if size == 1 or any(name in sys.modules for name in _OTHER_WAYS):
        return True
    if getattr(sys.modules.get("torch.distributed.rpc"), "_init_counter", 0):
        return True
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return False
    # What a group leaves after it is destroyed; unlike a patched function these cannot be missed. One
    # made with `store=` has no method, but the hook that puts the rank before each line of a traceback.
    method = getattr(c10d, "_default_pg_init_method", "unknown")
    return method is not None or bool(c10d.is_initialized()) or sys.excepthook is not sys.__excepthook__


def become(program: Program) -> Report:
    """Replace this process by the executable; come back only if that fails."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what is ignored stays so across exec
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = program.command(sys.executable)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell, as intended
    except OSError as error:
        said = f"{program.target}: {error.strerror}\n"
        return Report(ending=Ending(exit_code=127, error="OSError", message=said, traceback=said))


def _draw_apart() -> None:
    """Give this worker the global random states of NumPy and torch anew, as each fresh interpreter has them.

    Python's own `random` does this after a fork by itself, and devices' generators begin with their context.
    """
    numpy_random, torch = (sys.modules.get(name) for name in ("numpy.random", "torch"))
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()
