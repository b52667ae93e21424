"""Runs the command line in processes forked from one that has loaded torch, which spares each some seconds.

For tests of what a command does. What a fresh interpreter adds (when torch is loaded, with which threads)
is for tests that take `support.commands`.
"""

import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import torch

from support.commands import DEADLINE_S, STACKS_SIGNAL, Ended, environment, finish
from support.process_budget import count_process
from support.process_pool import fork_server


class Command:
    """A command that runs, with those parts of `subprocess.Popen` that tests use.

    Args:
        run: called in the process with the arguments.
        arguments: of the command.
        variables: all of its environment.
        into: a file to which it adds all that it prints, rather than for `said` and `communicate`.
        reads: a file that is its standard input.
    """

    def __init__(self, run, arguments, variables, into=None, reads=None):
        own = 2 if into is None else 0
        self._said = [tempfile.NamedTemporaryFile() for _ in range(own)]  # noqa: SIM115 - closed when read
        names = [stream.name for stream in self._said] or [str(into)] * 2
        self._process = fork_server().Process(
            target=_serve, args=(run, arguments, variables, names, reads), name=" ".join(arguments)
        )
        self._process.start()
        count_process()
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
        """Return the text written to stdout and to stderr so far."""
        return [Path(stream.name).read_text() for stream in self._said]

    def communicate(self, timeout=None):
        self.wait(timeout)
        said = self.said()
        for stream in self._said:
            stream.close()
        return tuple(said)


def start(*arguments: object, into: Path | None = None, reads: Path | None = None, **changes: str) -> Command:
    """Start ``samestep ARGUMENTS``; with `into`, what it prints is added to that file; it `reads` another."""
    return Command(_command, [str(argument) for argument in arguments], environment(**changes), into, reads)


def start_script(path: Path, **changes: str) -> Command:
    """Start ``python PATH``."""
    return Command(_script, [str(path)], environment(**changes))


def samestep(*arguments: object, deadline_s: float = DEADLINE_S, **changes: str) -> Ended:
    """Run ``samestep ARGUMENTS`` to its end."""
    return finish(start(*arguments, **changes), deadline_s)


def scale(*arguments: object, deadline_s: float = DEADLINE_S, **changes: str) -> Ended:
    """Run ``samestep scale ARGUMENTS`` to its end; it forks its runs too."""
    started = Command(_scale, [str(argument) for argument in arguments], environment(**changes))
    return finish(started, deadline_s)


def lines(command: Command, count: int) -> list[str]:
    """Return the first `count` lines that a started command prints."""
    deadline = time.monotonic() + DEADLINE_S
    while (said := command.said()[0]).count("\n") < count:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return said.splitlines()[:count]


def _serve(run, arguments, variables, names, reads):
    os.setsid()  # a signal meant for it cannot reach the tests
    if reads is not None:
        with reads.open() as file:
            os.dup2(file.fileno(), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    _begin(variables, names)
    # As in a process that no fork server has made: its temporary folder, its helpers.
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.set_forkserver_preload(["__main__"])
    tracker = resource_tracker._resource_tracker
    os.close(tracker._fd)
    tracker._fd = None
    torch.set_num_threads(1)  # it is loaded already, and reads no variables any more
    run(*arguments)


def _begin(variables, names):
    """Write to files, in an environment, with the signals of a new process."""
    for number, name in enumerate(names, 1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _command(*arguments):
    from samestep.cli.main import run_command

    sys.argv = ["samestep", *arguments]
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run_command(arguments))


def _scale(*arguments):
    from samestep.scaling.sweep import local_runs as local

    local.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _Run})
    _command("scale", *arguments)


class _Run:
    """A run of a study with those parts of `subprocess.Popen` that a sweep uses."""

    def __init__(self, words, *, stdin, stdout, stderr, env):
        assert (words[1:3], stdin, stderr) == (["-m", "samestep"], subprocess.DEVNULL, subprocess.STDOUT)
        self.pid = os.fork()
        self._ended = None
        if self.pid == 0:
            _begin(env, [stdout.name] * 2)
            _leave_with(words[3:])

    def wait(self, timeout=None):
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def poll(self):
        return self._ended

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)


def _leave_with(arguments):
    code = 1
    try:
        _command(*arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:  # what this is a fork of goes on elsewhere
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _script(path):
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
