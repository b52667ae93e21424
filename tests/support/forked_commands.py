"""Runs the command line in processes forked from one that has loaded torch, which spares each some seconds.

For tests of what a command does. What a fresh interpreter adds (when torch is loaded, with which threads)
is for tests that take `support.commands`.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import resource_tracker
from pathlib import Path

import torch

from support import process_pool  # noqa: F401 - it says what the fork server loads
from support.commands import DEADLINE_S, Ended, environment, finish


class Command:
    """A command that runs, with as much of `subprocess.Popen` as tests ask for.

    Args:
        run: called in the process with the arguments.
        arguments: of the command.
        variables: all of its environment.
    """

    def __init__(self, run, arguments, variables):
        self._said = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed when read
        names = [stream.name for stream in self._said]
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_serve, args=(run, arguments, variables, names), name=" ".join(arguments)
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

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()

    def said(self):
        """Return what has been written to stdout and to stderr so far."""
        return [Path(stream.name).read_text() for stream in self._said]

    def communicate(self, timeout=None):
        self.wait(timeout)
        said = self.said()
        for stream in self._said:
            stream.close()
        return tuple(said)


def start(*arguments: object, **changes: str) -> Command:
    """Start ``samestep ARGUMENTS``."""
    return Command(_command, [str(argument) for argument in arguments], environment(**changes))


def start_script(path: Path, **changes: str) -> Command:
    """Start ``python PATH``."""
    return Command(_script, [str(path)], environment(**changes))


def samestep(*arguments: object, **changes: str) -> Ended:
    """Run ``samestep ARGUMENTS`` to its end."""
    return finish(start(*arguments, **changes))


def lines(command: Command, count: int) -> list[str]:
    """Return the first `count` lines that a started command prints."""
    deadline = time.monotonic() + DEADLINE_S
    while (said := command.said()[0]).count("\n") < count:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return said.splitlines()[:count]


def _serve(run, arguments, variables, names):
    os.setsid()  # a signal meant for it cannot reach the tests
    for number, name in enumerate(names, 1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    # As in a process that no fork server has made: its signals, its temporary folder, its helpers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    tempfile.tempdir = None
    multiprocessing.set_start_method(None, force=True)
    tracker = resource_tracker._resource_tracker
    os.close(tracker._fd)
    tracker._fd = None
    torch.set_num_threads(1)  # it is loaded already, and reads no variables any more
    run(*arguments)


def _command(*arguments):
    from samestep.cli.main import run_command

    sys.argv = ["samestep", *arguments]
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run_command(arguments))


def _script(path):
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
