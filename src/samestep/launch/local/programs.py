"""Runs a job's program in a worker, and reports how it ended."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from samestep.base.errors import Error
from samestep.base.machine.c_libraries import settle_math_kernels
from samestep.launch.job import Program
from samestep.launch.local.child import Entry, Report, ReportPipe, Start
from samestep.launch.local.hosting import Ending, ending_of, host
from samestep.launch.local.output_flush import withdraw

_OTHER_WAYS = ("mpi4py", "horovod", "ray", "jax")
"""Modules by which processes may join each other without leaving the checked traces in torch.distributed."""


Around: TypeAlias = Callable[[Callable[[], Ending]], Ending]
"""Function that runs a worker's program, its argument, in the contexts that the program needs."""


Watch: TypeAlias = Callable[[Callable[[], Ending], Callable[[Ending], None]], Ending]
"""Function that runs a worker's program, its first argument, and watches it.

It calls its second argument with the program's end, for the case that the worker sends no later report.
"""


def as_it_is(run: Callable[[], Ending]) -> Ending:
    """Run a program without further contexts."""
    return run()


def unwatched(run: Callable[[], Ending], _: Callable[[Ending], None]) -> Ending:
    """Run a program without watching it."""
    return run()


def entry_of(
    program: Program,
    *,
    hosted: bool = True,
    around: Around = as_it_is,
    watch: Watch = unwatched,
    joins: bool = True,
) -> Entry:
    """Return the function that each worker runs; its report's result is `has_common_group`.

    Python code runs in the forked worker if it is `hosted`; otherwise a fresh interpreter replaces it.
    `around` runs a hosted program in its contexts, and `watch` runs and watches both. A program that starts
    the workers itself does not join them.
    """

    def run(start: Start, pipe: ReportPipe) -> Report:
        if program.kind == "executable" or not hosted:
            return become(program)
        seed_generators()
        settle_math_kernels()
        if joins and start.place.size > 1:
            from samestep.ranks.world.torch_rendezvous import prepare_groups

            prepare_groups()
        ending = watch(
            partial(_ending, around, partial(host, program, pipe.send_provisional)), pipe.send_provisional
        )
        return Report(ending=ending, result=has_common_group(start.place.size))

    return run


def _ending(around: Around, run: Callable[[], Ending]) -> Ending:
    """Run a program in its contexts, which may refuse it."""
    try:
        return around(run)
    except Error as error:
        return ending_of(error)


def has_common_group(size: int) -> bool:
    """Return whether this process has joined all its peers; True if that cannot be determined."""
    if size == 1 or any(name in sys.modules for name in _OTHER_WAYS):
        return True
    sizes = getattr(sys.modules.get("samestep.ranks.world.torch_rendezvous"), "group_sizes", None)
    if sizes:
        return size in sizes
    if getattr(sys.modules.get("torch.distributed.rpc"), "_init_counter", 0):
        return True
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return False
    # A group leaves these traces after it is destroyed; unlike a patched function they cannot be missed. One
    # created with `store=` has no method, but the hook that puts the rank before each line of a traceback.
    method = getattr(c10d, "_default_pg_init_method", "unknown")
    return method is not None or bool(c10d.is_initialized()) or sys.excepthook is not sys.__excepthook__


def become(program: Program) -> Report:
    """Replace this process by the executable; return only if that fails."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an ignored signal stays ignored after exec
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = program.command(sys.executable)
    withdraw()
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell, as intended
    except OSError as error:
        text = f"{program.target}: {error.strerror}\n"
        return Report(ending=Ending(exit_code=127, error="OSError", message=text, traceback=text))


def seed_generators() -> None:
    """Seed the global generators of NumPy and torch in this worker, as each fresh interpreter does.

    Python's own `random` does this after a fork by itself, and devices' generators start with their context.
    """
    numpy_random, torch = (sys.modules.get(name) for name in ("numpy.random", "torch"))
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()
