"""Runs a script on some workers, with a probe on each, and nothing that it does kept."""

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from samestep.autopilot.options import DEFAULTS, Options
from samestep.autopilot.output import silenced
from samestep.autopilot.overlay_calls import writing_to
from samestep.autopilot.seeds import equal_seeds, seed_all
from samestep.autopilot.steering import run_replicated, undo_replication
from samestep.base import env
from samestep.base.errors import Error
from samestep.base.trackers import OFF
from samestep.launch.backends import local
from samestep.launch.hosting import Ending
from samestep.launch.job import Job, Program
from samestep.launch.programs import Watch, entry_of
from samestep.study.seen import Seen
from samestep.watch.probe import Probe
from samestep.watch.trace import Writer, read
from samestep.world.join import join

Kind: TypeAlias = Literal["serial", "native"]
SEED = 4
"""Of what a script does not seed; any, and the same for all runs."""
PATIENCE_S = 10.0
"""How long a worker that has made its steps waits for the others to make theirs."""
_KEPT: list[Probe] = []
"""And the models they have seen, until the process ends. Who frees the last DistributedDataParallel of a
group that was destroyed may wait for Gloo's threads, and they for Python's lock: the worker would hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run that is watched.

    Args:
        program: what runs.
        kind: whether it knows of one worker only.
        size: on how many workers.
        steps: after how many it is stopped.
        folder: where its traces go, and all that it writes.
        options: how a serial script is split across workers.
        watch: what runs each worker, and sees to it that none waits for ever.
        disturb: whether gradients are disturbed by their rounding.
        neutral: what the workers of this kind of script may do apart (batch norm, draws) is made one, or off.
    """

    program: Program
    kind: Kind
    size: int
    steps: int
    folder: Path
    options: Options
    watch: Watch
    disturb: bool = False
    neutral: Kind | None = None

    def run(self) -> Seen:
        """Run it to its end, and return what was seen of it.

        Raises:
            KeyboardInterrupt: somebody ended it.
        """
        self.folder.mkdir(parents=True)
        job = Job(program=self.program, workers=self.size, grace_s=3.0)
        entry = entry_of(self.program, around=self._as_worker, watch=self.watch)
        outcome = local.run(job, entry, local=self.size, tell=lambda *_: None)
        if outcome.interrupted_by:
            raise KeyboardInterrupt
        return Seen(
            traces=[read(self._own(rank) / "trace.jsonl", rank=rank) for rank in range(self.size)],
            is_replicated=self.kind == "serial",
            failure=outcome.cause,
            is_sliced=self.options.split == "loader",
        )

    def _own(self, rank: int) -> Path:
        return self.folder / str(rank)

    def _as_worker(self, run: Callable[[], Ending]) -> Ending:
        """Be one of the workers."""
        rank = env.integer(env.snapshot(), "RANK") or 0
        self._own(rank).mkdir(parents=True)
        stdout = _Stdout(self._own(rank) / "stdout")
        probe = Probe(
            Writer(self._own(rank) / "trace.jsonl"),
            rank,
            limit=self.steps,
            stop=partial(self._stop, rank),
            printed=stdout.text,
            disturb=self.disturb,
            within=self._within(),
        )
        _KEPT.append(probe)

        def watched() -> Ending:
            with probe.attached(), redirect_stdout(stdout.stream):
                ending = run()
            ended = ending.error or (f"exit code {ending.exit_code}" if ending.exit_code else "end")
            probe.end(ended, ending.message)
            return ending

        with env.exported(OFF), silenced(), ExitStack() as stack:
            if self.neutral == "native":
                from samestep.study.neutral import neutralised

                stack.enter_context(neutralised())
            try:
                return self._as_its_kind(watched, rank)
            except Error as error:
                probe.end(type(error).__name__, str(error))
                raise

    def _as_its_kind(self, watched: Callable[[], Ending], rank: int) -> Ending:
        if self.kind == "native":
            # Other numbers on each rank, as in fresh interpreters, but the same in each run.
            seed_all(partial(random.Random(SEED + rank).getrandbits, 63))
            with writing_to(self.folder, rank):
                return watched()
        if self.size > 1:
            options = replace(self.options, scratch=self.folder, seed=SEED)
            if self.neutral == "serial":
                options = replace(options, batch_norm=DEFAULTS.batch_norm, random=DEFAULTS.random)
            return run_replicated(watched, guarded=False, options=options)
        with join() as world, writing_to(self.folder, rank), equal_seeds(world, SEED):
            return watched()

    def _within(self) -> Callable[[], AbstractContextManager[Any]]:
        if self.neutral != "native":
            return nullcontext
        from samestep.study.neutral import over_the_group

        return over_the_group

    def _stop(self, rank: int) -> None:
        """End this process, whatever the script would catch, once the others have made their steps too."""
        (self._own(rank) / "stopped").touch()
        deadline = time.monotonic() + PATIENCE_S
        others = [self._own(other) / "stopped" for other in range(self.size)]
        while time.monotonic() < deadline and not all(one.exists() for one in others):
            time.sleep(0.005)
        undo_replication()
        os._exit(0)


class _Stdout:
    """A file instead of stdout: a script can do with it whatever it does with its own.

    Args:
        path: where it lies.
    """

    def __init__(self, path: Path) -> None:
        self.stream = path.open("w", encoding="utf-8", buffering=1)
        self._reader = path.open("rb")

    def text(self) -> str:
        """Return what has been written."""
        if not self.stream.closed:
            self.stream.flush()
        self._reader.seek(0)
        return self._reader.read().decode(errors="replace")
