"""Samples the status of this process from a thread beside the script."""

import os
import socket
from collections.abc import Hashable
from dataclasses import replace

from samestep.observe.hang.flight_recorder import CollectiveCount, Recorder, has_group, ranks_of
from samestep.observe.hang.rank_status import RankStatus, State, Wait
from samestep.observe.hang.script_position import BlockedCall, blocked_in, line_of, main_frames, with_text

MIN_WAIT_S = 1.0
"""Shortest wait that is reported; reading the recorder's entries takes milliseconds."""


class StatusSampler:
    """Samples the status of this process repeatedly.

    Args:
        generation: number of restarts of the workers before.
    """

    def __init__(self, generation: int) -> None:
        self.last = RankStatus(generation=generation, beat=0, host=socket.gethostname(), pid=os.getpid())
        self._recorder = Recorder()
        self._ages: dict[Hashable, float] = {}
        """Seconds for which the counts of a group, or a call of the script, have not changed."""
        self._found: dict[Hashable, tuple[str, int] | None] = {}
        """The running collective that the recorder returned for these counts."""

    def sample(self, passed_s: float, state: State = "running") -> RankStatus:
        """Return the current status.

        Args:
            passed_s: seconds to add to the age of waits since the previous sample.
            state: state of the script, as the caller knows it.
        """
        before, (blocked, line) = self.last, _main_thread()
        counts, has_joined = self._recorder.counts(), has_group()
        wait = None
        if state == "running":
            wait = self._longest_wait(counts if has_joined else {}, blocked, passed_s)
        self.last = replace(
            before,
            beat=before.beat + 1,
            state="left" if state == "running" and before.has_joined and not has_joined else state,
            line=with_text(line),
            entered={**before.entered, **{group: count.entered for group, count in counts.items()}},
            has_joined=has_joined or before.has_joined,
            wait=wait,
        )
        return self.last

    def last_collective(self) -> Wait | None:
        """Return the last collective that this process entered, in the group with the most collectives."""
        if not self.last.entered:
            return None
        group, seq = max(self.last.entered.items(), key=lambda one: one[1])
        name = self._recorder.name_of(group, seq)
        return Wait(op=name, seq=seq, group=group, ranks=ranks_of(group), age_s=0.0)

    def _longest_wait(
        self, counts: dict[str, CollectiveCount], blocked: BlockedCall | None, passed_s: float
    ) -> Wait | None:
        """Return the longest current wait, if it is at least `MIN_WAIT_S` long."""
        running = [(group, one) for group, one in counts.items() if one.entered != one.last_ended]
        keys: list[Hashable] = [*running, *([] if blocked is None else [blocked])]
        if blocked is not None and blocked.is_new:
            self._ages.pop(blocked, None)
        self._ages = {key: self._ages.get(key, -passed_s) + passed_s for key in keys}
        self._found = {key: found for key, found in self._found.items() if key in self._ages}
        for key in sorted(running, key=self._ages.__getitem__, reverse=True):
            if self._ages[key] >= MIN_WAIT_S and (found := self._under_way(key)) is not None:
                op, seq = found
                group, _ = key
                return Wait(op=op, seq=seq, group=group, ranks=ranks_of(group), age_s=self._ages[key])
        if blocked is None or self._ages[blocked] < MIN_WAIT_S:
            return None
        return Wait(op=blocked.op, seq=None, group="", ranks=blocked.ranks, age_s=self._ages[blocked])

    def _under_way(self, key: tuple[str, CollectiveCount]) -> tuple[str, int] | None:
        if key not in self._found:
            self._found[key] = self._recorder.under_way(key[0])
        return self._found[key]


def _main_thread() -> tuple[BlockedCall | None, str]:
    """Return the call in which the main thread waits, and its line of the script.

    The frames are released at once: if their owner returned while this thread holds them, their objects would
    be finalized in this thread.
    """
    frames = main_frames()
    return blocked_in(frames), line_of(frames)
