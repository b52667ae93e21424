"""Starts the helper processes of a main process, ends them, and starts them again if one is lost.

A process that has threads cannot be forked safely, and the main process may have them once the script runs.
So it forks a starter before, which has one thread, and which forks helpers whenever it is asked to::

    main process, runs the script
      starter, waits for requests
        helper 1
        helper 2
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from samestep.autopilot.helpers.team import TeamMemory
from samestep.base.polling import holds_within
from samestep.launch.local.orphans import die_with_parent

Serve = Callable[[TeamMemory, int], None]
"""Serves as the helper of a rank until its main process ends."""
_PATIENCE_S = 5.0
"""Seconds that killed processes have to end."""
_REQUEST, _ANSWER = 1 << 16, 8


class HelperProcesses:
    """The helpers of this process, which fork as its children's children."""

    def __init__(self, serve: Serve) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._main = os.getpid()
        self._starter = os.fork()
        if not self._starter:
            self._line.close()
            _start_helpers(theirs, serve, self._main)
        theirs.close()
        self.helpers: list[int] = []
        """The ids of their processes."""

    def start(self, team: TeamMemory) -> None:
        """Start a team's helpers."""
        for rank in range(1, team.size):
            self._line.send(pickle.dumps((team, rank)))
            self.helpers.append(int.from_bytes(self._line.recv(_ANSWER), "little"))

    def kill(self) -> None:
        """End all helpers at once; none of them holds anything that would be lost."""
        for process in self.helpers:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        holds_within(lambda: not any(map(_exists, self.helpers)), _PATIENCE_S, least_s=0.001)
        self.helpers.clear()

    def close(self) -> None:
        """End the helpers and their starter; a forked process has none."""
        if os.getpid() != self._main:
            return
        self.kill()
        self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self._starter, 0)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _start_helpers(line: socket.socket, serve: Serve, main: int) -> NoReturn:
    """Fork a helper for each request, until the main process ends."""
    try:
        die_with_parent(main)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # helpers that have ended leave no zombies
        starter = os.getpid()
        while request := line.recv(_REQUEST):
            team, rank = pickle.loads(request)  # noqa: S301 - of the parent
            helper = os.fork()
            if not helper:
                line.close()
                die_with_parent(starter)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _silence()
                serve(team, rank)
                os._exit(0)
            line.send(helper.to_bytes(_ANSWER, "little"))
    finally:
        os._exit(0)


def _silence() -> None:
    """Discard what a helper prints: the main rank prints it, too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):
            stream.flush()
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
