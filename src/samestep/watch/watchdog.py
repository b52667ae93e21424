"""A thread beside the script that tells the other ranks where this one stands, and notices a hang.

The first of the ranks that wait in vain says who is missing, and ends the run. Time counts only as far as
this thread is awake: a job that was suspended (Ctrl-Z) does not hang.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil

from samestep.base.place import Place
from samestep.watch.board import Board
from samestep.watch.hang import Advice, Hang, describe, find_hang, ran_out
from samestep.watch.look import Lookout
from samestep.watch.standing import Standing, State, Wait, unpacked
from samestep.watch.where import with_text

INTERVAL_S = 0.5
"""Between two looks; a sixth of the time to wait where that is less."""
_GONE_S = 2.0
"""How long a rank waits for one whose script has ended: long enough to be sure of both."""
_LAST_WORDS_S = 5.0
"""How long a broken connection waits to hear that the other end had no more to do."""
_WAITING_S = 1.0
"""How long a rank waits in a collective before another that leaves takes it to wait in vain."""
_QUIET_BEATS = 6
"""After how many looks without a word a rank is called quiet."""


_at_end = threading.Event()
"""Set while this process waits for the other ranks at the end of its script."""


_watching: "list[Watchdog]" = []
"""The watchdog of this process, while its script runs."""


def is_waiting(rank: int) -> bool:
    """Return whether another rank has waited in a collective for a while, as far as that is known here."""
    return any(watchdog.has_seen_waiting(rank) for watchdog in _watching)


@contextmanager
def at_the_end() -> Iterator[None]:
    """Within, the script has ended, and the process waits for the other ranks to end theirs."""
    _at_end.set()
    try:
        yield
    finally:
        _at_end.clear()


def interval_of(limit_s: float) -> float:
    """Return the time between two looks where ranks may wait for `limit_s`."""
    return min(INTERVAL_S, limit_s / 6)


class Watchdog:
    """Watches one rank.

    Args:
        place: of this rank.
        board: where the ranks leave word.
        limit_s: how long a rank may wait for another.
        start: how often the workers had been started before.
        give_up: told of a hang, where this rank is to tell it; ends the process.
        follow: called where another rank has ended the run; ends the process.
        advice: what helps where ranks take different ways.
    """

    def __init__(
        self,
        place: Place,
        board: Board,
        *,
        limit_s: float,
        start: int,
        give_up: Callable[[str], None],
        follow: Callable[[], None],
        advice: str,
    ) -> None:
        self._place, self._board, self._limit_s, self._start = place, board, limit_s, start
        self._give_up, self._follow = give_up, follow
        self._advice = Advice(
            apart=advice,
            late=f"What rightly takes longer needs a larger --hang-timeout than {limit_s:g} s (0 is no end).",
        )
        self._interval_s = interval_of(limit_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="samestep-watchdog", daemon=True)
        self._lookout = Lookout(start)
        self._beats: dict[int, tuple[int, int]] = {}
        """Of each rank: its last beat, and for how many looks it has been the last."""
        self._last = time.monotonic()

    def begin(self) -> None:
        """Begin to watch."""
        self._thread.start()
        _watching.append(self)

    def has_seen_waiting(self, rank: int) -> bool:
        """Return whether a rank has reported that it waits in a collective, for some time."""
        with suppress(Exception):  # the script may have broken anything
            status = self._heard().get(rank)
            return status is not None and status.wait is not None and status.wait.age_s >= _WAITING_S
        return False

    def end(self, state: State) -> None:
        """Watch no longer, and tell the others how the script has ended."""
        if self in _watching:
            _watching.remove(self)
        self._over.set()
        self._thread.join()
        with suppress(Exception):  # the script may have broken anything
            self._board.post(self._lookout.look(0.0, state).packed())
            if state == "ended":
                self._board.linger(self._nobody_runs)

    def bereaved(self, line: str) -> str:
        """Return, after a connection broke, that another rank's script had come to its end; else nothing.

        Args:
            line: of the script, where it broke.
        """
        last = self._lookout.last_collective()
        if last is None:
            return ""
        deadline = time.monotonic() + _LAST_WORDS_S
        standings = self._heard()
        while (
            not (gone := ran_out(standings, last))
            and self._may_speak(standings)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
            standings = self._heard()
        if not gone:
            return ""
        rank = self._place.rank
        standings[rank] = replace(self._lookout.seen, state="running", at=with_text(line), wait=last)
        return self._described(Hang(wait=last, waiting=(rank,), missing=gone), standings)

    def _watch(self) -> None:
        try:
            self._tick()
            while not self._over.wait(self._interval_s):
                self._tick()
        except Exception as error:  # noqa: BLE001 - watching must not break what it watches
            sys.stderr.write(f"samestep: the watchdog ends: {type(error).__name__}: {error}\n")

    def _tick(self) -> None:
        now = time.monotonic()
        state: State = "ended" if _at_end.is_set() else "running"
        own = self._lookout.look(min(now - self._last, 2 * self._interval_s), state)
        self._last = now
        self._board.post(own.packed())
        if self._board.called_off:
            self._follow()
        if own.wait is None:
            self._beats.clear()
            return
        if own.wait.age_s >= _WAITING_S / 2:
            with suppress(Exception):  # the script may have closed it
                sys.stdout.flush()  # a rank that is stopped in a collective could not
        standings = self._heard()
        self._listen(standings)
        hang = find_hang(
            standings, self._place.size, limit_s=self._limit_s, gone_s=min(_GONE_S, self._limit_s)
        )
        if hang is not None and self._is_mine_to_tell(hang, own.wait):
            text = self._described(hang, standings)
            self._board.call_off()
            self._give_up(text)

    def _heard(self) -> dict[int, Standing]:
        """Return where the ranks stand, as far as they say."""
        words = {rank: unpacked(word) for rank, word in self._board.read().items()}
        standings = {rank: one for rank, one in words.items() if one.start == self._start}
        return {**standings, self._place.rank: self._lookout.seen}

    def _listen(self, standings: dict[int, Standing]) -> None:
        for rank, standing in standings.items():
            beat, count = self._beats.get(rank, (-1, 0))
            self._beats[rank] = (standing.beat, count + 1 if beat == standing.beat else 0)

    def _is_mine_to_tell(self, hang: Hang, wait: Wait) -> bool:
        able = [rank for rank in hang.waiting if self._beats.get(rank, (0, 0))[1] < _QUIET_BEATS]
        return self._place.rank in able[:1] or wait.age_s > 1.5 * self._limit_s + _GONE_S

    def _described(self, hang: Hang, standings: dict[int, Standing]) -> str:
        own, quiet = standings[self._place.rank], {}
        for rank, (_, count) in self._beats.items():
            why = _stopped(standings[rank], own.host) or ("not answering" if count >= _QUIET_BEATS else "")
            if why and standings[rank].state == "running":
                quiet[rank] = why
        return describe(hang, standings, self._place.size, quiet=quiet, advice=self._advice)

    def _may_speak(self, standings: dict[int, Standing]) -> bool:
        """Return whether some other rank may yet say that its script has ended."""
        others = [one for rank, one in standings.items() if rank != self._place.rank]
        return len(others) < self._place.size - 1 or any(one.state == "running" for one in others)

    def _nobody_runs(self) -> bool:
        """Return whether no other rank's script runs that still gives word, or may come to give some."""
        silent = Standing(start=self._start, beat=-1)
        standings = {**dict.fromkeys(range(self._place.size), silent), **self._heard()}
        self._listen(standings)
        return not any(
            one.state in ("running", "left") and self._beats[rank][1] < 10 * _QUIET_BEATS
            for rank, one in standings.items()
            if rank != self._place.rank
        )


def _stopped(standing: Standing, host: str) -> str:
    with suppress(psutil.Error):
        if standing.host == host and psutil.Process(standing.pid).status() == psutil.STATUS_STOPPED:
            return f"stopped (process {standing.pid} was sent SIGSTOP, or the like)"
    return ""
