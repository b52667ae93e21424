"""What a training works with beside its model and data: where things go, and who may interrupt."""

from dataclasses import dataclass

from samestep.training.conduct import Conduct
from samestep.training.keeping import Keeper
from samestep.training.profile import Profiler
from samestep.training.progress import Display, Silent
from samestep.training.run_folder import Nowhere, Sink
from samestep.training.stopping import StopRequest
from samestep.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One rank's."""

    sink: Sink
    """Takes rows and result."""
    display: Display
    """Shows how it goes."""
    keeper: Keeper
    """Writes checkpoints."""
    stop: StopRequest
    """Whether this process was asked to stop."""
    profiler: Profiler
    """Traces some of the steps."""

    @classmethod
    def bare(cls, world: World, *, sink: Sink | None = None) -> "Surroundings":
        """Return surroundings in which nothing is kept, shown or traced; `sink` may take the rows."""
        return cls(
            sink=Nowhere() if sink is None else sink,
            display=Silent(),
            keeper=Keeper(world, Conduct(), folder=None),
            stop=StopRequest(),
            profiler=Profiler.off(),
        )
