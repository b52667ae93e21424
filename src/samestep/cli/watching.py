"""What ``samestep run`` puts beside each worker's program: a watchdog, and comparisons in every step."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

from samestep.base import env
from samestep.base.place import Place
from samestep.base.streams import write_stderr
from samestep.launch.failure import follows_from_another
from samestep.launch.hosting import Ending
from samestep.launch.programs import Around
from samestep.watch.board import Board, GroupStore, SharedMemory
from samestep.watch.count import Counter
from samestep.watch.events import heard_by
from samestep.watch.sanitize import sanitizing
from samestep.watch.watchdog import Watchdog, interval_of
from samestep.world.detect import detect

Say = Callable[[Ending], None]
"""Told how the program will have ended, should this process end without another word."""

_APART = "Every rank needs as many steps as the others: as many batches, the same number of epochs."
_COPIES_APART = (
    "The copies of a serial script must decide alike: not by the clock, nor by what only one of them sees."
)


def watching(
    *, limit_s: float, steered: bool, shared_by: int | None
) -> Callable[[Callable[[], Ending], Say], Ending]:
    """Return what watches a worker's program while it runs.

    Args:
        limit_s: how long a rank may wait for another.
        steered: whether the program is a serial script, run in step.
        shared_by: how many workers will be forked from this process, where these are all.
    """
    memory = None if shared_by is None else SharedMemory(shared_by)
    return partial(_watched, limit_s=limit_s, advice=_COPIES_APART if steered else _APART, memory=memory)


def sanitized(run: Callable[[], Ending], *, around: Around, native: bool) -> Ending:
    """Run a worker's program, in what it needs around it, and compare the workers in every step.

    Args:
        run: runs it.
        around: what it needs.
        native: whether it has joined its peers itself.
    """
    with sanitizing(native=native):
        return around(run)


def counted(run: Callable[[], Ending], *, around: Around, native: bool) -> Ending:
    """Run a worker's program, in what it needs around it, and say what was counted once it has ended.

    Args:
        run: runs it.
        around: what it needs.
        native: whether each worker has a share of its own.
    """
    place = detect(env.snapshot()).place
    counter = Counter()

    def heard() -> Ending:
        with heard_by(counter):
            return run()

    ending = around(heard)
    if place.is_main and not ending.exit_code:
        words = counter.count.in_words(each=native and place.size > 1)
        write_stderr(f"samestep: {words}\n")
    return ending


def _watched(
    run: Callable[[], Ending], say: Say, *, limit_s: float, advice: str, memory: SharedMemory | None
) -> Ending:
    environment = env.snapshot()
    place = detect(environment).place
    if place.size == 1:
        return run()
    watchdog = Watchdog(
        place,
        _board(place, environment, memory, limit_s),
        limit_s=limit_s,
        start=env.integer(environment, "TORCHELASTIC_RESTART_COUNT") or 0,
        give_up=partial(_give_up, say),
        follow=partial(_follow, say),
        advice=advice,
    )
    watchdog.begin()
    try:
        ending = run()
    except BaseException:
        watchdog.end("failed")
        raise
    watchdog.end("failed" if ending.exit_code else "ended")
    lost = follows_from_another(ending.error, ending.message)
    if lost and (text := watchdog.bereaved(ending.line)):
        told = _told(text)
        said = "" if ending.error == "PeerLost" else ending.traceback  # one line, which says less
        return replace(told, traceback=said + told.traceback)
    return ending


def _board(place: Place, environment: env.Environment, memory: SharedMemory | None, limit_s: float) -> Board:
    if memory is not None:
        memory.rank = place.rank
        return memory
    serves = place.is_main and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return GroupStore(place, interval_s=interval_of(limit_s), served_here=serves)


def _told(text: str) -> Ending:
    lines = "".join(f"samestep: {line}\n" for line in f"error: {text}".splitlines())
    return Ending(exit_code=1, error="OutOfStep", message=text, traceback=lines)


def _give_up(say: Say, text: str) -> NoReturn:
    say(_told(text))
    os._exit(1)


def _follow(say: Say) -> NoReturn:
    say(Ending(exit_code=1, error="PeerLost", message="another rank has found that the run hangs"))
    os._exit(1)
