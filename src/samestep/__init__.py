"""samestep runs PyTorch training on N workers with the steps and the result of one.

The public names load lazily: importing ``samestep`` never imports torch, so ``samestep --help`` answers
at once on a login node.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from samestep.autopilot.split.declared_dimensions import split
    from samestep.base.errors import Error
    from samestep.base.place import Place
    from samestep.launch.local.spawn import spawn
    from samestep.parallel.exact.logical_shards import Exact
    from samestep.parallel.gradients.replicate import accumulate, replicate
    from samestep.ranks.world.join import join
    from samestep.ranks.world.protocol import World
    from samestep.ranks.world.timed_region import timed
    from samestep.training.checkpoint.scripts import load, save
    from samestep.training.checkpoint.third_party import load_state
    from samestep.training.data.sampler import UnpaddedSampler
    from samestep.training.data.shard import shard

_HOMES = {
    "Error": "samestep.base.errors",
    "Exact": "samestep.parallel.exact.logical_shards",
    "Place": "samestep.base.place",
    "UnpaddedSampler": "samestep.training.data.sampler",
    "World": "samestep.ranks.world.protocol",
    "accumulate": "samestep.parallel.gradients.replicate",
    "join": "samestep.ranks.world.join",
    "load": "samestep.training.checkpoint.scripts",
    "load_state": "samestep.training.checkpoint.third_party",
    "replicate": "samestep.parallel.gradients.replicate",
    "save": "samestep.training.checkpoint.scripts",
    "shard": "samestep.training.data.shard",
    "spawn": "samestep.launch.local.spawn",
    "split": "samestep.autopilot.split.declared_dimensions",
    "timed": "samestep.ranks.world.timed_region",
}

__all__ = [
    "Error",
    "Exact",
    "Place",
    "UnpaddedSampler",
    "World",
    "accumulate",
    "join",
    "load",
    "load_state",
    "replicate",
    "save",
    "shard",
    "spawn",
    "split",
    "timed",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
