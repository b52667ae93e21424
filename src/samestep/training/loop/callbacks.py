"""Bundles the objects that the training loop calls: sink, display, checkpoints, stop request, profiler."""

from dataclasses import dataclass

from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.loop.progress import Display, NullDisplay
from samestep.training.loop.stopping import StopRequest
from samestep.training.output.profile import Profiler
from samestep.training.output.run_folder import NullSink, Sink
from samestep.training.settings.run_options import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The objects that the training loop of one rank calls."""

    sink: Sink
    """Stores rows and the result."""
    display: Display
    """Shows progress."""
    checkpoints: CheckpointManager
    """Writes checkpoints."""
    stop: StopRequest
    """Whether this process has received a stop signal."""
    profiler: Profiler
    """Traces some of the steps."""

    @classmethod
    def disabled(cls, world: World, *, sink: Sink | None = None) -> "Callbacks":
        """Return callbacks that store, show and trace nothing, except that `sink` receives the rows."""
        return cls(
            sink=NullSink() if sink is None else sink,
            display=NullDisplay(),
            checkpoints=CheckpointManager(world, RunOptions(), folder=None),
            stop=StopRequest(),
            profiler=Profiler.off(),
        )
