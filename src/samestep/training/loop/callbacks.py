"""Bundles the objects that the training loop calls: sink, display, checkpoints, stop request, profiler."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from samestep.base.signals import handled
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.loop.progress import Display
from samestep.training.output.profile import Profiler
from samestep.training.output.run_folder import Sink
from samestep.training.settings import RunOptions


class StopRequest:
    """The latest stop signal that this process has received; true once there is one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def record(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; installed as its handler."""
        self.signal = signal.Signals(number)


@contextmanager
def stop_request(names: Sequence[str]) -> Iterator[StopRequest]:
    """Record the signals called `names`, such as ``TERM``, within the block, instead of ending the process.

    Ranks that are threads receive no signals, so their request stays false.
    """
    request = StopRequest()
    with handled([signal.Signals[f"SIG{name}"] for name in names], request.record):
        yield request


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The objects that the training loop of one rank calls."""

    sink: Sink  # stores rows and the result
    display: Display  # shows progress
    checkpoints: CheckpointManager  # writes checkpoints
    stop: StopRequest  # whether this process has received a stop signal
    profiler: Profiler  # traces some of the steps

    @classmethod
    def disabled(cls, world: World, *, sink: Sink | None = None) -> "Callbacks":
        """Return callbacks that store, show and trace nothing, except that `sink` receives the rows."""
        return cls(
            sink=Sink() if sink is None else sink,
            display=Display(),
            checkpoints=CheckpointManager(world, RunOptions(), folder=None),
            stop=StopRequest(),
            profiler=Profiler(None, Path(), world, total=0),
        )
