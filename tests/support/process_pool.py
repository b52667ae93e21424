"""A kept pool of rank processes, for tests that need real ones.

A fork server imports torch once; each world size gets its processes and one Gloo group on first use, and
keeps them for the whole session. After that a test costs what it computes: some milliseconds.
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",  # seconds; the first optimizer step of a process would load it
    "samestep.autopilot.once_script",
    "samestep.training.checkpoint.checkpoint_schedule",
    "samestep.cli.run",
    "samestep.cli.train",
    "samestep.training.recipes.run_recipe",
    "samestep.parallel.gradients.replicate",
    "samestep.ranks.world.join",
    "support.warm_compiler",
    "support.found_references",
    "typer._adapters",  # of those typers that have it, which load pydantic with a command's first flag
    "pytest",
    "support.frozen_modules",  # the last
]

# A process has one fork server, which loads nothing any more once somebody has started it: so, at import.
multiprocessing.set_forkserver_preload(PRELOAD)


def fork_server():
    """Return the context whose processes are forked from one that has loaded all of `PRELOAD`.

    It looks for them where a fresh interpreter does, to which the tests' own folder has to be told.
    """
    found = os.environ.get("PYTHONPATH")
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = tests if found is None else os.pathsep.join((tests, found))
    try:
        forkserver.ensure_running()
    finally:
        if found is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = found
    return multiprocessing.get_context("forkserver")


_END = b"end"


class RankFailed(AssertionError):
    """A rank raised, died, or did not answer; the message has the rank and its error."""


class ProcessPool:
    """Rank processes by world size.

    Args:
        timeout_s: how long a call may take before its pool is killed.
    """

    def __init__(self, *, timeout_s=60.0):
        self._timeout_s = timeout_s
        self._context = fork_server()
        self._ranks = {}

    def run(self, fn, size, *args):
        """Return ``[fn(world, *args)]`` of all ranks, in rank order.

        `fn` is a module-level function. Where ranks fail, the error of the one that failed first is raised
        here: its own type where that can travel, with rank and remote traceback as the cause.
        """
        ranks = self._ranks.get(size) or self._start(size)
        message = pickle.dumps((fn, args))
        try:
            for _, pipe in ranks:
                pipe.send_bytes(message)
            return self._collect(ranks, size)
        except BaseException:
            # Also where the test was interrupted, as by its timeout: the next call would get these answers.
            if size in self._ranks:
                self._discard(size)
            raise

    def close(self):
        """End all ranks."""
        ranks = [rank for size in list(self._ranks) for rank in self._ranks.pop(size)]
        for _, pipe in ranks:
            with suppress(OSError):  # of a rank that has died
                pipe.send_bytes(_END)  # also if a forked process still has this end of the pipe
            pipe.close()
        deadline = time.monotonic() + 5.0
        for process, _ in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
            _kill(process)

    def _start(self, size):
        port = _free_port()
        ranks = []
        for rank in range(size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, rank, size, port, self._timeout_s), name=f"rank {rank} of {size}"
            )
            process.start()
            theirs.close()
            ranks.append((process, ours))
        self._ranks[size] = ranks
        return ranks

    def _collect(self, ranks, size):
        answers, failures = {}, []
        pending = {pipe: (rank, process) for rank, (process, pipe) in enumerate(ranks)}
        deadline = time.monotonic() + self._timeout_s
        while pending:
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not ready:
                failures.append(self._missing_answers(pending, answers, size))
            for pipe in ready:
                rank, process = pending.pop(pipe)
                answer = _receive(pipe, process, rank, size)
                if isinstance(answer, BaseException):
                    failures.append(answer)
                else:
                    (answers[rank],) = answer
            if failures:
                # The others may be waiting for the one that failed: nothing of this group is of use.
                raise failures[0]
        return [answers[rank] for rank in range(size)]

    def _missing_answers(self, pending, answers, size):
        """Return the error that names the ranks without an answer, and the other ranks' errors."""
        for _, process in pending.values():
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)  # for their stacks
        silent = sorted(rank for rank, _ in pending.values())
        return RankFailed(
            f"ranks {silent} of {size} gave no answer in {self._timeout_s:g} s; the others answered {answers}"
        )

    def _discard(self, size):
        for process, pipe in self._ranks.pop(size):
            pipe.close()
            _kill(process)


def _kill(process):
    if process.is_alive():
        process.kill()
    process.join()
    process.close()


def _receive(pipe, process, rank, size):
    """Return the rank's answer in a tuple of one, or the exception to raise."""
    try:
        answer, error, trace = pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionError):
        process.join(5)
        return RankFailed(f"rank {rank} of {size} died without an answer, exit code {process.exitcode}")
    if trace is None:
        return (answer,)
    story = RankFailed(f"on rank {rank} of {size}:\n{trace}")
    if error is None:
        return story
    error.__cause__ = story
    return error


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(pipe: Connection, rank, size, port, timeout_s):
    """Run one rank: join, then answer calls until the pool is closed."""
    import torch
    import torch.distributed as dist

    from samestep.base.place import Place
    from samestep.ranks.world.process_group import ProcessGroupWorld

    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)  # whoever waits in vain asks for the stack
    warnings.simplefilter("error")  # as pytest does
    warnings.filterwarnings("ignore", ".torch.jit.* is (deprecated|not supported)", FutureWarning)
    multiprocessing.set_forkserver_preload(["torch"])  # a fork server of its own is for those that load data
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    place = Place(rank=rank, size=size, local_rank=rank, local_size=size, launcher="process pool")
    world = ProcessGroupWorld(place, torch.device("cpu"))
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, ConnectionError):
            message = _END
        if message == _END:
            os._exit(0)  # the interpreter would take 0.4 s to end
        fn, args = pickle.loads(message)
        pipe.send_bytes(_answer(fn, world, args))


def _answer(fn, world, args):
    """Return the pickled ``(result, error, traceback)``; the error only if it can be pickled."""
    try:
        return pickle.dumps((fn(world, *args), None, None))
    except BaseException as error:
        trace = traceback.format_exc()
        try:
            message = pickle.dumps((None, error, trace))
            pickle.loads(message)
        except Exception:
            return pickle.dumps((None, None, trace))
        return message
