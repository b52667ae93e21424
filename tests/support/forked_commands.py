"""Runs the command line in processes forked from one that has loaded torch, which spares each some seconds.

For tests of what a command does. What a fresh interpreter adds (when torch is loaded, with which threads)
is for tests that take `support.commands`.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from support import process_pool  # noqa: F401 - it says what the fork server loads
from support.commands import Ended, environment, finish


class Command:
    """A command that runs, with as much of `subprocess.Popen` as tests ask for."""

    def __init__(self, arguments, variables):
        self._said = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed when read
        names = [stream.name for stream in self._said]
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_serve, args=(arguments, variables, names), name=" ".join(["samestep", *arguments])
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self.returncode

    def communicate(self, timeout=None):
        self.wait(timeout)
        said = [Path(stream.name).read_text() for stream in self._said]
        for stream in self._said:
            stream.close()
        return tuple(said)


def start(*arguments: object, **changes: str) -> Command:
    """Start ``samestep ARGUMENTS``."""
    return Command([str(argument) for argument in arguments], environment(**changes))


def samestep(*arguments: object, **changes: str) -> Ended:
    """Run ``samestep ARGUMENTS`` to its end."""
    return finish(start(*arguments, **changes))


def _serve(arguments, variables, names):
    from samestep.cli.main import run_command

    os.setsid()  # a signal meant for it cannot reach the tests
    for number, name in enumerate(names, 1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["samestep", *arguments]
    sys.path.insert(0, str(Path.cwd()))
    multiprocessing.set_start_method(None, force=True)  # as in a process that no fork server has made
    torch.set_num_threads(1)  # it is loaded already, and reads no variables any more
    sys.exit(run_command(arguments))
