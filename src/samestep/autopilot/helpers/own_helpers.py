"""Starts the helpers of this process, and again if one is lost; if that fails, there are none any more."""

from contextlib import suppress

import torch

from samestep.autopilot.helpers.helper import End
from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.helpers.team import Team
from samestep.autopilot.split.gradients import SliceGradients
from samestep.base.console import write_stderr
from samestep.base.errors import PeerLost

_MANY_UNSPLIT = 10
"""Unsplit calls in a row after which the main rank computes with all cores."""


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
