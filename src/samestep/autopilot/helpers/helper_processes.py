"""Starts the helper processes of a main process, ends them, and starts them again if one is lost.

A process that has threads cannot be forked safely, and the main process may have them once the script runs.
So it has a starter, which has one thread, and which forks helpers whenever it is asked to. A worker that the
launcher has just forked forks its starter, too; any other process starts it as a fresh interpreter.

The script may wait for all its children, or list them, so the starter is none of them: the process that has
forked it ends at once, and the starter is adopted by the launcher, or by the system::

    main process, runs the script
    starter, waits for requests
      helper 1
      helper 2

The starter ends with the main process, and the helpers end with the starter.
"""

import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

import torch

from samestep.autopilot.helpers.helper import OF_MAIN, End, serve, silent
from samestep.autopilot.helpers.messages import MainLine
from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.helpers.team import Team, TeamMemory, TeamWorld
from samestep.autopilot.split.gradients import SliceGradients
from samestep.base.console import write_stderr
from samestep.base.errors import PeerLost
from samestep.base.event_record import begin_record_of_helper
from samestep.base.polling import holds_within
from samestep.base.process_identity import has_ended, started_at
from samestep.launch.local.forking import fork
from samestep.launch.local.orphans import die_with_parent
from samestep.launch.local.workers import pidfd
from samestep.ranks.collectives.peer_connections import flags_before

_MANY_UNSPLIT = 10
"""Unsplit calls in a row after which the main rank computes with all cores: a guess."""


class Helpers:
    """The helpers of this process, and its own part of what they compute together.

    The ranks share the cores while calls are split; otherwise this process has all of them.
    """

    def __init__(self, team: Team, *, threads: int, all_threads: int) -> None:
        self._team, self.size, self.shares_memory = team, team.size, team.shares_memory
        self._threads, self._all_threads, self._unsplit = threads, all_threads, 0
        torch.set_num_threads(all_threads)
        world, self.line = team.start()
        self.slices = RankSlices(world, SliceGradients(world))
        self.are_lost = False
        """Whether there are no helpers any more, and none can be started."""

    def restart(self, why: str) -> None:
        """Start the helpers again, if that is possible; `why` names the one that was lost."""
        if self.are_lost:
            return
        self._team.stop()
        try:
            world, self.line = self._team.start()
        except (PeerLost, OSError) as error:
            self.are_lost = True
            self._team.close()
            torch.set_num_threads(self._all_threads)
            end = f". {error}: this process computes all calls alone from now on."
        else:
            end = "; the helpers were started again, and the run goes on."
            self.slices.world = self.slices.gradients.world = world
        write_stderr(f"samestep: {why.rstrip('.')}{end}\n")

    def are_alive(self) -> bool:
        """Return whether all helpers run, as far as this process can find out at once, or there are none."""
        return self.are_lost or self._team.are_alive()

    def end(self) -> None:
        """Let the helpers end."""
        if not self.are_lost:
            with suppress(PeerLost):  # which have ended, then
                self.line.send(End())

    def close(self) -> None:
        """Let this process compute alone what it still needs of calls, such as a backward after the block."""
        self.are_lost = True
        self.slices.graphs.clear()

    def share_cores(self) -> None:
        """Compute with this rank's share of the cores from now on: the helpers have the others."""
        self._unsplit = 0
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def note_unsplit(self, *, at_once: bool) -> None:
        """Compute with all cores, or only after some unsplit calls in a row.

        Since the threads of a parallel operation wait some time for the next one, on cores of helpers.
        """
        self._unsplit = _MANY_UNSPLIT if at_once else self._unsplit + 1
        if self._unsplit == _MANY_UNSPLIT:
            torch.set_num_threads(self._all_threads)


_PATIENCE_S = 5.0
"""Seconds that killed processes have to end: a guess."""
_IMPORTS_S = 300.0
"""Seconds that a starter may take for its first answer if it is a fresh interpreter, which imports torch:
from a busy file system it can take minutes."""
_REQUEST = 1 << 16  # bytes of the longest request: a guess
_ANSWER = struct.Struct("=2q")
"""The number of a request, and the process that was started for it; for 0, the starter itself."""
_FORKING_STARTER = """import os, sys
if not os.fork():
    sys.path[:] = {paths!a}
    from {module} import main
    main(*map(int, sys.argv[1:]))
"""
"""The program of an interpreter that forks before it imports anything, and ends.

Modules are found where this process finds them: a notebook may have added folders, and the present one, which
is first for ``python -c``, may hold others of the same names.
"""


class HelperProcesses:
    """The helpers of this process, which are children of its starter.

    Args:
        forks: whether this process has one thread and can be forked; its starter is a fresh interpreter
            otherwise, which imports torch for some seconds.
    """

    def __init__(self, *, forks: bool) -> None:
        self._line, starters_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._main, self._forks = os.getpid(), forks
        # Forks of the script have the line, too, so that it may stay open when this process has ended.
        end = pidfd(self._main)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, OF_MAIN)  # until the starter ignores them
        try:
            if forks:
                _fork_starter(starters_line, end, not_for_it=self._line)
            else:
                files = [starters_line.fileno(), *([] if end is None else [end])]
                paths = [path for path in sys.path if isinstance(path, str)]
                program = _FORKING_STARTER.format(module=__name__, paths=paths)
                subprocess.run([sys.executable, "-c", program, *map(str, files)], pass_fds=files, check=False)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            starters_line.close()
            if end is not None:
                os.close(end)
        self._requests, self._is_open = 0, True
        self.starter = 0
        """The process that starts them; 0 until it has answered."""
        self._started: dict[int, str] = {}
        """The start time of each process: its id may be used again when it has ended."""

    @property
    def helpers(self) -> list[int]:
        """The ids of their processes."""
        return [process for process in self._started if process != self.starter]

    def start(self, team: TeamMemory) -> None:
        """Start a team's helpers.

        Raises:
            PeerLost: the starter has ended, or does not answer.
        """
        limit = team.timeout_s if self._forks else max(team.timeout_s, _IMPORTS_S)
        self._line.settimeout(None if limit == float("inf") else limit)
        for rank in range(1, team.size):
            try:
                helper = self._answer(team, rank)
            except TimeoutError:
                raise PeerLost(f"the process that starts helpers did not answer within {limit:g} s") from None
            except OSError:
                helper = 0
            if not helper:
                raise PeerLost("the process that starts helpers has ended")
            self._started[helper] = started_at(helper)

    def _answer(self, team: TeamMemory, rank: int) -> int:
        """Let the starter fork a helper; return its process id, 0 if there is no starter."""
        self._requests += 1
        self._line.send(pickle.dumps((self._requests, team, rank)), flags_before(0))
        while answer := self._line.recv(_ANSWER.size):
            request, process = _ANSWER.unpack(answer)
            if request == self._requests:
                return int(process)
            if request:
                _kill(process, started_at(process))  # a signal has ended the wait for this answer
            else:
                self.starter = process
                self._started[process] = started_at(process)
        return 0

    def are_alive(self) -> bool:
        """Return whether all helpers run; one that was stopped does."""
        return all(map(_exists, self.helpers))

    def kill(self) -> None:
        """End all helpers at once; none of them holds anything that would be lost."""
        for process in self.helpers:
            _kill(process, self._started[process])
        holds_within(lambda: all(map(has_ended, self.helpers)), _PATIENCE_S, least_s=0.001)
        for process in self.helpers:
            del self._started[process]

    def close(self) -> None:
        """End the helpers and their starter, if this is the process that has them."""
        if os.getpid() != self._main or not self._is_open:
            return
        self._is_open = False
        self.kill()
        if self.starter:  # it may be stopped
            _kill(self.starter, self._started[self.starter])
        with suppress(OSError):  # it has been killed, or the script has closed the line
            self._line.shutdown(socket.SHUT_WR)
            self._line.settimeout(_PATIENCE_S)
            while self._line.recv(_ANSWER.size):  # ends with the starter
                pass
        with suppress(OSError):
            self._line.close()


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
        self._line: MainLine | None = None

    def start(self) -> tuple[TeamWorld, MainLine]:
        """See `Team.start`."""
        memory = TeamMemory.new(self.size, timeout_s=self._timeout_s, threads=self._threads)
        self._memory = memory
        self._processes.start(memory)
        world, self._line = memory.main_rank(self._processes.helpers)
        return world, self._line

    def are_alive(self) -> bool:
        """See `Team.are_alive`."""
        return self._processes.are_alive()

    def stop(self) -> None:
        """See `Team.stop`."""
        self._processes.kill()
        # Ctrl-C may interrupt this, and nothing is closed twice.
        memory, self._memory = self._memory, None
        line, self._line = self._line, None
        for part in memory, line:
            if part is not None:
                part.close()

    def close(self) -> None:
        """See `Team.close`."""
        self.stop()
        self._processes.close()


def _kill(process: int, started: str) -> None:
    """End a process, unless another one has its id."""
    if started and started_at(process) == started:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _fork_starter(line: socket.socket, end_of_main: int | None, *, not_for_it: socket.socket) -> None:
    """Fork a starter that is no child of this process."""
    between = fork()
    if not between:
        try:
            not_for_it.close()
            if not fork():
                _start_helpers(line, end_of_main)
        finally:
            os._exit(0)
    with suppress(ChildProcessError):  # this process ignores the ends of its children
        os.waitpid(between, 0)


def main(line: int, end_of_main: int | None = None) -> None:
    """Be the starter of a process to which a socket leads."""
    _start_helpers(socket.socket(fileno=line), end_of_main)


def _start_helpers(line: socket.socket, end_of_main: int | None) -> NoReturn:
    """Fork a helper for each request, until the main process ends."""
    try:
        for number in OF_MAIN:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_MAIN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # helpers that have ended leave no zombies
        starter = os.getpid()
        line.send(_ANSWER.pack(0, starter))
        while request := _next_request(line, end_of_main):
            number, team, rank = pickle.loads(request)  # noqa: S301 - of the parent
            helper = fork()
            if not helper:
                line.close()
                die_with_parent(starter)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _help(team, rank)
            line.send(_ANSWER.pack(number, helper))
    finally:
        os._exit(0)


def _next_request(line: socket.socket, end_of_main: int | None) -> bytes:
    """Return the next request of the main process; nothing once that has ended."""
    poll = select.poll()
    for file in (line.fileno(), end_of_main):
        if file is not None:
            poll.register(file, select.POLLIN)
    ready = dict(poll.poll())
    return line.recv(_REQUEST) if line.fileno() in ready else b""


def _help(team: TeamMemory, rank: int) -> NoReturn:
    with silent(rank):
        begin_record_of_helper(rank)
        try:
            world, line = team.helper(rank)
        except FileNotFoundError:  # Ctrl-C has interrupted the start, and the main rank has closed the memory
            os._exit(0)
        serve(world, line, threads=team.threads)
    os._exit(0)
