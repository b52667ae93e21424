"""Where this process stands, looked at from a thread beside the script."""

import os
import socket
from collections.abc import Hashable
from dataclasses import replace

from samestep.watch.recorder import CollectiveCount, Recorder, has_group, ranks_of
from samestep.watch.standing import Standing, State, Wait
from samestep.watch.where import Blocked, blocked_in, line_of, main_frames, with_text

LONG_S = 1.0
"""From when on a wait is worth asking about; reading all that is recorded takes milliseconds."""


class Lookout:
    """Looks at this process again and again.

    Args:
        start: how often the workers had been started before.
    """

    def __init__(self, start: int) -> None:
        self.seen = Standing(start=start, beat=0, host=socket.gethostname(), pid=os.getpid())
        self._recorder = Recorder()
        self._ages: dict[Hashable, float] = {}
        """For how long these have been so: counts of a group, a call of the script."""
        self._found: dict[Hashable, tuple[str, int] | None] = {}
        """What the recorder has said was under way at these counts."""

    def look(self, passed_s: float, state: State = "running") -> Standing:
        """Return where the process stands now.

        Args:
            passed_s: time since the last look, as far as it counts.
            state: of its script, as far as its caller knows.
        """
        before, (blocked, line) = self.seen, _main_thread()
        counts, met = self._recorder.counts(), has_group()
        wait = None
        if state == "running":
            wait = self._waited_for(counts if met else {}, blocked, passed_s)
        self.seen = replace(
            before,
            beat=before.beat + 1,
            state="left" if state == "running" and before.met and not met else state,
            at=with_text(line),
            entered={**before.entered, **{group: count.entered for group, count in counts.items()}},
            met=met or before.met,
            wait=wait,
        )
        return self.seen

    def last_collective(self) -> Wait | None:
        """Return the collective that this process has come to last, as far as groups can be compared."""
        if not self.seen.entered:
            return None
        group, seq = max(self.seen.entered.items(), key=lambda one: one[1])
        name = self._recorder.name_of(group, seq)
        return Wait(op=name, seq=seq, group=group, ranks=ranks_of(group), age_s=0.0)

    def _waited_for(
        self, counts: dict[str, CollectiveCount], blocked: Blocked | None, passed_s: float
    ) -> Wait | None:
        """Return what has been waited in for longest, if it is long enough to ask what it is."""
        standing = [(group, one) for group, one in counts.items() if one.entered != one.last_ended]
        keys: list[Hashable] = [*standing, *([] if blocked is None else [blocked])]
        if blocked is not None and blocked.is_new:
            self._ages.pop(blocked, None)
        self._ages = {key: self._ages.get(key, -passed_s) + passed_s for key in keys}
        self._found = {key: found for key, found in self._found.items() if key in self._ages}
        for key in sorted(standing, key=self._ages.__getitem__, reverse=True):
            if self._ages[key] >= LONG_S and (found := self._under_way(key)) is not None:
                op, seq = found
                group, _ = key
                return Wait(op=op, seq=seq, group=group, ranks=ranks_of(group), age_s=self._ages[key])
        if blocked is None or self._ages[blocked] < LONG_S:
            return None
        return Wait(op=blocked.op, seq=None, group="", ranks=blocked.ranks, age_s=self._ages[blocked])

    def _under_way(self, key: tuple[str, CollectiveCount]) -> tuple[str, int] | None:
        if key not in self._found:
            self._found[key] = self._recorder.under_way(key[0])
        return self._found[key]


def _main_thread() -> tuple[Blocked | None, str]:
    """Return what the main thread waits in, and the script's line that it is in.

    Its frames are let go at once: what is in them would end in this thread if its owner returned meanwhile.
    """
    frames = main_frames()
    return blocked_in(frames), line_of(frames)
