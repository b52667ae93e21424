"""Starts the helper processes of a main process, ends them, and starts them again if one is lost.

A process that has threads cannot be forked safely, and the main process may have them once the script runs.
So it has a starter, which has one thread, and which forks helpers whenever it is asked to. A worker that the
launcher has just forked forks its starter, too; any other process starts it as a fresh interpreter::

    main process, runs the script
      starter, waits for requests
        helper 1
        helper 2
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

from samestep.autopilot.helpers.messages import Line
from samestep.autopilot.helpers.serving import serve, silent
from samestep.autopilot.helpers.team import TeamMemory, TeamWorld
from samestep.base.errors import PeerLost
from samestep.base.polling import holds_within
from samestep.launch.local.orphans import die_with_parent

_PATIENCE_S = 5.0
"""Seconds that killed processes have to end."""
_REQUEST, _ANSWER = 1 << 16, 8


class HelperProcesses:
    """The helpers of this process, which are children of its starter.

    Args:
        forks: whether this process has one thread and can be forked; its starter is a fresh interpreter
            otherwise, which imports torch for some seconds.
    """

    def __init__(self, *, forks: bool) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._main = os.getpid()
        self._interpreter: subprocess.Popen[bytes] | None = None
        self._starter = 0
        if forks:
            self._starter = os.fork()
            if not self._starter:
                self._line.close()
                start_helpers(theirs, self._main)
        else:
            numbers = str(theirs.fileno()), str(self._main)
            command = [sys.executable, "-m", __name__, *numbers]
            self._interpreter = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.helpers: list[int] = []
        """The ids of their processes."""

    def start(self, team: TeamMemory) -> None:
        """Start a team's helpers.

        Raises:
            PeerLost: the starter has ended.
        """
        for rank in range(1, team.size):
            try:
                self._line.send(pickle.dumps((team, rank)))
                answer = self._line.recv(_ANSWER)
            except OSError:
                answer = b""
            if not answer:
                raise PeerLost("the process that starts helpers has ended")
            self.helpers.append(int.from_bytes(answer, "little"))

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
        if self._interpreter is not None:
            self._interpreter.wait()
        else:
            with suppress(ChildProcessError):
                os.waitpid(self._starter, 0)


class StartedTeam:
    """The team of this process, the main rank, and of helpers that it starts, on one host.

    Args:
        processes: starts the helpers.
        size: the number of ranks.
        timeout_s: seconds that ranks wait for each other within a call.
        threads: threads with which each rank computes its slices.
    """

    shares_memory = True

    def __init__(self, processes: HelperProcesses, size: int, *, timeout_s: float, threads: int) -> None:
        self.size, self._processes = size, processes
        self._timeout_s, self._threads = timeout_s, threads
        self._memory: TeamMemory | None = None

    def start(self) -> tuple[TeamWorld, Line]:
        """See `Team.start`."""
        self._memory = TeamMemory.new(self.size, timeout_s=self._timeout_s, threads=self._threads)
        self._processes.start(self._memory)
        return self._memory.main_rank(self._processes.helpers)

    def stop(self) -> None:
        """See `Team.stop`."""
        self._processes.kill()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def close(self) -> None:
        """See `Team.close`."""
        self._processes.close()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def start_helpers(line: socket.socket, main: int) -> NoReturn:
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
                _help(team, rank)
            line.send(helper.to_bytes(_ANSWER, "little"))
    finally:
        os._exit(0)


def _help(team: TeamMemory, rank: int) -> NoReturn:
    with silent(rank):
        world, line = team.helper(rank)
        serve(world, line, threads=team.threads)
    os._exit(0)


if __name__ == "__main__":
    start_helpers(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
